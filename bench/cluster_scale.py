"""How the cost of a whole cluster grows with the number of nodes: processor time, memory, watch traffic and disk.

A process creates the objects of a cluster and ends. Another one starts from the database, as after a restart, and
places Pods with one device each: once without node agents, once while each node has a watch for its Pods. Nothing uses
HTTP or TLS; bytes are those of the JSON that a client would receive.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from bench import device_objects as made
from bench import workloads
from bench.cluster import Counted, cluster, create_all, for_all, until_quiet
from bench.scheduler import Measured, Run, peak_megabytes
from bench.workloads import Workload
from dray.api.document import Document, GroupVersion
from dray.api.raw_numbers import fragment
from dray.client.in_process import in_process_client
from dray.client.interface import (
    Client,
    ListOptions,
    LocalRequest,
    LocalServer,
    WatchBatch,
    WatchOptions,
    unstructured,
)
from dray.runtime.tasks import TaskGroup

DEVICES: Final = 8
PODS: Final = 1000
# In both runs.
PLACED: Final = 2 * PODS
RENEWALS: Final = 1000
SCHEDULER: Final = "system:kube-scheduler"
CONTROLLERS: Final = "system:kube-controller-manager"
AGENTS: Final = "system:node"
_LEASES: Final = unstructured(GroupVersion("coordination.k8s.io", "v1"), "leases", "Lease")
_LEASE_NAMESPACE: Final = "kube-node-lease"


@dataclass(slots=True)
class Traffic:
    """What watches have brought."""

    events: int = 0
    bytes: int = 0


class WatchTraffic(Counted):
    """Also counts what lists and watches bring to each component; all agents count as one."""

    def __init__(self, server: LocalServer) -> None:
        super().__init__(server)
        # Bytes of lists and of watch events before the first `start`, by component.
        self.initial: Counter[str] = Counter()
        # The watch events since `start` that `stop` has still to encode, which takes processor time.
        self._kept: list[tuple[str, WatchBatch]] = []
        self._started = asyncio.Event()

    async def handle(self, request: LocalRequest) -> Document:
        """Count the request, and the bytes of a list."""
        answer = await super().handle(request)
        if request.verb == "list":
            self.initial[component(request.user)] += _size(answer)
        return answer

    async def watch(self, request: LocalRequest) -> AsyncIterator[WatchBatch]:
        """Forward the request, and count what the watch brings."""
        return self._batches(component(request.user), await super().watch(request))

    async def _batches(self, user: str, batches: AsyncIterator[WatchBatch]) -> AsyncIterator[WatchBatch]:
        try:
            async for batch in batches:
                if self._started.is_set():
                    self._kept.append((user, batch))
                else:
                    self.initial[user] += _traffic([batch]).bytes
                yield batch
        finally:
            close = getattr(batches, "aclose", None)
            if close is not None:
                await close()

    def start(self) -> None:
        """Keep watch events from now on."""
        self._started.set()

    def stop(self) -> dict[str, Traffic]:
        """Return what watches have brought to each component since `start`."""
        self._started.clear()
        kept = self._kept[:]
        self._kept.clear()
        return {user: _traffic(batch for by, batch in kept if by == user) for user in {user for user, _ in kept}}


def component(user: str) -> str:
    """Return the name under which the traffic of a user is counted."""
    return AGENTS if user.startswith(f"{AGENTS}:") else user


def _traffic(batches: Iterable[WatchBatch]) -> Traffic:
    """Count the events and the bytes of the lines in which the API server sends them."""
    found = Traffic()
    for batch in batches:
        for kind, document in batch:
            if kind != "BOOKMARK":
                found.events += 1
                found.bytes += _size({"type": kind, "object": document}) + 1
    return found


def _size(document: Document) -> int:
    return len(orjson.dumps(document, default=fragment))


class TrafficRun(Run):
    """A run that counts watch traffic from the first Pod on."""

    def __init__(self, workload: Workload, client: Client, counted: WatchTraffic) -> None:
        super().__init__(workload, client, counted)
        self._traffic = counted

    async def _all(self) -> None:
        self._traffic.start()
        await super()._all()


def workload_of(nodes: int, first_pod: int = 0) -> Workload:
    """Return a cluster of this number of nodes, and Pods with one device each."""
    return Workload(
        f"{nodes} nodes",
        nodes,
        PODS,
        lambda number: made.device_pod(first_pod + number),
        devices=DEVICES,
        requests=made.ONE_DEVICE,
    )


async def prepare(nodes: int, data_dir: str) -> dict[str, Any]:
    """Create the objects of a cluster, and let the controllers process them."""
    async with cluster(partial(_create, nodes=nodes), data_dir=data_dir) as (client, _):
        return {"lease_ms": await _renew_leases(client, min(nodes, RENEWALS))}


async def _create(client: Client, nodes: int) -> None:
    await workloads.prepare(client, workload_of(nodes))
    await create_all(client, ((_LEASES, _lease(number)) for number in range(nodes)))


async def measure(nodes: int, data_dir: str) -> dict[str, Any]:
    """Place Pods in a cluster that `prepare` has created, in this process."""
    started = time.process_time()
    async with cluster(_nothing, data_dir=data_dir, counted_by=WatchTraffic) as (client, traffic):
        assert isinstance(traffic, WatchTraffic)
        found: dict[str, Any] = {"nodes": nodes, "start_seconds": time.process_time() - started}
        found["initial_bytes"] = dict(traffic.initial)
        written = _written_bytes()
        alone = await TrafficRun(workload_of(nodes), client, traffic).measure()
        await until_quiet(client)
        found["written_bytes"] = (_written_bytes() - written) / PODS
        found |= _row(alone) | {"traffic": _per_pod(traffic.stop())}
        found["agents"] = await _with_agents(nodes, client, traffic)
    return found


async def _nothing(_client: Client) -> None:
    """Create nothing."""


def _row(measured: Measured) -> dict[str, Any]:
    return {
        "ms": 1000 * measured.processor_seconds / PODS,
        "seconds": measured.seconds,
        "megabytes": peak_megabytes(),
        "requests": measured.requests.total() / PODS,
    }


def _per_pod(traffic: dict[str, Traffic]) -> dict[str, dict[str, float]]:
    return {user: {"events": each.events / PODS, "bytes": each.bytes / PODS} for user, each in traffic.items()}


async def _with_agents(nodes: int, client: Client, traffic: WatchTraffic) -> dict[str, Any]:
    """Place as many Pods again, while each node has a watch for its Pods."""
    async with TaskGroup("agents") as group:
        opened = asyncio.Semaphore(0)
        version = (await client.list(made.PODS)).resource_version
        for number in range(nodes):
            group.spawn(_agent(traffic, number, version, opened), f"agent {number}")
        for _ in range(nodes):
            await opened.acquire()
        measured = await TrafficRun(workload_of(nodes, PODS), client, traffic).measure()
        await until_quiet(client)
        found = _row(measured) | {"traffic": _per_pod(traffic.stop())}
        await group.cancel()
    return found


async def _agent(server: LocalServer, number: int, version: str, opened: asyncio.Semaphore) -> None:
    """Watch the Pods of one node, as its agent does."""
    name = f"node-{number}"
    client = in_process_client(server, user=f"{AGENTS}:{name}", groups=("system:masters",))
    options = WatchOptions(field_selector=f"spec.nodeName={name}", resource_version=version)
    async with aclosing(client.watch_batches(made.PODS, "", options)) as batches:
        await anext(batches)
        opened.release()
        async for _ in batches:
            pass


async def _renew_leases(client: Client, count: int) -> float:
    """Return the processor time of one renewal of a node's Lease, in milliseconds."""
    leases = (await client.list(_LEASES, _LEASE_NAMESPACE, ListOptions(limit=count))).items
    used = time.process_time()
    await for_all(leases, lambda lease: _renew_lease(client, lease))
    return 1000 * (time.process_time() - used) / count


async def _renew_lease(client: Client, lease: Document) -> None:
    """Update a Lease, as its agent does."""
    spec = lease["spec"] | {"renewTime": "2026-01-01T00:00:10.000000Z"}
    await client.update(_LEASES, lease | {"spec": spec})


def _lease(number: int) -> Document:
    name = f"node-{number}"
    spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"}
    return {"metadata": {"name": name, "namespace": _LEASE_NAMESPACE}, "spec": spec}


# --- The disk. ---


def _written_bytes() -> int:
    """Return what this process has written to disk."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    raise SystemExit("the kernel does not tell what was written")


def database_bytes(data_dir: str) -> int:
    """Return the size of the database, whose process has ended."""
    return sum(file.stat().st_size for file in Path(data_dir).glob("state.db*"))


def content_bytes(data_dir: str) -> float:
    """Return the bytes of the newest revisions in the namespace of the Pods, for one Pod."""
    newest: dict[str, int] = {}
    with closing(sqlite3.connect(Path(data_dir) / "state.db")) as connection:
        rows = "SELECT key, type, length(key) + length(value) FROM log WHERE key LIKE '%/default/%' ORDER BY revision"
        for key, put, size in connection.execute(rows):
            newest[key] = size if put else 0
    return sum(newest.values()) / PLACED
