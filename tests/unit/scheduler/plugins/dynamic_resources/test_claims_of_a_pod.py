"""Which claims a Pod needs: optional ones, classic ones, and those of an earlier attempt."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dray.api.document import Document, NamespacedName
from dray.api.extended_resources import ClassResources
from dray.api.pod_claims import FINALIZER
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.scheduler.plugins.dynamic_resources.checks import NotReadyError, ambiguous, claims_of
from dray.scheduler.plugins.dynamic_resources.extended_claim_writer import _usable
from dray.scheduler.plugins.dynamic_resources.extended_resources import make_claim, needs_of, plan_requests
from dray.scheduler.plugins.dynamic_resources.pod_state import REDUCED_MAX, optional_uids, reduced
from dray.scheduler.plugins.dynamic_resources.variants import Variants
from dray.scheduler.plugins.dynamic_resources.writes import ClaimChangedError
from tests.unit.scheduler.plugins.dynamic_resources.test_dynamic_resources_parts import Cache, claim
from tests.unit.scheduler.plugins.dynamic_resources.test_extended_requests import GPU, container
from tests.unit.scheduler.plugins.dynamic_resources.test_extended_requests import pod as pod_with


def pod(*entries: Document, named: dict[str, str] | None = None) -> Pod:
    statuses = [{"name": entry, "resourceClaimName": name} for entry, name in (named or {}).items()]
    document = {
        "metadata": {"name": "pod", "namespace": "team", "uid": "pod"},
        "spec": {"containers": [], "resourceClaims": list(entries)},
        "status": {"resourceClaimStatuses": statuses},
    }
    return msgspec.convert(document, Pod)


def entry(name: str, target: str = "", **fields: Any) -> Document:
    return {"name": name, "resourceClaimName": target or name, **fields}


def names(claims: list[ResourceClaim]) -> list[str | None]:
    return [item.metadata.name for item in claims]


# --- Claims that a Pod names. ---


def find(*known: ResourceClaim) -> Any:
    return {NamespacedName("team", item.metadata.name or ""): item for item in known}.get


def deleted(given: ResourceClaim) -> ResourceClaim:
    metadata = {**msgspec.to_builtins(given.metadata), "deletionTimestamp": "2026-01-01T00:00:00Z"}
    return msgspec.structs.replace(given, metadata=msgspec.convert(metadata, type(given.metadata)))


def test_an_optional_claim_may_be_missing_and_the_others_count() -> None:
    given = pod(entry("a", optional=True), entry("b", optional=True), entry("c"))
    assert names(claims_of(given, find(deleted(claim("b")), claim("c")))) == ["c"]
    with pytest.raises(NotReadyError, match='could not find claim "team/c"'):
        claims_of(given, find(claim("a")))


def test_a_classic_claim_is_left_to_its_plugin() -> None:
    given = pod(entry("a"), entry("b"))
    assert names(claims_of(given, find(claim("b")), lambda key: key.name == "a")) == ["b"]
    with pytest.raises(NotReadyError) as raised:
        claims_of(given, find(claim("a"), claim("b")), lambda key: key.name == "a")
    assert str(raised.value) == ambiguous("a")


def test_a_generated_claim_is_never_a_classic_one() -> None:
    given = pod({"name": "g", "resourceClaimTemplateName": "t"}, named={"g": "generated"})
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": "pod", "controller": True}
    metadata = {"name": "generated", "namespace": "team", "uid": "c", "ownerReferences": [owner]}
    generated = msgspec.convert({"metadata": metadata}, ResourceClaim)
    assert names(claims_of(given, find(generated), lambda _: True)) == ["generated"]


# --- Optional claims. ---


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param([entry("a"), entry("b")], set(), id="all required"),
        pytest.param([entry("a", optional=True), entry("b")], {"a-uid"}, id="one"),
        pytest.param([entry("a", optional=True), entry("b", optional=True)], {"a-uid", "b-uid"}, id="all"),
        pytest.param([entry("a", optional=True), entry("x", "a"), entry("b")], set(), id="required by another entry"),
    ],
)
def test_a_claim_is_optional_if_all_its_entries_are(entries: list[Document], expected: set[str]) -> None:
    assert optional_uids(pod(*entries), [claim("a"), claim("b")]) == expected


def test_a_generated_claim_is_required_by_the_name_in_the_status() -> None:
    entries = [entry("a", optional=True), {"name": "g", "resourceClaimTemplateName": "t"}]
    assert optional_uids(pod(*entries, named={"g": "made"}), [claim("a"), claim("made")]) == {"a-uid"}


def test_optional_claims_are_dropped_from_the_last_on_and_within_a_bound() -> None:
    claims = [claim("a"), claim("b"), claim("c")]
    kept = [names(item) for item in reduced(claims, frozenset({"b-uid", "c-uid"}))]
    assert kept == [["a", "b"], ["a", "c"], ["a"]]
    many = [claim(f"c{number}") for number in range(6)]
    assert len(list(reduced(many, frozenset(item.metadata.uid or "" for item in many)))) == REDUCED_MAX


# --- Claims of an earlier attempt. ---


@pytest.mark.behaviour("SP-101")
def test_a_created_claim_does_not_hide_what_the_informer_has_observed() -> None:
    cache = Cache()
    key = NamespacedName("team", "claim")
    cache.tracker.created(claim(version=1))
    assert cache.tracker.get(key) is not None
    cache.observe(claim(version=2))
    cache.tracker.created(claim(version=1))
    current = cache.tracker.get(key)
    assert current is not None
    assert current.metadata.resource_version == "2"
    # A claim of the same name that was observed before is another one.
    cache.tracker.created(claim(version=3, uid="newer"))
    current = cache.tracker.get(key)
    assert current is not None
    assert current.metadata.uid == "newer"


def test_an_existing_extended_resource_claim_is_used_only_if_it_is_new() -> None:
    user = pod_with([container("c", gpu=1)])
    wanted = plan_requests(needs_of(user), ((GPU, "gpu"),))
    planned = make_claim(user, wanted.requests)
    document = msgspec.to_builtins(planned)
    document["metadata"] |= {"finalizers": [FINALIZER], "name": "pod-extended"}
    new = msgspec.convert(document, ResourceClaim)
    assert _usable(new, planned) is new
    result = {"request": planned.spec.devices.requests[0].name, "driver": "d", "pool": "p", "device": "a"}
    allocated = {**document, "status": {"allocation": {"devices": {"results": [result]}}}}
    unprotected = {**document, "metadata": {**document["metadata"], "finalizers": []}}
    other = {**document, "spec": {"devices": {"requests": []}}}
    for unusable in (allocated, unprotected, other):
        with pytest.raises(ClaimChangedError, match="of an earlier attempt is in the way"):
            _usable(msgspec.convert(unusable, ResourceClaim), planned)


# --- Devices of a removed device plugin. ---


@pytest.mark.parametrize(
    ("used", "total", "expected"),
    [
        pytest.param(0, 4, (("gpu", 2),), id="all free"),
        pytest.param(3, 4, (("gpu", 1),), id="no more than are free"),
        pytest.param(4, 4, (), id="none free"),
    ],
)
def test_devices_of_running_pods_are_held_back(used: int, total: int, expected: tuple[tuple[str, int], ...]) -> None:
    document = {"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": GPU}}
    variants = Variants(
        ClassResources([msgspec.convert(document, DeviceClass)]), lambda *_: (used, total), enabled=True
    )
    node = msgspec.convert({"metadata": {"name": "node"}}, Node)
    running = NodeInfo(node).with_pod(PodInfo(pod_with([container("c", gpu=2)])))
    assert variants._held(running, None) == expected
    with_plugin = msgspec.convert({"metadata": {"name": "node"}, "status": {"allocatable": {GPU: "2"}}}, Node)
    assert variants._held(running.with_node(with_plugin), None) == ()
