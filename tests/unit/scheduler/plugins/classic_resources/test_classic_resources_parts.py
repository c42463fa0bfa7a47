"""The pure parts of the ClassicResources plugin."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dray.api import classic_claims as classic
from dray.api.codec import from_document
from dray.api.document import NamespacedName
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.framework.events import Hint
from dray.scheduler.plugins.classic_resources import writes
from dray.scheduler.plugins.classic_resources.hints import Hints, is_news
from dray.scheduler.plugins.classic_resources.plugin import read_arguments
from dray.scheduler.plugins.classic_resources.pod_state import PodState, Wanted, claims_of, may_use_classic
from dray.scheduler.plugins.classic_resources.tracker import ClassicTracker
from dray.scheduler.plugins.classic_resources.writes import ClaimChangedError, InUseError
from dray.scheduler.plugins.dynamic_resources.checks import NotReadyError
from tests.unit.scheduler.builders import node_info, pod


def user(name: str) -> dict[str, str]:
    return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": f"uid-{name}"}


def claim(name: str = "c", *, mode: str = "Delayed", version: int = 1, **status: Any) -> ResourceClaim:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version)}
    spec = {"resourceClassName": "gpu", "allocationMode": mode}
    return from_document(ResourceClaim, {"metadata": metadata, "spec": spec, "status": status})


def asks(*names: str, node: str = "") -> dict[str, Any]:
    return {"scheduler": {"potentialNodes": list(names), **({"selectedNode": node} if node else {})}}


USES = pod("p", resourceClaims=[{"name": "e", "resourceClaimName": "c"}])

NEWS = {
    "node selected": (claim(), claim(scheduling=asks("n", node="n")), False),
    "nodes asked about": (claim(), claim(scheduling=asks("n")), False),
    "driver at work": (
        claim(scheduling=asks("n", node="n")),
        claim(scheduling=asks("n", node="n"), driverName="d.example.com"),
        False,
    ),
    "allocated": (claim(scheduling=asks("n", node="n")), claim(phase="Allocated"), True),
    "node refused": (claim(scheduling=asks("n", node="n")), claim(scheduling=asks("n")), True),
    "another node unsuitable": (
        claim(scheduling=asks("n")),
        claim(scheduling={**asks("n"), "driver": {"unsuitableNodes": ["n"]}}),
        True,
    ),
    "first answer": (claim(scheduling=asks("n")), claim(scheduling={**asks("n"), "driver": {}}), True),
    "to be freed": (claim(phase="Allocated"), claim(phase="Reallocate"), False),
    "freed": (claim(phase="Reallocate"), claim(phase="Pending"), True),
    "another user": (claim(phase="Allocated"), claim(phase="Allocated", reservedFor=[user("x")]), False),
    "one user less": (claim(phase="Allocated", reservedFor=[user("x")]), claim(phase="Allocated"), True),
}


@pytest.mark.behaviour("CL-39")
@pytest.mark.parametrize("case", NEWS)
def test_what_wakes_a_pod(case: str) -> None:
    old, new, expected = NEWS[case]
    assert is_news(old, new) is expected
    hints = Hints(lambda _: None, lambda _: False)
    assert hints.claim_changed(USES, old, new) is (Hint.QUEUE if expected else Hint.SKIP)
    stranger = pod("q", resourceClaims=[{"name": "e", "resourceClaimName": "other"}])
    assert hints.claim_changed(stranger, old, new) is Hint.SKIP


def test_that_a_pod_itself_has_left_is_no_news_to_it() -> None:
    old, new = claim(phase="Allocated", reservedFor=[user("p")]), claim(phase="Allocated")
    hints = Hints(lambda _: None, lambda _: False)
    assert hints.claim_changed(USES, old, new) is Hint.SKIP
    other = pod("q", resourceClaims=[{"name": "e", "resourceClaimName": "c"}])
    assert hints.claim_changed(other, old, new) is Hint.QUEUE


# --- Entries. ---


def _found(*claims: ResourceClaim) -> Any:
    known = {NamespacedName("default", item.metadata.name or ""): item for item in claims}
    return known.get


def _owned(by: str) -> ResourceClaim:
    made = claim("p-e")
    owner = classic.reservation_of(pod(by))
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, owner_references=(owner,)))


INLINE = {"name": "e", "template": {"spec": {"resourceClassName": "gpu"}}}
NOT_READY = {
    "not made yet": ([INLINE], (), "ResourceClaim not created yet"),
    "somebody else's": ([INLINE], (_owned("q"),), r"was not created for pod default/p \(pod is not owner\)"),
}


@pytest.mark.behaviour("CL-20")
@pytest.mark.parametrize("case", NOT_READY)
def test_claims_that_are_not_ready(case: str) -> None:
    entries, there, text = NOT_READY[case]
    with pytest.raises(NotReadyError, match=text):
        claims_of(pod("p", resourceClaims=entries), _found(*there), lambda _: False)


@pytest.mark.behaviour("CL-14", "CL-20")
@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], False),
        ([{"name": "a", "resourceClaimTemplateName": "t"}], False),
        ([{"name": "a", "resourceClaimTemplateName": "t"}, INLINE], True),
        ([{"name": "a", "resourceClaimName": "c"}], True),
    ],
)
def test_which_pods_may_use_classic_claims(entries: list[dict[str, Any]], expected: bool) -> None:
    asked = pod("p", resourceClaims=entries)
    assert may_use_classic(asked) is expected
    is_classic = bool(list(classic.classic_entries(asked, lambda _name: True)))
    assert is_classic is expected


def test_claims_that_are() -> None:
    own = _owned("p")
    assert claims_of(pod("p", resourceClaims=[INLINE]), _found(own), lambda _: False) == [Wanted(own)]
    # Not in this group: the other plugin's business.
    assert claims_of(USES, _found(), lambda _: True) == []
    twice = [{"name": "a", "resourceClaimName": "c", "optional": True}, {"name": "b", "resourceClaimName": "c"}]
    assert claims_of(pod("p", resourceClaims=twice), _found(claim()), lambda _: False) == [Wanted(claim())]
    with pytest.raises(NotReadyError, match=r"exists in resource\.k8s\.io and in cdi\.k8s\.io"):
        claims_of(USES, _found(claim()), lambda _: True)


# --- Nodes. ---

SELECTOR = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}
PLACES = {
    "nothing known": (claim(), True, True),
    "refused": (claim(scheduling={"driver": {"unsuitableNodes": ["n1"]}}), False, True),
    "only with the label": (claim(scheduling={"driver": {"availableOnNodes": SELECTOR}}), False, True),
    "allocated everywhere": (claim(phase="Allocated"), True, True),
    "allocated there": (claim(phase="Allocated", scheduling={"driver": {"availableOnNodes": SELECTOR}}), False, True),
    "old refusals of an allocated claim": (
        claim(phase="Allocated", scheduling={"driver": {"unsuitableNodes": ["n1", "n2"]}}),
        True,
        True,
    ),
}


@pytest.mark.behaviour("CL-34", "CL-35")
@pytest.mark.parametrize("case", PLACES)
def test_where_a_claim_may_be(case: str) -> None:
    given, on_plain, on_labelled = PLACES[case]
    [placed] = PodState([Wanted(given)]).needed
    assert placed.may_be_on(node_info("n1")) is on_plain
    assert placed.may_be_on(node_info("n2", labels={"a": "b"})) is on_labelled


# --- Writes. ---


@pytest.mark.behaviour("CL-38")
def test_potential_nodes_are_written_only_when_some_are_new() -> None:
    before = claim(scheduling=asks("n1", "n2", "n3"))
    assert writes.asked(before, before, ("n1", "n2")) is None
    after = writes.asked(before, before, ("n2", "n4"), "n4")
    assert after is not None
    part = classic.scheduler_status(after)
    assert (part.selected_node, part.potential_nodes) == ("n4", ("n1", "n2", "n3", "n4"))
    assert len(writes.potential_nodes((f"n{number}" for number in range(1000)), "chosen")) == 128
    assert "chosen" in writes.potential_nodes((f"n{number}" for number in range(1000)), "chosen")


def test_what_another_scheduler_selected_stays() -> None:
    planned = claim()
    assert writes.asked(claim(scheduling=asks("n1", node="n1")), planned, ("n2",), "n2") is None
    assert writes.asked(claim(phase="Allocated"), planned, ("n2",), "n2") is None


@pytest.mark.behaviour("CL-40")
def test_reserving_what_has_changed() -> None:
    planned = claim(phase="Allocated")
    assert writes.reserved(claim(phase="Allocated", reservedFor=[user("p")]), planned, USES) is None
    with pytest.raises(InUseError, match="resourceclaim in use"):
        writes.reserved(claim(phase="Allocated", reservedFor=[user("x")]), planned, USES)
    for changed in (claim(), claim(phase="Reallocate")):
        with pytest.raises(ClaimChangedError, match="deallocated elsewhere"):
            writes.reserved(changed, planned, USES)
    moved = claim(phase="Allocated", scheduling={"driver": {"availableOnNodes": SELECTOR}})
    with pytest.raises(ClaimChangedError, match="allocated elsewhere"):
        writes.reserved(moved, planned, USES)


# --- What is known. ---


def test_what_was_written_counts_until_the_informer_has_caught_up() -> None:
    cached = {NamespacedName("default", "c"): claim()}
    tracker = ClassicTracker(cached.get)
    written = claim(version=3, scheduling=asks("n1", node="n1"))
    tracker.assume(written)
    assert tracker.get(NamespacedName("default", "c")) is written
    assert tracker.waiting_on("n1") == 1
    tracker.changed(claim(), claim(version=2))
    assert tracker.get(NamespacedName("default", "c")) is written
    newer = cached[NamespacedName("default", "c")] = claim(version=4, phase="Allocated")
    tracker.changed(claim(version=2), newer)
    assert tracker.get(NamespacedName("default", "c")) is newer
    assert tracker.waiting_on("n1") == 0


@pytest.mark.behaviour("CL-11", "CL-40")
def test_pods_on_their_way_count_as_users() -> None:
    tracker = ClassicTracker(lambda _: None)
    shared = claim(phase="Allocated", userLimit=2, reservedFor=[user("x")])
    first, second = pod("first"), pod("second")
    assert tracker.users_besides(shared, first) == {"uid-x"}
    tracker.start(shared, "uid-first", "n1")
    assert tracker.users_besides(shared, first) == {"uid-x"}
    assert tracker.users_besides(shared, second) == {"uid-x", "uid-first"}
    assert tracker.users_besides(shared, pod("x")) is None
    assert tracker.users_besides(claim(phase="Allocated", userLimit=classic.UNLIMITED), second) is None
    assert tracker.is_meant_by_others(shared, second)
    assert tracker.end(shared, "uid-first")
    assert not tracker.end(shared, "uid-first")
    assert tracker.users_besides(shared, second) == {"uid-x"}


def test_arguments() -> None:
    assert read_arguments({"optionalTimeout": "1m"}).optional_timeout_seconds == 60
    for wrong, text in (({"optionalTimeout": "-1s"}, "zero or greater"), ({"other": 1}, "unknown field 'other'")):
        with pytest.raises(ValueError, match=text):
            read_arguments(wrong)
