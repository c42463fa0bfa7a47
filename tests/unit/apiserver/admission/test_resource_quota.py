"""Reserving: exactly as much as there is, also for concurrent requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from dray.api.document import Document, GroupResource
from dray.api.errors import ForbiddenError
from dray.api.features import FeatureGates
from dray.apiserver.admission.resource_quota import QuotaEvaluator, Reservation
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.object_cache import DEVICE_CLASSES, QUOTAS, ObjectCache
from dray.apiserver.registry import builtin
from dray.runtime.system import SystemClock
from dray.runtime.tasks import ChildTasks
from dray.store.interface import Entry, KeyNotFoundError
from dray.store.memory import MemoryStore

TEAM = "team"
ENDPOINTS: Mapping[GroupResource, Endpoint] = {
    item.resource: item for item in builtin.endpoints() if item.is_storage_version
}
MAPS = ENDPOINTS[GroupResource("", "configmaps")]
PODS = ENDPOINTS[GroupResource("", "pods")]
CLAIMS = ENDPOINTS[GroupResource("resource.k8s.io", "resourceclaims")]
EVENTS = ENDPOINTS[GroupResource("", "events")]
DEVICES = "gpu.deviceclass.resource.k8s.io/devices"
EXPLICIT = "requests.example.com/gpu"


def quota(name: str, hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> Document:
    return {
        "kind": "ResourceQuota",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": TEAM, "uid": name},
        "spec": {"hard": hard, **spec},
        "status": {"hard": hard, "used": dict.fromkeys(hard, "0") if used is None else used},
    }


def config_map(name: str = "m") -> Document:
    return {"metadata": {"name": name, "namespace": TEAM}}


def pod(name: str = "p", requests: dict[str, str] | None = None, **spec: Any) -> Document:
    amounts = {"requests": requests or {}, "limits": requests or {}}
    return {
        "metadata": {"name": name, "namespace": TEAM, "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "c", "resources": amounts}], **spec},
    }


def claim(name: str = "c", count: int = 1, **metadata: Any) -> Document:
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
    return {
        "metadata": {"name": name, "namespace": TEAM, "uid": f"uid-{name}", **metadata},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }


@dataclass
class Cluster:
    """Servers that share a store; each hears of quotas on its own."""

    store: MemoryStore = field(default_factory=MemoryStore)
    caches: list[ObjectCache] = field(default_factory=lambda: [ObjectCache(), ObjectCache()])
    gates: str = ""

    def __post_init__(self) -> None:
        gates, clock = FeatureGates.parse(self.gates), SystemClock()
        self.tasks = ChildTasks("test")
        self.servers = [QuotaEvaluator(self.store, cache, gates, clock, self.tasks) for cache in self.caches]

    async def add(self, *quotas: Document) -> None:
        for item in quotas:
            await self.put("core/resourcequotas", item)
            for cache in self.caches:
                cache.apply(QUOTAS, item, deleted=False)

    async def put(self, place: str, document: Document) -> None:
        key = f"/registry/{place}/{TEAM}/{document['metadata']['name']}"
        await self.store.create(key, orjson.dumps(document))

    async def used(self, name: str = "q") -> dict[str, str]:
        entry = await self.store.get(f"/registry/core/resourcequotas/{TEAM}/{name}")
        assert entry is not None
        found: dict[str, str] = orjson.loads(entry.value)["status"]["used"]
        return found

    async def reserve(
        self, endpoint: Endpoint, new: Document, old: Document | None = None, *, dry_run: bool = False, server: int = 0
    ) -> Reservation | None:
        return await self.servers[server].reserve(endpoint.resource, TEAM, new, old, dry_run=dry_run)


async def succeeds(write: Any) -> bool:
    try:
        await write
    except ForbiddenError:
        return False
    return True


async def test_of_many_at_once_on_two_servers_exactly_as_many_as_fit_get_in() -> None:
    cluster = Cluster()
    await cluster.add(quota("q", {"count/configmaps": "10"}))
    writes = (cluster.reserve(MAPS, config_map(f"m{i}"), server=i % 2) for i in range(50))
    outcomes = await asyncio.gather(*map(succeeds, writes))
    assert outcomes.count(True) == 10
    assert await cluster.used() == {"count/configmaps": "10"}


async def test_a_request_refused_by_one_quota_reserves_nothing_of_another() -> None:
    cluster = Cluster()
    await cluster.add(quota("a", {"configmaps": "20"}), quota("b", {"count/configmaps": "10"}))
    writes = (cluster.reserve(MAPS, config_map(f"m{i}"), server=i % 2) for i in range(50))
    outcomes = await asyncio.gather(*map(succeeds, writes))
    assert outcomes.count(True) == 10
    assert await cluster.used("a") == {"configmaps": "10"}
    assert await cluster.used("b") == {"count/configmaps": "10"}


async def test_large_requests_do_not_keep_small_ones_out() -> None:
    cluster = Cluster()
    await cluster.add(quota("q", {"requests.cpu": "10"}))
    amounts = ("8", "4", "1", "1")
    writes = (cluster.reserve(PODS, pod(f"p{i}", {"cpu": cpu})) for i, cpu in enumerate(amounts))
    assert await asyncio.gather(*map(succeeds, writes)) == [True, False, True, True]
    assert await cluster.used() == {"requests.cpu": "10"}


async def test_many_writes_at_once_cost_few_swaps() -> None:
    cluster = Cluster()
    await cluster.add(quota("q", {"count/configmaps": "100"}))
    before = await cluster.store.revision()
    await asyncio.gather(*(cluster.reserve(MAPS, config_map(f"m{i}")) for i in range(100)))
    assert await cluster.used() == {"count/configmaps": "100"}
    assert await cluster.store.revision() - before < 10


async def test_a_dry_run_is_judged_but_not_charged() -> None:
    cluster = Cluster()
    await cluster.add(quota("q", {"configmaps": "1"}))
    for _ in range(3):
        await cluster.reserve(MAPS, config_map(), dry_run=True)
    assert await cluster.used() == {"configmaps": "0"}
    await cluster.reserve(MAPS, config_map())
    with pytest.raises(ForbiddenError, match='configmaps "m" is forbidden: exceeded quota: q, requested: configmaps=1'):
        await cluster.reserve(MAPS, config_map(), dry_run=True)


async def test_what_is_given_back_can_be_taken_again() -> None:
    cluster = Cluster()
    await cluster.add(quota("q", {"configmaps": "1"}))
    held = await cluster.reserve(MAPS, config_map())
    assert held is not None
    await cluster.servers[1].release(held)
    assert await cluster.used() == {"configmaps": "0"}
    assert await cluster.reserve(MAPS, config_map()) is not None


async def test_a_caller_that_goes_away_takes_nothing() -> None:
    cluster = Cluster()
    await cluster.add(quota("q", {"configmaps": "1"}))
    gone = asyncio.ensure_future(cluster.reserve(MAPS, config_map()))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert await cluster.reserve(MAPS, config_map("next")) is not None


async def test_a_quota_that_went_meanwhile_limits_nothing() -> None:
    cluster = Cluster()
    await cluster.add(quota("q", {"configmaps": "0"}))
    entry = await cluster.store.get(f"/registry/core/resourcequotas/{TEAM}/q")
    assert entry is not None
    await cluster.store.delete(entry.key, expected_revision=entry.revision)
    held = await cluster.reserve(MAPS, config_map())
    assert held is not None
    assert held.charged == {}


async def test_a_store_failure_reaches_all_waiting_requests() -> None:
    cluster = Cluster()
    await cluster.add(quota("q", {"configmaps": "9"}))

    async def broken(key: str) -> Entry | None:
        raise KeyNotFoundError(key)

    cluster.store.get = broken  # type: ignore[method-assign]
    answers = await asyncio.gather(
        *(cluster.reserve(MAPS, config_map(str(i))) for i in range(3)), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [KeyNotFoundError] * 3


@pytest.mark.parametrize(
    ("endpoint", "document"),
    [
        pytest.param(MAPS, config_map(), id="a kind that no quota limits"),
        pytest.param(EVENTS, {"metadata": {"name": "e", "namespace": TEAM}}, id="events"),
    ],
)
async def test_what_no_quota_cares_for_costs_no_read(endpoint: Endpoint, document: Document) -> None:
    cluster = Cluster()
    await cluster.add(quota("q", {"pods": "0", "count/events": "0"}))
    cluster.store.get = None  # type: ignore[method-assign, assignment]
    assert await cluster.reserve(endpoint, document) is None


async def test_messages_name_what_is_missing_before_what_is_exceeded() -> None:
    cluster = Cluster()
    await cluster.add(quota("a", {"pods": "0"}), quota("b", {"limits.cpu": "1"}))
    with pytest.raises(ForbiddenError) as caught:
        await cluster.reserve(PODS, pod())
    assert caught.value.message == 'pods "p" is forbidden: failed quota: b: must specify limits.cpu for: c'


async def test_usage_that_is_not_counted_yet() -> None:
    cluster = Cluster()
    await cluster.add(quota("q", {"pods": "1"}, used={}))
    with pytest.raises(ForbiddenError) as caught:
        await cluster.reserve(PODS, pod())
    assert caught.value.message == 'pods "p" is forbidden: status unknown for quota: q, resources: pods'


async def test_a_pod_that_comes_into_a_scope_is_charged() -> None:
    cluster = Cluster()
    await cluster.add(quota("q", {"pods": "1"}, scopes=["Terminating"]))
    assert await cluster.reserve(PODS, pod(), pod()) is None
    assert await cluster.reserve(PODS, pod(activeDeadlineSeconds=5), pod()) is not None
    assert await cluster.used() == {"pods": "1"}
    with pytest.raises(ForbiddenError):
        await cluster.reserve(PODS, pod(activeDeadlineSeconds=5), pod())


# --- Devices. ---


@pytest.mark.behaviour("SP-142")
async def test_a_changed_claim_is_charged_for_the_difference() -> None:
    cluster = Cluster()
    await cluster.add(quota("q", {DEVICES: "5"}))
    await cluster.reserve(CLAIMS, claim(count=2))
    assert await cluster.reserve(CLAIMS, claim(count=2, labels={"a": "b"}), claim(count=2)) is None
    await cluster.reserve(CLAIMS, claim(count=5), claim(count=2))
    assert await cluster.used() == {DEVICES: "5"}
    with pytest.raises(ForbiddenError, match=f"exceeded quota: q, requested: {DEVICES}=1, used: {DEVICES}=5"):
        await cluster.reserve(CLAIMS, claim("d"))


def cache_device_class(cluster: Cluster) -> None:
    document = {"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}}
    for cache in cluster.caches:
        cache.apply(DEVICE_CLASSES, document, deleted=False)


@pytest.mark.behaviour("XR-43")
async def test_pods_and_claims_take_devices_from_both_quotas_alike() -> None:
    cluster = Cluster()
    cache_device_class(cluster)
    await cluster.add(quota("q", {DEVICES: "5", EXPLICIT: "5"}))
    await cluster.reserve(PODS, pod(requests={"example.com/gpu": "2"}))
    await cluster.reserve(CLAIMS, claim(count=2))
    assert await cluster.used() == {DEVICES: "4", EXPLICIT: "4"}
    with pytest.raises(ForbiddenError):
        await cluster.reserve(PODS, pod(requests={"example.com/gpu": "2"}))


def special(name: str = "c", count: int = 2) -> Document:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}
    annotations = {"resource.kubernetes.io/extended-resource-claim": "true"}
    return claim(name, count, annotations=annotations, ownerReferences=[owner])


@pytest.mark.behaviour("XR-42")
async def test_the_claim_made_for_a_pod_is_paid_by_the_pod_and_a_second_one_is_not() -> None:
    cluster = Cluster()
    cache_device_class(cluster)
    await cluster.add(quota("q", {DEVICES: "2", EXPLICIT: "2"}))
    running = pod(requests={"example.com/gpu": "2"})
    await cluster.reserve(PODS, running)
    with pytest.raises(ForbiddenError):
        # There is no such Pod in the store yet.
        await cluster.reserve(CLAIMS, special())
    await cluster.put("core/pods", running)
    await cluster.reserve(CLAIMS, special())
    assert await cluster.used() == {DEVICES: "2", EXPLICIT: "2"}
    await cluster.put("resource.k8s.io/resourceclaims", special())
    with pytest.raises(ForbiddenError):
        await cluster.reserve(CLAIMS, special("d"))


@pytest.mark.behaviour("XR-42")
async def test_taking_the_annotation_off_has_to_be_paid() -> None:
    cluster = Cluster()
    cache_device_class(cluster)
    await cluster.add(quota("q", {DEVICES: "2"}))
    running = pod(requests={"example.com/gpu": "2"})
    await cluster.reserve(PODS, running)
    await cluster.put("core/pods", running)
    await cluster.put("resource.k8s.io/resourceclaims", special())
    with pytest.raises(ForbiddenError):
        await cluster.reserve(CLAIMS, claim(count=2), special())
