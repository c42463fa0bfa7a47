"""The pure parts of DynamicResources: hints, the tracker of claims, arguments, conditions, writes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from dray.allocator import Allocations
from dray.api.document import Document, NamespacedName
from dray.api.errors import (
    ConflictError,
    InsufficientStorageError,
    NotFoundError,
    ServiceUnavailableError,
    error_from_status,
    is_not_executed,
    is_refusal,
)
from dray.api.features import FeatureGates
from dray.api.pod_claims import reservation_of
from dray.api.types import cdi_v1alpha1 as cdi
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.client.http import read_failure
from dray.client.objects import is_older
from dray.client.resources import RESOURCE_CLAIMS
from dray.framework.events import CLASSIC_CLAIM, Action, Hint
from dray.scheduler.plugins.dynamic_resources.arguments import read_arguments
from dray.scheduler.plugins.dynamic_resources.binding_conditions import Readiness, evaluate
from dray.scheduler.plugins.dynamic_resources.hints import GATE, Hints, keys_of_claim, keys_of_pod
from dray.scheduler.plugins.dynamic_resources.plugin import DynamicResources
from dray.scheduler.plugins.dynamic_resources.tracker import ClaimTracker
from dray.scheduler.plugins.dynamic_resources.writes import (
    ClaimChangedError,
    check_unchanged,
    may_free,
    taken,
)
from dray.scheduler.registry import BUILT_IN, DEFAULT_PLUGINS
from tests.unit.scheduler.plugins.dynamic_resources.registered import handle_of_nothing, registered

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = NamespacedName("team", "claim")
POOL = "gpu.example.com/pool"


def claim(
    name: str = "claim",
    *,
    version: int = 1,
    uid: str = "",
    devices: tuple[str, ...] = (),
    users: tuple[str, ...] = (),
    labels: dict[str, str] | None = None,
    **status: Any,
) -> ResourceClaim:
    results = [{"request": "r", "driver": "gpu.example.com", "pool": "pool", "device": item} for item in devices]
    filled: Document = dict(status)
    if devices:
        filled["allocation"] = {"devices": {"results": results}, **filled.pop("allocation", {})}
    if users:
        filled["reservedFor"] = [{"resource": "pods", "name": user, "uid": user} for user in users]
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": uid or f"{name}-uid",
        "resourceVersion": str(version),
        "labels": labels or {},
    }
    return msgspec.convert({"metadata": metadata, "status": filled}, ResourceClaim)


def pod(*claims: str, template: str = "", named: str = "", uid: str = "pod") -> Pod:
    entries: list[Document] = [{"name": item, "resourceClaimName": item} for item in claims]
    if template:
        entries.append({"name": "generated", "resourceClaimTemplateName": template})
    statuses = [{"name": "generated", "resourceClaimName": named}] if named else []
    document = {
        "metadata": {"name": "pod", "namespace": "team", "uid": uid},
        "spec": {"containers": [], "resourceClaims": entries},
        "status": {"resourceClaimStatuses": statuses},
    }
    return msgspec.convert(document, Pod)


@pytest.mark.behaviour("SP-90", "N-118")
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(None, claim(), Hint.QUEUE, id="queue-on-add"),
        pytest.param(claim(), claim(users=("x",)), Hint.QUEUE, id="queue-on-status-change"),
        pytest.param(claim(), claim(labels={"a": "b"}), Hint.SKIP, id="skip-on-metadata-change"),
        pytest.param(None, claim("other"), Hint.SKIP, id="skip-unrelated-claim"),
        pytest.param(claim("other"), claim("other", devices=("a",)), Hint.SKIP, id="skip-unrelated-allocated"),
        pytest.param(claim("other", devices=("a",)), claim("other"), Hint.QUEUE, id="claim-deallocate"),
        pytest.param(claim("other", devices=("a",)), None, Hint.QUEUE, id="allocated-claim-gone"),
        pytest.param(claim("other"), None, Hint.SKIP, id="unallocated-claim-gone"),
        pytest.param(claim(), None, Hint.QUEUE, id="own-claim-gone"),
        pytest.param(None, None, Hint.QUEUE, id="claim-gone-in-an-unknown-state"),
        pytest.param(claim(devices=("a",)), claim(), Hint.QUEUE, id="own-claim-deallocated"),
    ],
)
def test_claim_changes(old: ResourceClaim | None, new: ResourceClaim | None, expected: Hint) -> None:
    waiting = pod("claim")
    assert Hints(lambda _: None).claim_changed(waiting, old, new) is expected
    # The quick way to find the Pods concerned never leaves one out.
    keys = keys_of_claim(old, new)
    if expected is Hint.QUEUE:
        assert keys is None or set(keys) & set(keys_of_pod(waiting))


def test_a_pod_without_its_claims_waits_for_no_devices() -> None:
    plugin = DynamicResources({}, handle_of_nothing())
    waiting = pod("shared", template="t")
    assert sorted(plugin._hints.keys_of_pod(waiting)) == ["pod", "team/shared"]
    # Nor does one whose claim was named and is not there; without claims every device concerns it.
    assert sorted(plugin._hints.keys_of_pod(pod(template="t", named="generated"))) == ["pod", "team/generated"]
    assert sorted(plugin._hints.keys_of_pod(pod())) == ["freed for -1", "pod"]


def test_a_classic_claim_with_the_same_name_has_the_key_of_the_pod() -> None:
    handle = replace(handle_of_nothing(), features=FeatureGates.parse(f"{GATE}=true"))
    plugin = DynamicResources({}, handle)
    [keys] = [item.keys for item in plugin.events_to_register() if item.event.resource == CLASSIC_CLAIM]
    assert keys is not None
    changed = msgspec.convert({"metadata": {"name": "shared", "namespace": "team"}}, cdi.ResourceClaim)
    assert set(keys.of_pod(pod("shared"))).intersection(keys.of_change(None, changed) or ())
    assert not set(keys.of_pod(pod("other"))).intersection(keys.of_change(changed, None) or ())


@pytest.mark.behaviour("SP-90")
@pytest.mark.parametrize(
    ("new", "known", "expected"),
    [
        pytest.param(pod(template="t"), (), Hint.SKIP, id="not-named-yet"),
        pytest.param(pod(template="t", named="generated"), (), Hint.SKIP, id="named-and-not-there"),
        pytest.param(pod(template="t", named="generated"), ("generated",), Hint.QUEUE, id="all-there"),
        pytest.param(pod("more", template="t", named="generated"), ("generated",), Hint.SKIP, id="one-of-two"),
        pytest.param(pod(template="t", named="generated", uid="x"), ("generated",), Hint.SKIP, id="another-pod"),
    ],
)
def test_pod_changes(new: Pod, known: tuple[str, ...], expected: Hint) -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": "pod", "controller": True}
    made = msgspec.convert(
        {"metadata": {"name": "generated", "namespace": "team", "uid": "c", "ownerReferences": [owner]}}, ResourceClaim
    )
    hints = Hints(lambda key: made if key.name in known else None)
    assert hints.pod_changed(pod(template="t"), pod(template="t"), new) is expected


@pytest.mark.behaviour("SP-91")
def test_what_else_wakes_a_pod() -> None:
    actions = registered()
    assert actions["Node"] == Action.ADD | Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_ALLOCATABLE
    # When a class goes, another one may have its extended resource.
    assert actions["DeviceClass"] == Action.ALL
    assert actions["ResourceSlice"] & (Action.ADD | Action.UPDATE) == Action.ADD | Action.UPDATE


@pytest.mark.behaviour("PL-28")
def test_the_default_weight() -> None:
    assert dict(DEFAULT_PLUGINS)["DynamicResources"] == 2
    assert "DynamicResources" in BUILT_IN


# --- The tracker. ---


class Cache:
    """An informer's cache and the tracker that follows it."""

    def __init__(self) -> None:
        self.known: dict[NamespacedName, ResourceClaim] = {}
        self.allocations = Allocations()
        self.tracker = ClaimTracker(self.allocations, self.known.get)

    def observe(self, new: ResourceClaim) -> None:
        key = NamespacedName("team", new.metadata.name or "")
        old = self.known.get(key)
        self.known[key] = new
        self.tracker.changed(old, new)

    def remove(self, name: str) -> None:
        old = self.known.pop(NamespacedName("team", name))
        self.tracker.changed(old, None)

    @property
    def used(self) -> set[str]:
        return {key.rpartition("/")[2] for key in self.allocations.keys_in_use(POOL)}


@pytest.mark.behaviour("SP-99", "SP-101", "SP-104")
def test_a_device_is_in_use_from_reserve_on_without_a_gap() -> None:
    cache = Cache()
    cache.observe(claim(version=1))
    allocation = claim(devices=("a",)).status.allocation
    assert allocation is not None
    cache.tracker.start_in_flight(claim(), allocation, "pod")
    assert cache.used == {"a"}
    written = claim(version=3, devices=("a",))
    cache.tracker.assume(written)
    assert cache.tracker.end_in_flight(claim(), "pod")
    assert cache.used == {"a"}
    # News of the finalizer, which was written before: it must not undo what is known.
    cache.observe(claim(version=2))
    assert cache.used == {"a"}
    assert cache.tracker.get(KEY) is written
    cache.observe(written)
    assert cache.used == {"a"}
    cache.observe(claim(version=4))
    assert cache.used == set()


@pytest.mark.behaviour("SP-101")
def test_an_assumption_ends_with_the_write_it_was_made_for_or_a_later_one() -> None:
    cache = Cache()
    cache.observe(claim(version=1))
    cache.tracker.assume(claim(version=3, devices=("a",)))
    # The informer lost its watch and listed again: it never tells of version 3.
    cache.observe(claim(version=7))
    assert cache.used == set()
    cache.tracker.assume(claim(version=5, devices=("b",)))
    assert cache.used == set()
    cache.remove("claim")
    cache.tracker.assume(claim(version=9, devices=("c",)))
    assert cache.used == set()
    assert cache.tracker.get(KEY) is None


def test_a_claim_made_again_is_another_claim() -> None:
    cache = Cache()
    cache.observe(claim(version=1))
    cache.remove("claim")
    cache.observe(claim(version=5, uid="another"))
    cache.tracker.assume(claim(version=9, devices=("a",)))
    assert cache.used == set()


def test_a_mark_belongs_to_the_attempt_that_made_it() -> None:
    cache = Cache()
    cache.observe(claim())
    allocation = claim(devices=("a",)).status.allocation
    assert allocation is not None
    cache.tracker.start_in_flight(claim(), allocation, "pod")
    assert not cache.tracker.end_in_flight(claim(), "another pod")
    assert cache.tracker.is_in_flight(claim())
    assert cache.tracker.end_in_flight(claim(), "pod")
    assert not cache.tracker.end_in_flight(claim(), "pod")


@pytest.mark.behaviour("SP-104")
def test_conflicting_claims_hold_the_same_device() -> None:
    cache = Cache()
    mine = claim("mine", devices=("a", "b"))
    cache.observe(mine)
    assert cache.tracker.conflicting_claims(mine, mine.status.allocation) == ()
    cache.observe(claim("theirs", devices=("b",)))
    cache.observe(claim("others", devices=("c",)))
    assert cache.tracker.conflicting_claims(mine, mine.status.allocation) == ("team/theirs",)


def test_watchers_are_notified_of_a_claim_until_they_stop() -> None:
    cache = Cache()
    observed: list[str | None] = []
    stop = cache.tracker.watch(claim(), lambda now: observed.append(now.metadata.resource_version if now else None))
    cache.observe(claim(version=1))
    cache.observe(claim("other"))
    cache.remove("claim")
    stop()
    cache.observe(claim(version=5))
    assert observed == ["1", None]
    assert not cache.tracker._watchers


def test_versions_that_are_no_numbers_are_never_older() -> None:
    odd = msgspec.structs.replace(claim(), metadata=msgspec.structs.replace(claim().metadata, resource_version="x"))
    assert not is_older(odd, claim(version=9))
    assert is_older(claim(version=8), claim(version=9))


# --- Arguments, conditions, writes. ---


@pytest.mark.behaviour("SP-97", "SP-107")
def test_arguments() -> None:
    gates = FeatureGates()
    defaults = read_arguments({}, gates)
    assert (defaults.filter_timeout_seconds, defaults.binding_timeout_seconds) == (10.0, 600.0)
    given = read_arguments({"filterTimeout": "0s", "bindingTimeout": "2m"}, gates)
    assert (given.filter_timeout_seconds, given.binding_timeout_seconds) == (0.0, 120.0)
    off = FeatureGates.parse("DRASchedulerFilterTimeout=false")
    assert read_arguments({"filterTimeout": "5s"}, off).filter_timeout_seconds == 0.0
    for wrong in ({"filterTimeout": "soon"}, {"filterTimeout": "-1s"}, {"bindingTimeout": "0s"}, {"other": 1}):
        with pytest.raises(ValueError, match=r"filterTimeout|bindingTimeout|other"):
            read_arguments(wrong, gates)


def waiting_claim(*conditions: str, since: datetime = NOW) -> ResourceClaim:
    allocation = {
        "allocationTimestamp": since,
        "devices": {
            "results": [
                {
                    "request": "r",
                    "driver": "d",
                    "pool": "p",
                    "device": "a",
                    "bindingConditions": ["x", "y"],
                    "bindingFailureConditions": ["bad"],
                },
                {"request": "r", "driver": "d", "pool": "p", "device": "plain"},
            ]
        },
    }
    listed = [{"type": item, "status": "True"} for item in conditions] + [{"type": "z", "status": "False"}]
    devices = [{"driver": "d", "pool": "p", "device": "a", "conditions": listed}]
    return msgspec.convert({"status": {"allocation": allocation, "devices": devices}}, ResourceClaim)


@pytest.mark.behaviour("SP-107")
@pytest.mark.parametrize(
    ("conditions", "seconds", "expected"),
    [
        pytest.param((), 0, Readiness.WAITING, id="no-conditions"),
        pytest.param(("x",), 0, Readiness.WAITING, id="one-of-two"),
        pytest.param(("x", "y"), 0, Readiness.READY, id="all"),
        pytest.param(("x", "y"), 601, Readiness.READY, id="all-though-late"),
        pytest.param(("x", "y", "bad"), 0, Readiness.FAILED, id="a-failure-counts-first"),
        pytest.param(("x",), 600, Readiness.TIMED_OUT, id="timeout"),
    ],
)
def test_binding_conditions(conditions: tuple[str, ...], seconds: int, expected: Readiness) -> None:
    assert evaluate(waiting_claim(*conditions), NOW + timedelta(seconds=seconds), 600.0).readiness is expected


def test_a_claim_without_allocation_has_failed() -> None:
    assert evaluate(claim(), NOW, 600.0).readiness is Readiness.FAILED


@pytest.mark.behaviour("SP-100")
@pytest.mark.parametrize(
    ("planned", "now", "devices", "expected"),
    [
        pytest.param(claim(), claim(version=2, labels={"a": "b"}), ("a",), "", id="still-free"),
        pytest.param(claim(), claim(devices=("a",)), ("a",), "", id="own-write-got-through"),
        pytest.param(claim(), claim(devices=("b",)), ("a",), "got allocated elsewhere", id="allocated"),
        pytest.param(claim(), claim(uid="new"), ("a",), "got deleted", id="made-again"),
        pytest.param(claim(devices=("a",)), claim(devices=("a",), users=("x",)), (), "", id="still-allocated"),
        pytest.param(claim(devices=("a",)), claim(), (), "got deallocated elsewhere", id="deallocated"),
        pytest.param(claim(devices=("a",)), claim(devices=("b",)), (), "got deallocated elsewhere", id="reallocated"),
    ],
)
def test_what_a_conflict_means(
    planned: ResourceClaim, now: ResourceClaim, devices: tuple[str, ...], expected: str
) -> None:
    allocation = claim(devices=devices).status.allocation
    if not expected:
        check_unchanged(planned, now, allocation)
        return
    with pytest.raises(ClaimChangedError, match=expected):
        check_unchanged(planned, now, allocation)


@pytest.mark.behaviour("SP-103")
def test_a_reservation_is_made_once() -> None:
    once = taken(claim(devices=("a",)), None, reservation_of(pod()))
    assert [user.uid for user in once.status.reserved_for] == ["pod"]
    assert taken(once, None, reservation_of(pod())) == once


@pytest.mark.behaviour("SP-98")
def test_who_keeps_a_claim_from_being_freed() -> None:
    assert may_free(claim(devices=("a",)), pod())
    assert may_free(claim(devices=("a",), users=("pod",)), pod())
    assert not may_free(claim(devices=("a",), users=("pod", "other")), pod())
    assert not may_free(claim(), pod())


def test_only_a_refusal_says_that_nothing_was_written() -> None:
    place = RESOURCE_CLAIMS.group_resource
    assert is_refusal(ConflictError(place, "x", "y"))
    assert is_refusal(NotFoundError(place, "x"))
    assert not is_refusal(ServiceUnavailableError("x"))
    assert is_not_executed(ConflictError(place, "x", "y"))
    assert not is_not_executed(ServiceUnavailableError("x"))


def test_what_a_full_store_refused_was_not_written_but_can_be_repeated() -> None:
    received = error_from_status(InsufficientStorageError("x").status())
    assert is_not_executed(received)
    assert not is_refusal(received)


def test_a_proxy_without_space_does_not_say_that_nothing_was_written() -> None:
    """Envoy answers so when it has no space to repeat a request that it has passed on before."""
    answer = read_failure(507, b"exceeded request buffer limit while retrying upstream", "")
    assert answer.code == 507
    assert not is_not_executed(answer)
