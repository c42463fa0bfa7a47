"""Processes that are started, crash at any moment, and come back after a while."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from dray.api.features import FeatureGates
from dray.client.in_process import InProcessTransport
from dray.client.interface import LocalServer
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.reconciler import ControllerContext
from dray.controllers.resource_claim.reconciler import ResourceClaimController
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics
from dray.scheduler.config import ProfileConfig, SchedulerConfig
from dray.scheduler.registry import BUILT_IN
from dray.scheduler.scheduler import Scheduler
from tests.simulation.network import LATE_SECONDS_MAX, FaultRates, FaultyTransport, JumpingClock

# Longer than a request can be late, as a leader's lease makes sure.
RESTART_SECONDS = (LATE_SECONDS_MAX + 0.5, LATE_SECONDS_MAX + 3.0)
_MASTERS = ("system:masters",)
# No rule of the real process: followed kinds that the simulation has none of only cost time.
GATES = FeatureGates.parse("DRADeviceTaintRules=false,DRAControlPlaneController=false")

# Given a client, randomness and a clock, the coroutines that the process consists of.
Program = Callable[[RestClient, random.Random, Clock], list[Coroutine[Any, Any, Any]]]


class Process:
    """One program with its lives."""

    def __init__(self, name: str, program: Program, server: LocalServer, rng: random.Random, rates: FaultRates) -> None:
        self.name = name
        self.lives = 0
        self._program = program
        self._server = server
        self._rng = rng
        self._rates = rates
        self._tasks: list[asyncio.Task[Any]] = []
        self._transport: FaultyTransport | None = None
        self._reviving: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.lives += 1
        clock = JumpingClock()
        inner = InProcessTransport(self._server, user=self.name, groups=_MASTERS, user_agent=self.name)
        transport = self._transport = FaultyTransport(inner, self._rng, self._rates, self.crash, clock)
        work = self._program(RestClient(transport), random.Random(self._rng.random()), clock)
        self._tasks = [asyncio.ensure_future(item) for item in work]

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._transport.dead

    def crash(self) -> None:
        """End at once; what was sent and not yet done is done or not."""
        if not self.alive:
            return
        self._reviving = asyncio.ensure_future(self._end_and_revive())

    async def _end_and_revive(self) -> None:
        await self.end()
        await asyncio.sleep(self._rng.uniform(*RESTART_SECONDS))
        self.start()

    async def end(self) -> None:
        assert self._transport is not None
        self._transport.dead = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def failures(self) -> list[BaseException]:
        """Exceptions that ended a part of the process: bugs."""
        ended = [task for task in self._tasks if task.done() and not task.cancelled()]
        return [error for task in ended if (error := task.exception()) is not None]


class SchedulerProgram:
    """A scheduler for one schedulerName; `current` is that of the present life."""

    def __init__(
        self, scheduler_name: str, gates: FeatureGates = GATES, args: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self._config = SchedulerConfig(profiles=(ProfileConfig(scheduler_name=scheduler_name, args=args or {}),))
        self._gates = gates
        self.current: Scheduler | None = None

    def __call__(self, client: RestClient, rng: random.Random, clock: Clock) -> list[Coroutine[Any, Any, Any]]:
        informers = SharedInformerFactory(client, clock, rng)
        self.current = Scheduler(
            client, informers, clock, Metrics(), factories=BUILT_IN, config=self._config, features=self._gates
        )
        return [informers.run(), self.current.run()]


def controller_program(client: RestClient, rng: random.Random, clock: Clock) -> list[Coroutine[Any, Any, Any]]:
    """The claim controller."""
    informers = SharedInformerFactory(client, clock, rng)
    return [informers.run(), ResourceClaimController(ControllerContext(client, informers, clock)).run()]
