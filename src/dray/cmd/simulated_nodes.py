"""Simulated nodes: thousands of Pod workers on one informer, with containers that exist only in memory."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dray.api.document import Document
from dray.api.errors import AlreadyExistsError
from dray.api.types.core_v1 import Container, Pod
from dray.client import resources
from dray.client.event_recorder import WARNING, EventRecorder, ObjectReference, Source
from dray.client.interface import Client, Resource
from dray.client.objects import key_of
from dray.client.resources import PODS
from dray.client.shared_informers import SharedInformerFactory
from dray.lib.clock import Clock
from dray.node.agent.dependencies import Dependencies, NodeInfo
from dray.node.agent.node_object import MachineInfo, NodeSpec
from dray.node.agent.node_registration import NODES, RETRY_SECONDS, NodeRegistration, ReportTimes
from dray.node.agent.pod_manager import PodManager
from dray.node.agent.pod_workers import PodWorkers
from dray.node.agent.probes.prober import ProbeHandler, Prober, ProbeResult
from dray.node.agent.status_manager import StatusManager
from dray.node.resource_manager import NodeResources
from dray.node.runtimes.simulated import SimulatedPodSetup, SimulatedRuntime
from dray.runtime.tasks import ChildTasks, TaskGroup
from dray.sim.device_shapes import Wanted, class_documents, slice_documents

DEVICE_CLASSES: Final = resources.DEVICE_CLASSES.unstructured
RESOURCE_SLICES: Final = resources.RESOURCE_SLICES.unstructured
# Longer than a real node's, so that a thousand nodes do not cause a hundred writes per second; a quarter of it, the
# renewal interval, is half of the node lifecycle controller's grace period.
LEASE_SECONDS: Final = 100
REGISTRATIONS_AT_ONCE: Final = 32
STATUS_WORKERS: Final = 16
GIB: Final = 1024**3


@dataclass(frozen=True, slots=True)
class Simulation:
    """The number and the properties of simulated nodes."""

    count: int
    prefix: str = "sim-"
    start_seconds: float = 0.0
    cpus: int = 16
    memory_bytes: int = 64 * GIB
    pods_max: int = 110
    # Nodes that exist already, as in a snapshot: they are simulated with their own names and resources.
    existing: tuple[Document, ...] = ()
    # The devices of each new node.
    devices: tuple[Wanted, ...] = ()


class WarningRecorder:
    """Records Warning events only: events about thousands of normal starts would be most of the cluster's writes."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def event_for(self, about: ObjectReference, event_type: str, reason: str, message: str) -> None:
        """Record an event about an object."""
        if event_type == WARNING:
            self._recorder.event_for(about, event_type, reason, message)


class SimulatedProber(Prober):
    """Finds every container healthy: nothing listens at the addresses of simulated Pods, and others may have them."""

    async def probe(
        self, handler: ProbeHandler, container: Container, container_id: str, address: str, timeout_seconds: float
    ) -> ProbeResult:
        """Succeed at once, without a request."""
        del handler, container, container_id, address, timeout_seconds
        return ProbeResult(healthy=True)


class SimulatedNodes:
    """All simulated nodes of a process."""

    def __init__(self, client: Client, clock: Clock, simulation: Simulation) -> None:
        self._client = client
        self._clock = clock
        self._recorder = EventRecorder(client, clock, Source("kubelet"))
        self._status_manager = StatusManager(client, clock, STATUS_WORKERS)
        self._tasks = ChildTasks("simulated nodes")
        self._registrations: dict[str, NodeRegistration] = {}
        # At most one entry for each change of a Node by another client.
        self._not_ready: asyncio.Queue[NodeRegistration] = asyncio.Queue()
        self._workers: dict[str, PodWorkers] = {}
        self._devices = simulation.devices
        for number in range(simulation.count):
            self._add(simulation, f"{simulation.prefix}{number}", number)
        for number, node in enumerate(simulation.existing, simulation.count):
            status = node.get("status") or {}
            own = NodeResources(status.get("capacity") or {}, status.get("allocatable") or {})
            self._add(simulation, node["metadata"]["name"], number, (own,))

    def _add(self, simulation: Simulation, name: str, number: int, known: Sequence[NodeResources] = ()) -> None:
        address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        machine = MachineInfo(
            hostname=name,
            addresses=(address,),
            architecture="x86_64",
            cpus=simulation.cpus,
            memory_bytes=simulation.memory_bytes,
            disk_bytes=100 * GIB,
            kernel="simulated",
            os_image="simulated",
        )
        spec = NodeSpec(name, machine, "simulated://1.0.0", pods_max=simulation.pods_max)
        registration = NodeRegistration(
            self._client, self._clock, spec, lambda: known, times=ReportTimes(LEASE_SECONDS)
        )
        runtime = SimulatedRuntime(self._clock, simulation.start_seconds)
        dependencies = Dependencies(
            clock=self._clock,
            tasks=self._tasks,
            runtime=runtime,
            pod_setup=SimulatedPodSetup(),
            status_manager=self._status_manager,
            recorder=WarningRecorder(self._recorder),
            prober=SimulatedProber(runtime),
        )

        def node_info() -> NodeInfo:
            return NodeInfo(name, (address,), registration.labels, registration.allocatable)

        self._registrations[name] = registration
        self._workers[name] = PodWorkers(node_info, PodManager(), dependencies)

    async def run(self, registered: asyncio.Event | None = None) -> None:
        """Register all nodes and run their Pods until cancelled."""
        for workers in self._workers.values():
            await workers.start()
        await self._each(NodeRegistration.register)
        if self._devices:
            await self._publish()
        if registered is not None:
            registered.set()
        jitter = random.Random()  # noqa: S311 - spreads load
        informers = SharedInformerFactory(self._client, self._clock, jitter)
        informers.informer(PODS).add_handler(self._pod_changed)
        informers.transformed(NODES, _reduced).add_handler(self._node_changed)
        try:
            async with TaskGroup("simulated nodes") as group:
                group.spawn(self._tasks.supervise(), "pod workers")
                group.spawn(self._recorder.run(), "events")
                group.spawn(self._status_manager.run(), "pod statuses")
                group.spawn(self._renew_leases(), "leases")
                group.spawn(self._correct_status(), "node status")
                group.spawn(informers.run(), "informers")
                await group.wait()
        finally:
            for workers in self._workers.values():
                await workers.stop()

    async def _publish(self) -> None:
        """Create the classes and slices of the devices; those of an earlier run are kept."""
        for document in class_documents(self._devices):
            await _create_once(self._client, DEVICE_CLASSES, document)
        await self._each(self._publish_slices)

    async def _publish_slices(self, registration: NodeRegistration) -> None:
        name, uid = registration.spec.name, registration.node["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid, "controller": True}
        for document in slice_documents(self._devices, name):
            metadata = {**document["metadata"], "ownerReferences": [owner]}
            await _create_once(self._client, RESOURCE_SLICES, {**document, "metadata": metadata})

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new if new is not None else old
        assert pod is not None
        workers = self._workers.get(pod.spec.node_name or "")
        if workers is not None:
            workers.pod_changed(old, new)

    def _node_changed(self, _old: Document | None, new: Document | None) -> None:
        registration = self._registrations.get(key_of(new).name) if new is not None else None
        if registration is None or new is None:
            return
        registration.observe(new)
        if not _is_ready(new):
            self._not_ready.put_nowait(registration)

    async def _correct_status(self) -> None:
        """Report nodes as Ready again that the node lifecycle controller marked as lost."""
        while True:
            registration = await self._not_ready.get()
            await registration.correct_once()
            if not _is_ready(registration.node):
                await self._clock.sleep(RETRY_SECONDS)
                self._not_ready.put_nowait(registration)

    async def _renew_leases(self) -> None:
        """Renew the leases, spread over the interval; overdue renewals run concurrently."""
        every, interval = list(self._registrations.values()), LEASE_SECONDS / 4
        await self._each(NodeRegistration.renew_once)
        while True:
            started, done = self._clock.monotonic(), 0
            while done < len(every):
                due = min(int((self._clock.monotonic() - started) / interval * len(every)), len(every))
                batch = every[done : min(due, done + REGISTRATIONS_AT_ONCE)]
                if not batch:
                    await self._clock.sleep(interval / len(every))
                    continue
                await asyncio.gather(*(registration.renew_once() for registration in batch))
                done += len(batch)
            # Without nodes there is nothing to renew, and the interval still has to pass.
            await self._clock.sleep(interval - (self._clock.monotonic() - started))

    async def _each(self, work: Callable[[NodeRegistration], Awaitable[object]]) -> None:
        limit = asyncio.Semaphore(REGISTRATIONS_AT_ONCE)

        async def one(registration: NodeRegistration) -> None:
            async with limit:
                await work(registration)

        await asyncio.gather(*(one(registration) for registration in self._registrations.values()))


def _reduced(node: Document) -> Document:
    """Return the part of a Node that its registration needs."""
    metadata = {name: node["metadata"].get(name) for name in ("name", "uid", "resourceVersion", "labels")}
    return {"metadata": metadata, "status": {"conditions": (node.get("status") or {}).get("conditions") or []}}


def _is_ready(node: Document) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in node["status"]["conditions"])


async def _create_once(client: Client, resource: Resource[Document], document: Document) -> None:
    with contextlib.suppress(AlreadyExistsError):
        await client.create(resource, document)
