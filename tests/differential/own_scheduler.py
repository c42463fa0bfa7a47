"""Dray's scheduler with an API server, in this process and in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from unittest import mock

from dray.api.features import FeatureGates
from dray.client.in_process import in_process_client
from dray.client.interface import Client
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.reconciler import ControllerContext
from dray.controllers.resource_claim.reconciler import ResourceClaimController
from dray.framework.evaluation import NodeScore
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup
from dray.scheduler import cycle
from dray.scheduler.decisions import DecisionLog
from dray.scheduler.registry import BUILT_IN
from dray.scheduler.scheduler import Scheduler
from dray.sim.replica.virtual_time import LoopClock
from tests.differential.cases import Case
from tests.differential.driver import Answer, Driver, run_case
from tests.in_process_server import in_process_server

# What Kubernetes does not have, and what the cases do not use.
GATES: Final = FeatureGates.parse("DRAPreemption=false,DRAControlPlaneController=false")
_MASTERS: Final = ("system:masters",)
_SETTLE_SECONDS: Final = 0.05
_NODES_MAX: Final = 100


@dataclass(slots=True)
class OwnWorld:
    """Implements `World`."""

    client: Client
    log: DecisionLog
    seconds_max: float = 60.0

    async def settle(self) -> None:
        """Let everything that is ready run, in virtual time."""
        await asyncio.sleep(_SETTLE_SECONDS)

    def scores(self, pod: str) -> tuple[NodeScore, ...]:
        """Return the scores of all feasible nodes when the Pod was last placed; empty if there was only one."""
        for decision in reversed(self.log._entries.values()):
            if decision.pod == pod and decision.result == "Scheduled":
                return () if decision.evaluation is None else decision.evaluation.scores
        return ()


@asynccontextmanager
async def own_world() -> AsyncIterator[OwnWorld]:
    """A cluster without objects; the loop must be a `VirtualLoop`."""
    clock, rng = LoopClock(), random.Random(1)
    with mock.patch.object(cycle, "SCORED_NODES_MAX", _NODES_MAX):
        async with in_process_server(clock, rng, gates=GATES) as local, TaskGroup("cluster") as group:
            client = in_process_client(local, user="test", groups=_MASTERS, user_agent="test")
            informers = SharedInformerFactory(client, clock, random.Random(2))
            log = DecisionLog()
            scheduler = Scheduler(
                client, informers, clock, Metrics(), factories=BUILT_IN, features=GATES, decisions=log
            )
            claims = ResourceClaimController(ControllerContext(client, informers, clock, gates=GATES, rng=rng))
            group.spawn(informers.run(), "informers")
            group.spawn(claims.run(), "claims")
            group.spawn(scheduler.run(), "scheduler")
            await informers.wait_for_sync()
            yield OwnWorld(client, log)
            await group.cancel()


async def decide(case: Case) -> list[Answer]:
    """Return our decisions about the Pods of a case, each after our own earlier ones."""
    async with own_world() as world:
        await Driver(world).apply(case.objects)
        return await run_case(world, case)
