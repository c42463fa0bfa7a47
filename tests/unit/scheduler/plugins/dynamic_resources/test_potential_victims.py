"""Which Pods are tried again when a claim loses one of several users: those that could now evict all the others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dray.allocator import Allocations
from dray.api.codec import from_document
from dray.api.document import NamespacedName
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.framework.events import Hint
from dray.scheduler.plugins.dynamic_resources.hints import PotentialVictims
from dray.scheduler.plugins.dynamic_resources.nominated_devices import NominatedDevices, Nominees
from tests.unit.scheduler.builders import pod

PRIORITIES = {"low": 1, "middle": 5, "high": 9}


def no_nominees() -> Nominees:
    return Nominees(Allocations(), lambda _key, _uid: True)


def claim(*users: str, allocated: bool = True, resource: str = "pods") -> ResourceClaim:
    status: dict[str, object] = {
        "reservedFor": [{"resource": resource, "name": name, "uid": f"uid-{name}"} for name in users]
    }
    if allocated:
        status["allocation"] = {"devices": {"results": []}}
    return from_document(
        ResourceClaim, {"metadata": {"name": "shared", "namespace": "default"}, "spec": {}, "status": status}
    )


def find(key: NamespacedName) -> Pod | None:
    priority = PRIORITIES.get(key.name)
    return None if priority is None else pod(key.name, priority=priority)


def woken(old: ResourceClaim, new: ResourceClaim | None, nominees: Nominees | None = None) -> list[int]:
    """Return the priorities of the waiting Pods that are tried again."""
    hints = PotentialVictims(nominees or no_nominees(), find)
    waiting = [pod(f"waits-{priority}", priority=priority) for priority in (1, 5, 6, 10)]
    keys = {key for item in waiting for key in hints.keys_of_pod(item)}
    changed = hints.keys_of_claim(old, new)
    assert keys.issuperset(changed)
    found: Sequence[Pod] = [item for item in waiting if set(hints.keys_of_pod(item)).intersection(changed)]
    queued = [item for item in waiting if hints.user_left(item, old, new) is Hint.QUEUE]
    # The keys only narrow down what the hint decides.
    assert all(item in found for item in queued)
    return [item.spec.priority or 0 for item in queued]


@pytest.mark.behaviour("PE-57")
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        # The users that are left decide, the most important of them.
        (claim("low", "high"), claim("low"), [5, 6, 10]),
        (claim("low", "middle", "high"), claim("low", "middle"), [6, 10]),
        # Nobody has left, or nobody is left: then the claim is freed.
        (claim("low"), claim("low", "high"), []),
        (claim("low", "high"), claim("low", "high"), []),
        (claim("low"), claim(), []),
        (claim("low", "high"), claim("low", allocated=False), []),
        (claim("low", "high"), None, []),
        # Only Pods can be evicted.
        (claim("low", "high", resource="podgroups"), claim("low", resource="podgroups"), []),
    ],
)
def test_a_claim_that_a_user_has_left(old: ResourceClaim, new: ResourceClaim | None, expected: list[int]) -> None:
    assert woken(old, new) == expected


@pytest.mark.behaviour("PE-70")
def test_a_pod_that_waits_for_its_own_victims_is_not_tried_again() -> None:
    nominees = no_nominees()
    nominees.record(pod("waits-10").metadata.uid or "", NominatedDevices("n0", ()), {})
    assert woken(claim("low", "high"), claim("low"), nominees) == [5, 6]
