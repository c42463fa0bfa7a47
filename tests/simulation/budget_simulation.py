"""Evictions within a disruption budget, with every fault between its controller and the API server, from one seed.

Whatever happens to requests, events and the controllers: no accepted eviction takes a Pod that the budget needs, as far
as the controller knew when it counted. The API server charges evictions to that count and does not know which of its
Pods were lost in another way since: the ReplicaSet deleted one too many, or one failed.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Coroutine
from typing import Any, NamedTuple

from dray.api.disruption import is_ready, needs_no_budget
from dray.api.document import Document, GroupVersion
from dray.api.types.core_v1 import Pod
from dray.client.interface import LocalRequest, unstructured
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.disruption.plan import count_healthy
from dray.controllers.disruption.reconciler import DisruptionController
from dray.controllers.reconciler import ControllerContext
from dray.controllers.replica_set.reconciler import ReplicaSetController
from dray.lib.clock import Clock
from tests.simulation.network import FaultRates
from tests.simulation.workload_simulation import (
    PODS,
    REPLICA_SETS,
    TEAM,
    CheckedServer,
    ControllerProgram,
    WorkloadSimulation,
    template,
)

BUDGETS = unstructured(GroupVersion("policy", "v1"), "poddisruptionbudgets", "PodDisruptionBudget")
ACTIONS = 60
REPLICAS = 6
UNAVAILABLE_MAX = 2
LABELS = {"app": "web"}


class NotingDisruptionController(DisruptionController):
    """Notes which Pods it has counted as healthy for each status that it writes."""

    def __init__(self, context: ControllerContext, counts: dict[str, frozenset[str]]) -> None:
        super().__init__(context)
        self._counts = counts
        self._counted: frozenset[str] = frozenset()

    async def _scale(self, budget: Document, pods: list[Pod]) -> int:
        self._counted = frozenset(pod.metadata.uid or "" for pod in pods if count_healthy([pod], {}))
        return await super()._scale(budget, pods)

    async def _write(self, budget: Document, status: Document) -> None:
        self._counts[count_key({**budget, "status": status})] = self._counted
        await super()._write(budget, status)


def count_key(budget: Document) -> str:
    """Return what tells the writes of a status apart; of those with the same version, only one is accepted."""
    return json.dumps([budget["metadata"]["resourceVersion"], budget["status"]], sort_keys=True)


class BudgetProgram(ControllerProgram):
    """The process that crashes."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, frozenset[str]] = {}

    def __call__(self, client: RestClient, rng: random.Random, clock: Clock) -> list[Coroutine[Any, Any, Any]]:
        informers = SharedInformerFactory(client, clock, rng)
        context = ControllerContext(client, informers, clock, rng=rng)
        counting = NotingDisruptionController(context, self.counts)
        return [informers.run(), ReplicaSetController(context).run(), counting.run()]


class JudgedServer(CheckedServer):
    """Follows which count the budget has; accepted evictions are judged by it and by the Pods of the moment before."""

    def __init__(self, inner: Any, simulation: BudgetSimulation) -> None:
        super().__init__(inner, simulation)
        self._budgets = simulation

    async def handle(self, request: LocalRequest) -> Document:
        evicts = (request.resource, request.subresource, request.verb) == ("pods", "eviction", "create")
        counts = (request.resource, request.subresource) == ("poddisruptionbudgets", "status")
        # Before the server changes it.
        key = count_key(request.body) if counts and isinstance(request.body, dict) else ""
        judged = await self._budgets.judge(request.name) if evicts else None
        answer = await super().handle(request)
        if key:
            self._budgets.counted = self._budgets.program.counts[key]
        if judged is not None:
            self._budgets.accept(judged)
        return answer


def is_terminating(pod: Document) -> bool:
    """Return whether the Pod is being deleted."""
    return "deletionTimestamp" in pod["metadata"]


class Judged(NamedTuple):
    """An eviction before it was accepted."""

    uid: str
    # What is wrong if it is accepted; empty if nothing is.
    objection: str


class BudgetSimulation(WorkloadSimulation):
    """A ReplicaSet, its budget, and a user who drains."""

    def __init__(self, seed: int, *, rates: FaultRates | None = None, actions: int = ACTIONS) -> None:
        super().__init__(seed, rates=rates, actions=actions)
        self.program: BudgetProgram = BudgetProgram()
        # The healthy Pods of the count that the budget's status has, and the accepted evictions; by uid.
        self.counted: frozenset[str] = frozenset()
        self._evicted: set[str] = set()

    def _server(self, inner: Any) -> CheckedServer:
        return JudgedServer(inner, self)

    async def _create_objects(self) -> None:
        spec = {"replicas": REPLICAS, "selector": {"matchLabels": LABELS}, "template": template("web")}
        await self.user.create(REPLICA_SETS, {"metadata": {"name": "web", "namespace": TEAM}, "spec": spec})
        budget = {"selector": {"matchLabels": LABELS}, "maxUnavailable": UNAVAILABLE_MAX}
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

    async def judge(self, name: str) -> Judged | None:
        """Judge the eviction of a Pod in case that it is accepted now; None if there is no such Pod."""
        pods = await self._pods()
        pod = next((item for item in pods if item["metadata"]["name"] == name), None)
        if pod is None:
            return None
        uid: str = pod["metadata"]["uid"]
        if needs_no_budget(pod) or not is_ready(pod):
            return Judged(uid, "")
        healthy = {item["metadata"]["uid"] for item in pods if is_ready(item) and not is_terminating(item)}
        lost = self.counted - healthy - self._evicted
        is_needed = len(healthy) + len(lost) <= REPLICAS - UNAVAILABLE_MAX
        text = f"{name} is evicted with {len(healthy)} healthy Pods; {len(lost)} were lost since the count"
        return Judged(uid, text if is_needed else "")

    def accept(self, judged: Judged) -> None:
        """Note an eviction that was accepted."""
        self.rates.paths["eviction"] += 1
        self._evicted.add(judged.uid)
        if judged.objection and self.violation is None:
            self.violation = AssertionError(judged.objection)

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
        assert numbers == [REPLICAS, REPLICAS, REPLICAS - UNAVAILABLE_MAX, UNAVAILABLE_MAX], status
        assert "disruptedPods" not in status, status
