"""How fast Pods are placed: a real API server (SQLite, full durability) and the scheduler in one process.

`python -m bench.scheduler [PATTERN]` prints a table; each workload is a row of `WORKLOADS`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from bench.rows import Row, Target, percentile, show
from dray.api.document import Document, GroupVersion
from dray.client.interface import Bookmark, Client, Resource, WatchOptions, unstructured
from dray.client.memory import memory_client
from dray.cmd import apiserver
from dray.cmd.scheduler import spawn_scheduler
from dray.cmd.settings import APIServerSettings
from dray.runtime.tasks import TaskGroup
from dray.scheduler.config import SchedulerConfig

CORE = GroupVersion("", "v1")
NODES = unstructured(CORE, "nodes", "Node", namespaced=False)
PODS = unstructured(CORE, "pods", "Pod")
CREATORS = 64
SECONDS_MAX = 300.0

Objects = list[tuple[Resource[Any], Document]]


def node(number: int, **spec: Any) -> Document:
    """A node with room for 110 Pods, in one of three zones."""
    labels = {"kubernetes.io/hostname": f"node-{number}", "topology.kubernetes.io/zone": f"zone-{number % 3}"}
    allocatable = {"cpu": "32", "memory": "128Gi", "ephemeral-storage": "500Gi", "pods": "110"}
    return {
        "metadata": {"name": f"node-{number}", "labels": labels},
        "spec": spec,
        "status": {"allocatable": allocatable, "capacity": allocatable},
    }


def pod(number: int, **spec: Any) -> Document:
    """A small Pod."""
    resources = {"requests": {"cpu": "100m", "memory": "500Mi"}}
    containers = [{"name": "pause", "image": "registry.k8s.io/pause:3.10", "resources": resources}]
    return {"metadata": {"name": f"pod-{number}", "namespace": "default"}, "spec": {"containers": containers, **spec}}


def picky_pod(number: int) -> Document:
    """A Pod that may go to one zone only, and prefers some hosts."""
    zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [f"zone-{number % 3}"]}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}
        }
    }
    return pod(number, affinity=affinity)


@dataclass(frozen=True, slots=True)
class Workload:
    """A cluster and the Pods that come to it."""

    name: str
    nodes: int
    pods: int
    pod: Callable[[int], Document] = pod
    # Further objects, made before the first Pod.
    setup: Callable[[], Objects] = field(default=list)
    target: Target | None = None


WORKLOADS = (
    Workload("plain pods, 100 nodes", 100, 3000, target=Target(500, at_least=True)),
    Workload("plain pods, 1000 nodes", 1000, 3000),
    Workload("plain pods, 5000 nodes", 5000, 2000),
    Workload("node affinity, 1000 nodes", 1000, 2000, picky_pod),
)


@asynccontextmanager
async def cluster(workload: Workload) -> AsyncIterator[Client]:
    """A server with the workload's nodes, and a scheduler."""
    with tempfile.TemporaryDirectory() as folder:
        settings = APIServerSettings(data_dir=str(Path(folder) / "state"), port=0)
        running = await apiserver.start(settings)
        client = memory_client(running.local, user="bench", groups=("system:masters",))
        try:
            account = unstructured(CORE, "serviceaccounts", "ServiceAccount")
            await client.create(account, {"metadata": {"name": "default", "namespace": "default"}})
            objects: Objects = [(NODES, node(number)) for number in range(workload.nodes)]
            await create_all(client, iter([*objects, *workload.setup()]))
            async with TaskGroup("bench") as group:
                own = memory_client(running.local, user="system:kube-scheduler")
                spawn_scheduler(
                    group,
                    own,
                    running.clock,
                    running.metrics,
                    config=SchedulerConfig(),
                    features=settings.feature_gates,
                )
                yield client
                await group.cancel()
        finally:
            await running.stop()


async def create_all(client: Client, objects: Iterator[tuple[Resource[Any], Document]]) -> None:
    """Create with many at the same time."""

    async def work() -> None:
        for resource, document in objects:
            await client.create(resource, document)

    await asyncio.gather(*(work() for _ in range(CREATORS)))


async def measure(workload: Workload) -> list[Row]:
    """Pods bound per second from the first creation on, and how long each waited after its creation."""
    async with cluster(workload) as client:
        created: dict[str, float] = {}
        waited: list[float] = []

        async def watch() -> None:
            page = await client.list(PODS)
            options = WatchOptions(resource_version=page.resource_version)
            async with aclosing(client.watch(PODS, "", options)) as events:
                ready.set()
                async for event in events:
                    assert not isinstance(event, Bookmark)
                    name = event.object["metadata"]["name"]
                    if name not in created:
                        created[name] = time.perf_counter()
                    elif event.object["spec"].get("nodeName"):
                        waited.append(time.perf_counter() - created[name])
                        if len(waited) == workload.pods:
                            return

        ready = asyncio.Event()
        watching = asyncio.create_task(watch())
        await ready.wait()
        started, used = time.perf_counter(), time.process_time()
        pods: Objects = [(PODS, workload.pod(number)) for number in range(workload.pods)]
        await create_all(client, iter(pods))
        creating = time.perf_counter() - started
        await asyncio.wait_for(watching, SECONDS_MAX)
        seconds, used = time.perf_counter() - started, time.process_time() - used
    # On a busy machine the processor time says more than the clock.
    spent = {"creating": f"{creating:.1f}s", "processor": f"{1000 * used / workload.pods:.2f}ms/pod"}
    size = {"pods": workload.pods, "nodes": workload.nodes, **spent}
    return [
        Row(f"scheduler: {workload.name}", workload.pods / seconds, "pods/s", size, workload.target),
        Row(f"scheduler: {workload.name}, p50", 1000 * percentile(waited, 0.5), "ms", {}),
        Row(f"scheduler: {workload.name}, p99", 1000 * percentile(waited, 0.99), "ms", {}),
    ]


def rows(pattern: str = "") -> Iterator[Row]:
    """All measurements whose workload's name has the pattern in it."""
    for workload in WORKLOADS:
        if pattern in workload.name:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                yield from runner.run(measure(workload))


if __name__ == "__main__":
    for each in rows(sys.argv[1] if len(sys.argv) > 1 else ""):
        show(each)
