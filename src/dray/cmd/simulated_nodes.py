"""Simulated nodes: the agent's own code by the thousand, on one informer, with containers that exist in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from dray.api.document import Document
from dray.api.types.core_v1 import Pod
from dray.client.event_recorder import WARNING, EventRecorder, ObjectReference, Source
from dray.client.interface import Client
from dray.client.objects import key_of
from dray.client.resources import PODS
from dray.client.shared_informers import SharedInformerFactory
from dray.lib.clock import Clock
from dray.node.agent.node_object import MachineInfo, NodeSpec
from dray.node.agent.node_registration import NODES, RETRY_SECONDS, NodeRegistration
from dray.node.agent.pod_worker import Dependencies, NodeInfo
from dray.node.agent.pod_workers import PodWorkers
from dray.node.agent.probes.prober import Prober
from dray.node.agent.status_manager import StatusManager
from dray.node.runtimes.simulated import SimulatedPodSetup, SimulatedRuntime
from dray.runtime.tasks import TaskGroup

# Longer than a real node's, since a thousand nodes must not be a hundred writes a second; a quarter of it, the time
# between two renewals, is half of what the node lifecycle controller waits for.
LEASE_SECONDS: Final = 100
REGISTRATIONS_AT_ONCE: Final = 32
STATUS_WORKERS: Final = 16
GIB: Final = 1024**3


@dataclass(frozen=True, slots=True)
class Simulation:
    """How the simulated nodes are."""

    count: int
    prefix: str = "sim-"
    start_seconds: float = 0.0
    cpus: int = 16
    memory_bytes: int = 64 * GIB
    pods_max: int = 110


class QuietRecorder:
    """Tells warnings only: the news of thousands of ordinary starts would be most of the cluster's writes."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def event_for(self, about: ObjectReference, event_type: str, reason: str, message: str) -> None:
        """Tell something of an object."""
        if event_type == WARNING:
            self._recorder.event_for(about, event_type, reason, message)


class SimulatedNodes:
    """All simulated nodes of a process."""

    def __init__(self, client: Client, clock: Clock, simulation: Simulation) -> None:
        self._client = client
        self._clock = clock
        self._recorder = EventRecorder(client, clock, Source("kubelet"))
        self._reporter = StatusManager(client, clock, STATUS_WORKERS)
        self._registrations: dict[str, NodeRegistration] = {}
        # At most one entry for each change that somebody else makes to a Node.
        self._lost: asyncio.Queue[NodeRegistration] = asyncio.Queue()
        self._agents: dict[str, PodWorkers] = {}
        for number in range(simulation.count):
            self._add(simulation, f"{simulation.prefix}{number}", number)

    def _add(self, simulation: Simulation, name: str, number: int) -> None:
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
        registration = NodeRegistration(self._client, self._clock, spec, lease_seconds=LEASE_SECONDS)
        runtime = SimulatedRuntime(self._clock, simulation.start_seconds)
        parts = Dependencies(
            self._clock,
            runtime,
            SimulatedPodSetup(),
            self._reporter,
            QuietRecorder(self._recorder),
            Prober(runtime),
        )

        def facts() -> NodeInfo:
            return NodeInfo(name, (address,), registration.labels, registration.allocatable)

        self._registrations[name] = registration
        self._agents[name] = PodWorkers(facts, parts)

    async def run(self, registered: asyncio.Event | None = None) -> None:
        """Register all nodes and run their Pods until cancelled."""
        for agent in self._agents.values():
            await agent.start()
        await self._each(NodeRegistration.register)
        if registered is not None:
            registered.set()
        informers = SharedInformerFactory(self._client, self._clock, random.Random())  # noqa: S311 - spreads load, guards nothing
        informers.informer(PODS).add_handler(self._pod_changed)
        informers.transformed(NODES, _essence).add_handler(self._node_changed)
        try:
            async with TaskGroup("simulated nodes") as group:
                group.spawn(self._recorder.run(), "events")
                group.spawn(self._reporter.run(), "status")
                group.spawn(self._renew_leases(), "leases")
                group.spawn(self._correct_status(), "node status")
                group.spawn(informers.run(), "informers")
                await group.wait()
        finally:
            for agent in self._agents.values():
                await agent.stop()

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new if new is not None else old
        assert pod is not None
        agent = self._agents.get(pod.spec.node_name or "")
        if agent is not None:
            agent.pod_changed(old, new)

    def _node_changed(self, _old: Document | None, new: Document | None) -> None:
        registration = self._registrations.get(key_of(new).name) if new is not None else None
        if registration is None or new is None:
            return
        registration.observe(new)
        if not _is_ready(new):
            self._lost.put_nowait(registration)

    async def _correct_status(self) -> None:
        """A node that was given up while its heartbeats could not get through says that it lives."""
        while True:
            registration = await self._lost.get()
            await registration.correct_once()
            if not _is_ready(registration.node):
                await self._clock.sleep(RETRY_SECONDS)
                self._lost.put_nowait(registration)

    async def _renew_leases(self) -> None:
        """Spread over the whole interval; what is late goes many at the same time."""
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
            # Also without any node, time passes.
            await self._clock.sleep(interval - (self._clock.monotonic() - started))

    async def _each(self, work: Callable[[NodeRegistration], Awaitable[None]]) -> None:
        limit = asyncio.Semaphore(REGISTRATIONS_AT_ONCE)

        async def one(registration: NodeRegistration) -> None:
            async with limit:
                await work(registration)

        await asyncio.gather(*(one(registration) for registration in self._registrations.values()))


def _essence(node: Document) -> Document:
    """What a registration needs of its Node."""
    metadata = {name: node["metadata"].get(name) for name in ("name", "uid", "resourceVersion", "labels")}
    return {"metadata": metadata, "status": {"conditions": (node.get("status") or {}).get("conditions") or []}}


def _is_ready(node: Document) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in node["status"]["conditions"])
