"""Evictions within a disruption budget, with every fault between its controller and the API server, from one seed.

Whatever happens to requests, events and the controllers: no accepted eviction takes a Pod that the budget needs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from dray.api.disruption import is_ready, needs_no_budget
from dray.api.document import Document, GroupVersion
from dray.client.interface import LocalRequest, WatchBatch, unstructured
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.disruption.reconciler import DisruptionController
from dray.controllers.reconciler import ControllerContext
from dray.controllers.replica_set.reconciler import ReplicaSetController
from dray.lib.clock import Clock
from tests.simulation.network import FaultRates
from tests.simulation.workload_simulation import PODS, REPLICA_SETS, TEAM, WorkloadSimulation, template

BUDGETS = unstructured(GroupVersion("policy", "v1"), "poddisruptionbudgets", "PodDisruptionBudget")
ACTIONS = 60
REPLICAS = 6
LABELS = {"app": "web"}


def controllers(client: RestClient, rng: random.Random, clock: Clock) -> list[Coroutine[Any, Any, Any]]:
    """One life of the process."""
    informers = SharedInformerFactory(client, clock, rng)
    context = ControllerContext(client, informers, clock, rng=rng)
    return [informers.run(), ReplicaSetController(context).run(), DisruptionController(context).run()]


class EvictionJudge:
    """The API server; accepted evictions are judged by the Pods that were there just before."""

    def __init__(self, inner: Any, simulation: BudgetSimulation) -> None:
        self._inner = inner
        self._simulation = simulation

    async def handle(self, request: LocalRequest) -> Document:
        evicts = (request.resource, request.subresource, request.verb) == ("pods", "eviction", "create")
        objection = await self._simulation.objection(request.name) if evicts else ""
        answer: Document = await self._inner.handle(request)
        if evicts:
            self._simulation.rates.paths["eviction"] += 1
            self._simulation.note(request)
        if objection and self._simulation.violation is None:
            self._simulation.violation = AssertionError(objection)
        return answer

    async def watch(self, request: LocalRequest) -> AsyncIterator[WatchBatch]:
        stream: AsyncIterator[WatchBatch] = await self._inner.watch(request)
        return stream


class BudgetSimulation(WorkloadSimulation):
    """A ReplicaSet, its budget, and a user who drains."""

    def __init__(self, seed: int, *, rates: FaultRates | None = None, actions: int = ACTIONS) -> None:
        super().__init__(seed, rates=rates, actions=actions)
        self.program = controllers  # type: ignore[assignment]

    def _client(self, server: Any, name: str) -> RestClient:
        return super()._client(EvictionJudge(server, self) if name == "user" else server, name)

    async def _create_objects(self) -> None:
        spec = {"replicas": REPLICAS, "selector": {"matchLabels": LABELS}, "template": template("web")}
        await self.user.create(REPLICA_SETS, {"metadata": {"name": "web", "namespace": TEAM}, "spec": spec})
        budget = {"selector": {"matchLabels": LABELS}, "maxUnavailable": 2}
        await self.user.create(BUDGETS, {"metadata": {"name": "web", "namespace": TEAM}, "spec": budget})

    async def _step(self, number: int) -> None:
        if self.rates.crash and self._rng.random() < 0.05:
            self.process.crash()
            return
        names = [pod["metadata"]["name"] for pod in await self._pods()]
        for name in self._rng.sample(names, min(len(names), 3)):
            await self._evict(name)

    async def _evict(self, name: str) -> None:
        await self.user.create_subresource(PODS, name, TEAM, "eviction", {"metadata": {"name": name}})

    async def objection(self, name: str) -> str:
        """Return what is wrong with the eviction if it is accepted now; empty if nothing is."""
        pods = await self._pods()
        pod = next((item for item in pods if item["metadata"]["name"] == name), None)
        if pod is None or needs_no_budget(pod) or not is_ready(pod):
            return ""
        healthy = [item for item in pods if is_ready(item) and not item["metadata"].get("deletionTimestamp")]
        return f"{name} is evicted with {len(healthy)} healthy Pods" if len(healthy) <= REPLICAS - 2 else ""

    async def check(self) -> None:
        """Nothing of the workloads of the other simulation."""

    async def _stop_faults(self) -> None:
        self.rates.on = False
        await asyncio.sleep(1500)
        self._raise_violation()
        assert self.process.alive
        assert not self.process.failures(), self.process.failures()
        status = (await self.eyes.get(BUDGETS, "web", TEAM))["status"]
        numbers = [status[name] for name in ("expectedPods", "currentHealthy", "desiredHealthy", "disruptionsAllowed")]
        assert numbers == [REPLICAS, REPLICAS, REPLICAS - 2, 2], status
        assert "disruptedPods" not in status, status
