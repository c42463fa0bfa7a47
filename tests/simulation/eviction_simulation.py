"""Nodes that die and live on, with every fault between them and the controllers, in virtual time from one seed.

Whatever happens to requests, events and controllers: no Pod of a node that keeps sending heartbeats is taken from it,
and every Pod of a node that died goes exactly once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any

from dray.api.document import Document
from dray.api.errors import APIError
from dray.client.in_process import InProcessTransport
from dray.client.interface import LocalRequest, WatchBatch
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.node_lifecycle.reconciler import NodeLifecycleController
from dray.controllers.node_lifecycle.zones import Rates
from dray.controllers.pod_garbage_collector.reconciler import PodGarbageCollector
from dray.controllers.reconciler import ControllerContext
from dray.controllers.taint_eviction.reconciler import TaintEvictionController
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics
from dray.sim.replica.virtual_time import LoopClock
from tests.conformance.evictions.cluster import LEASE_NAMESPACE, NODES, PODS, TEAM, Cluster
from tests.in_process_server import in_process_server
from tests.simulation.network import FaultRates
from tests.simulation.processes import Process

NODE_COUNT = 6
PODS_PER_NODE = 2
HEARTBEAT_SECONDS = 10.0
ACTIONS = 12
HEAL_SECONDS = 600.0
FAST = Rates(primary=1.0)
WAIT = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 20}
    for key in ("not-ready", "unreachable")
]


def controllers(client: RestClient, rng: random.Random, clock: Clock) -> list[Coroutine[Any, Any, Any]]:
    """One life of the controller manager."""
    metrics = Metrics()
    informers = SharedInformerFactory(client, clock, rng)
    parts = (
        NodeLifecycleController(ControllerContext(client, informers, clock, metrics=metrics), rates=FAST),
        TaintEvictionController(ControllerContext(client, informers, clock, metrics=metrics)),
        PodGarbageCollector(ControllerContext(client, informers, clock, metrics=metrics)),
    )
    return [informers.run(), *(part.run() for part in parts)]


class Witness:
    """The API server, and a note of every Pod that is deleted."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        # Uid -> how often its deletion began.
        self.deletions: dict[str, int] = {}
        self.owners: dict[str, str] = {}

    async def handle(self, request: LocalRequest) -> Document:
        if request.resource != "pods" or request.verb != "delete":
            return await self._inner.handle(request)  # type: ignore[no-any-return]
        before = await self._pod(request)
        answer: Document = await self._inner.handle(request)
        if before is not None and "deletionTimestamp" not in before["metadata"]:
            uid = before["metadata"]["uid"]
            self.deletions[uid] = self.deletions.get(uid, 0) + 1
            self.owners[uid] = before["spec"]["nodeName"]
        return answer

    async def _pod(self, request: LocalRequest) -> Document | None:
        look = LocalRequest(
            user="eyes",
            groups=("system:masters",),
            verb="get",
            version="v1",
            resource="pods",
            namespace=request.namespace,
            name=request.name,
        )
        with suppress(APIError):
            return await self._inner.handle(look)  # type: ignore[no-any-return]
        return None

    async def watch(self, request: LocalRequest) -> AsyncIterator[WatchBatch]:
        stream: AsyncIterator[WatchBatch] = await self._inner.watch(request)
        return stream


class EvictionSimulation:
    """One run."""

    def __init__(self, seed: int, *, rates: FaultRates | None = None, actions: int = ACTIONS) -> None:
        self._rng = random.Random(seed)
        self.rates = rates or FaultRates(heartbeat_lost=0.2)
        self._actions = actions
        self.dead: set[str] = set()
        self.story = self.rates.story

    async def run(self) -> None:
        async with in_process_server(LoopClock(), self._fork(), TEAM, LEASE_NAMESPACE, "default") as inner:
            witness = Witness(inner)
            user = RestClient(InProcessTransport(inner, user="user", groups=("system:masters",), user_agent="user"))
            simulation = Cluster(user, Metrics())
            await self._create_objects(simulation)
            process = Process("controllers", controllers, witness, self._fork(), self.rates)
            process.start()
            kubelets = [asyncio.ensure_future(self._kubelet(simulation, name)) for name in sorted(simulation.living)]
            try:
                await self._run_workload(simulation, process, witness)
                self.rates.on = False
                await self._stop_faults(simulation, witness)
            finally:
                for task in kubelets:
                    task.cancel()
                await asyncio.gather(*kubelets, return_exceptions=True)
                if process.alive:
                    await process.end()
            assert not process.failures()

    def _fork(self) -> random.Random:
        return random.Random(self._rng.random())

    async def _create_objects(self, simulation: Cluster) -> None:
        for number in range(NODE_COUNT):
            name = f"n{number}"
            await simulation.node(name)
            for index in range(PODS_PER_NODE):
                await simulation.pod(f"{name}-{index}", name, ready=True, tolerations=WAIT)

    async def _kubelet(self, simulation: Cluster, name: str) -> None:
        """Heartbeats with delays and losses, but never so many that the node would be dead."""
        rng = self._fork()
        skipped = 0
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS * rng.uniform(0.5, 1.1))
            if name in self.dead:
                return
            # At most two in a row are lost: 33 s of silence, and what the way adds.
            skipped = skipped + 1 if skipped < 2 and self.rates.happens("heartbeat_lost", rng) else 0
            if skipped:
                continue
            await simulation.renew(name)
            node = await simulation.user.get(NODES, name)
            if any(item["type"] == "Ready" and item["status"] != "True" for item in node["status"]["conditions"]):
                await simulation.report(name)

    async def _run_workload(self, simulation: Cluster, process: Process, witness: Witness) -> None:
        for _ in range(self._actions):
            await asyncio.sleep(self._rng.uniform(5, 60))
            # Never the last two: with nothing well, nothing is emptied.
            if len(self.dead) < NODE_COUNT // 2 and self._rng.random() < 0.5:
                name = self._rng.choice(sorted(simulation.living - self.dead))
                self.dead.add(name)
                simulation.living.discard(name)
            if self.rates.crash and self._rng.random() < 0.3:
                process.crash()
            self._check(witness)

    async def _stop_faults(self, simulation: Cluster, witness: Witness) -> None:
        """Every Pod of a dead node is on its way out, and stays there: nobody is left to finish it."""
        deadline = asyncio.get_running_loop().time() + HEAL_SECONDS
        while not await self._all_gone(simulation):
            assert asyncio.get_running_loop().time() < deadline, f"still there: {await self._left(simulation)}"
            await asyncio.sleep(5)
        await asyncio.sleep(100)
        self._check(witness)
        # An eviction that had begun is not begun again.
        assert set(witness.deletions.values()) <= {1}
        assert len(witness.deletions) == PODS_PER_NODE * len(self.dead)

    def _check(self, witness: Witness) -> None:
        wronged = set(witness.owners.values()) - self.dead
        assert not wronged, f"Pods were taken from healthy nodes: {sorted(wronged)}"

    async def _left(self, simulation: Cluster) -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in (await simulation.user.list(PODS, TEAM)).items
            if pod["spec"]["nodeName"] in self.dead and "deletionTimestamp" not in pod["metadata"]
        ]

    async def _all_gone(self, simulation: Cluster) -> bool:
        return not await self._left(simulation)
