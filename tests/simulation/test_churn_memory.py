"""Memory under churn: Pods with claims come and go for ten virtual minutes, and nothing of them stays.

What is kept for a time (Events, old revisions) or up to a number (what the event recorder compares with) is short and
small here. In a cluster with the default hour and 4,096 objects, memory rises until both are reached, and no further.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import pytest

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.apiserver.catalog import Catalog
from dray.apiserver.composition import running_server
from dray.apiserver.in_process import fill_store, in_process_config
from dray.apiserver.local_transport import LocalTransport
from dray.apiserver.registry import builtin
from dray.client import event_recorder
from dray.client.in_process import in_process_client
from dray.client.interface import Client
from dray.client.resources import EVENTS, PODS, REPLICA_SETS, RESOURCE_CLAIMS
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.garbage_collector.reconciler import GarbageCollector
from dray.controllers.reconciler import ControllerContext
from dray.controllers.resource_claim.reconciler import ResourceClaimController
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup
from dray.scheduler.config import SchedulerConfig
from dray.scheduler.registry import BUILT_IN
from dray.scheduler.scheduler import Scheduler
from dray.sim.replica.contents import contents
from dray.sim.replica.kubelet import SimulatedKubelets
from dray.sim.replica.virtual_time import LoopClock, run_virtually
from dray.sim.snapshot import Snapshot
from dray.store.memory import MemoryStore
from dray.store.state import CompactionPolicy
from tests.unit.sim.cluster import GPU, device, device_class, resource_slice

NODES: Final = 4
EVENT_TTL_SECONDS: Final = 60.0
REVISION_SECONDS: Final = 30.0
RECORDED_MAX: Final = 64
LIVE_PODS: Final = 20
# When the objects are counted: after what is kept has reached its limits, and again.
WARM_SECONDS, END_SECONDS = 300, 600
# Pods and Events that happen to be there differ a little; a leak of one object per Pod is 300. Of Python's own types,
# the collector and memos keep a varying number; what is kept of one Pod has more than two.
GROWTH_MAX: Final = 150
OF_PYTHON_MAX: Final = 600
# Texts that recur, in an lru_cache with a bound of its own.
MEMOIZED: Final = frozenset({"dray.api.normal_form._Time"})


def node(name: str) -> Document:
    amounts = {"cpu": "64", "memory": "64Gi", "pods": "100"}
    ready = {"type": "Ready", "status": "True"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": [ready]},
    }


def pod(name: str) -> Document:
    container = {"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}
    entry = {"name": "gpu", "resourceClaimTemplateName": "gpu"}
    return {"metadata": {"name": name}, "spec": {"containers": [container], "resourceClaims": [entry]}}


def cluster() -> list[Document]:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpu", "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    names = [f"node-{number}" for number in range(NODES)]
    devices = [device(f"gpu-{number}") for number in range(8)]
    slices = [resource_slice(name, GPU, *devices, nodeName=name) for name in names]
    return [*map(node, names), device_class("gpu", "true"), *slices, template]


@asynccontextmanager
async def running() -> AsyncIterator[Client]:
    """A control plane with simulated nodes; old revisions and Events are removed as in a cluster."""
    clock, rng = LoopClock(datetime(2026, 1, 1, tzinfo=UTC)), random.Random(1)
    store = MemoryStore(CompactionPolicy(age_seconds=REVISION_SECONDS))
    config = replace(in_process_config(store, clock, rng), compaction=True, event_ttl_seconds=EVENT_TTL_SECONDS)
    snapshot = contents(Snapshot.of(cluster()))
    await fill_store(store, Catalog(builtin.endpoints()), snapshot, "2026-01-01T00:00:00Z", rng)
    async with running_server(config) as server, TaskGroup("control plane") as group:
        client = in_process_client(
            LocalTransport(server), user="system:admin", groups=("system:masters",), user_agent="test"
        )
        informers = SharedInformerFactory(client, clock, rng)
        context = ControllerContext(client, informers, clock, gates=FeatureGates(), rng=rng)
        scheduler = Scheduler(
            client, informers, clock, Metrics(), factories=BUILT_IN, config=SchedulerConfig(), features=FeatureGates()
        )
        group.spawn(informers.run(), "informers")
        group.spawn(ResourceClaimController(context).run(), "claims")
        shared = (PODS, REPLICA_SETS, RESOURCE_CLAIMS)
        group.spawn(GarbageCollector(context, shared=shared).run(), "garbage collector")
        group.spawn(SimulatedKubelets(client, informers, clock.now()).run(), "kubelets")
        group.spawn(scheduler.run(), "scheduler")
        await informers.wait_for_sync()
        yield client
        await group.cancel()
    await store.close()


def count_objects() -> Counter[str]:
    gc.collect()
    return Counter(f"{type(item).__module__}.{type(item).__name__}" for item in gc.get_objects())


def is_leak(kind: str, growth: int) -> bool:
    return kind not in MEMOIZED and growth > (GROWTH_MAX if kind.startswith("dray.") else OF_PYTHON_MAX)


def test_nothing_stays_of_pods_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_recorder, "CACHE_MAX", RECORDED_MAX)

    async def main() -> tuple[Counter[str], Counter[str], int, int]:
        counted: dict[int, Counter[str]] = {}
        live: deque[str] = deque()
        async with running() as client:
            for second in range(END_SECONDS + 1):
                if second in (WARM_SECONDS, END_SECONDS):
                    counted[second] = count_objects()
                live.append(f"pod-{second}")
                await client.create(PODS.unstructured, pod(live[-1]), "default")
                if len(live) > LIVE_PODS:
                    await client.delete(PODS, live.popleft(), "default")
                await asyncio.sleep(1)
            events = (await client.list(EVENTS)).items
            placed = [item for item in (await client.list(PODS)).items if item.spec.node_name]
        return counted[WARM_SECONDS], counted[END_SECONDS], len(events), len(placed)

    warm, end, events, placed = run_virtually(main())
    # Otherwise there was no churn.
    assert placed >= LIVE_PODS - 1
    assert events <= 2 * EVENT_TTL_SECONDS
    growth = {kind: count - warm[kind] for kind, count in end.items()}
    assert not {kind: more for kind, more in growth.items() if is_leak(kind, more)}
