"""Simulated nodes: the agent's own code by the thousand, on one informer, with containers that exist in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from dray.api.types.core_v1 import Pod
from dray.client.events import ObjectReference, Source
from dray.client.interface import Client
from dray.client.loop import Informers
from dray.client.recorder.loop import WARNING, EventRecorder
from dray.lib.clock import Clock
from dray.node.agent.loop import PodAgent
from dray.node.agent.parts import NodeFacts, Parts
from dray.node.agent.probes.http import Asker
from dray.node.agent.registration.document import Machine, NodeSpec
from dray.node.agent.registration.loop import NodeRegistration
from dray.node.agent.reporting.loop import PODS, StatusReporter
from dray.node.runtimes.simulated.memory import SimulatedPods, SimulatedRuntime
from dray.runtime.tasks import TaskGroup

# Far longer than a real node's: a thousand nodes must not be a hundred writes a second.
LEASE_SECONDS: Final = 240
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

    def event_at(self, about: ObjectReference, event_type: str, reason: str, message: str) -> None:
        """Tell something of an object."""
        if event_type == WARNING:
            self._recorder.event_at(about, event_type, reason, message)


class SimulatedNodes:
    """All simulated nodes of a process."""

    def __init__(self, client: Client, clock: Clock, simulation: Simulation) -> None:
        self._client = client
        self._clock = clock
        self._recorder = EventRecorder(client, clock, Source("kubelet"))
        self._reporter = StatusReporter(client, clock, STATUS_WORKERS)
        self._registrations: list[NodeRegistration] = []
        self._agents: dict[str, PodAgent] = {}
        for number in range(simulation.count):
            self._add(simulation, f"{simulation.prefix}{number}", number)

    def _add(self, simulation: Simulation, name: str, number: int) -> None:
        address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        machine = Machine(
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
        parts = Parts(
            self._clock,
            runtime,
            SimulatedPods(),
            self._reporter,
            QuietRecorder(self._recorder),
            Asker(runtime),
        )

        def facts() -> NodeFacts:
            return NodeFacts(name, (address,), registration.labels, registration.allocatable)

        self._registrations.append(registration)
        self._agents[name] = PodAgent(facts, parts)

    async def run(self, registered: asyncio.Event | None = None) -> None:
        """Register all nodes and run their Pods until cancelled."""
        for agent in self._agents.values():
            await agent.start()
        await self._each(NodeRegistration.register)
        if registered is not None:
            registered.set()
        informers = Informers(self._client, self._clock, random.Random())  # noqa: S311 - spreads load, guards nothing
        informers.informer(PODS).add_handler(self._pod_changed)
        try:
            async with TaskGroup("simulated nodes") as group:
                group.spawn(self._recorder.run(), "events")
                group.spawn(self._reporter.run(), "status")
                group.spawn(self._renew_leases(), "leases")
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

    async def _renew_leases(self) -> None:
        """One after the other, so that the writes are spread over the whole interval."""
        await self._each(NodeRegistration.renew_once)
        pause = LEASE_SECONDS / 4 / max(len(self._registrations), 1)
        while True:
            for registration in self._registrations:
                await self._clock.sleep(pause)
                await registration.renew_once()

    async def _each(self, work: Callable[[NodeRegistration], Awaitable[None]]) -> None:
        limit = asyncio.Semaphore(REGISTRATIONS_AT_ONCE)

        async def one(registration: NodeRegistration) -> None:
            async with limit:
                await work(registration)

        await asyncio.gather(*(one(registration) for registration in self._registrations))
