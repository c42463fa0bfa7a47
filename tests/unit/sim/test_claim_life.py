"""The life of a claim as the table has it, against the functions that plan each write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from dray.api.pod_claims import reservation_of
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.controllers.resource_claim import plan
from dray.scheduler.plugins.dynamic_resources import writes
from dray.sim.claim_life import TRANSITIONS, Actor
from dray.sim.claims import ClaimState, claim_state

CONTROLLER, SCHEDULER = Actor.CONTROLLER, Actor.SCHEDULER
ALLOCATION = {"devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": "0"}]}}
DELETED: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def _pod(name: str, phase: str = "Running") -> Pod:
    spec = {"nodeName": "n", "containers": [], "resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}
    body = {"metadata": {"name": name, "namespace": "x", "uid": name}, "spec": spec, "status": {"phase": phase}}
    return msgspec.convert(body, Pod)


def _claim(*users: str, allocated: bool = True, **metadata: Any) -> ResourceClaim:
    status: dict[str, Any] = {"allocation": ALLOCATION} if allocated else {}
    if users:
        status["reservedFor"] = [{"resource": "pods", "name": name, "uid": name} for name in users]
    finalizers = ["resource.kubernetes.io/delete-protection"] if allocated else []
    own = {"name": "c", "namespace": "x", "uid": "c", "finalizers": finalizers, **metadata}
    body = {"metadata": own, "spec": {"devices": {}}, "status": status}
    return msgspec.convert(body, ResourceClaim)


PODS = {"a": _pod("a"), "b": _pod("b"), "done": _pod("done", "Succeeded")}
FREE, UNUSED, ONE, TWO = _claim(allocated=False), _claim(), _claim("a"), _claim("a", "done")


def _planned(claim: ResourceClaim) -> ResourceClaim | None:
    """The claim after the controller has written what it plans; None when it is gone."""
    wanted = plan.plan_claim(claim, PODS.get, lambda _uid: False)
    if wanted.status is not None:
        claim = msgspec.structs.replace(claim, status=wanted.status)
    if wanted.remove_finalizer:
        claim = plan.without_finalizer(claim)
        if claim.metadata.deletion_timestamp is not None:
            return None
    return claim


def _moves() -> Iterator[tuple[Actor, ResourceClaim, ResourceClaim | None]]:
    allocation = UNUSED.status.allocation
    unreserved = msgspec.structs.replace(ONE.status, reserved_for=())
    yield SCHEDULER, FREE, writes.taken(writes.protected(FREE), allocation, reservation_of(PODS["a"]))
    yield SCHEDULER, ONE, writes.taken(ONE, None, reservation_of(PODS["b"]))
    yield SCHEDULER, UNUSED, writes.taken(UNUSED, None, reservation_of(PODS["a"]))
    yield SCHEDULER, ONE, writes.freed(ONE)
    yield SCHEDULER, UNUSED, writes.freed(UNUSED)
    # What `unreserve_patch` makes of it.
    yield SCHEDULER, ONE, msgspec.structs.replace(ONE, status=unreserved)
    yield CONTROLLER, UNUSED, plan.with_user(UNUSED, reservation_of(PODS["a"]))
    yield CONTROLLER, TWO, _planned(TWO)
    yield CONTROLLER, _claim("done"), _planned(_claim("done"))
    yield CONTROLLER, _claim("a", "done", **DELETED), _planned(_claim("a", "done", **DELETED))
    yield CONTROLLER, _claim("done", **DELETED), _planned(_claim("done", **DELETED))
    yield CONTROLLER, _claim(**DELETED), _planned(_claim(**DELETED))


def _state(claim: ResourceClaim | None) -> ClaimState | None:
    return None if claim is None else claim_state(claim)


def test_what_is_written_is_in_the_table_and_what_is_in_the_table_is_written() -> None:
    written = {(actor, claim_state(before), _state(after)) for actor, before, after in _moves()}
    # Creations and deletions are requests of their own, and no change of a claim.
    tabled = {
        (actor, move.before, move.after) for move in TRANSITIONS for actor in move.actors if _is_a_write(move.what)
    }
    assert written == tabled


def _is_a_write(what: str) -> bool:
    return not what.startswith(("create", "delete"))


@pytest.mark.parametrize("state", ClaimState)
def test_every_state_is_reached_and_left(state: ClaimState) -> None:
    assert any(move.after is state and move.before is not state for move in TRANSITIONS)
    assert any(move.before is state and move.after is not state for move in TRANSITIONS)
