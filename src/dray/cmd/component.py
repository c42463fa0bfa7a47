"""A component as a process of its own: a client of any API server, with a health page, that works while it leads."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dray.api.document import NamespacedName
from dray.api.features import FeatureGates
from dray.client.credentials import load_access
from dray.client.http import http_client
from dray.client.interface import Client
from dray.client.kubeconfig import Access
from dray.client.leader_election import LeaderElector
from dray.cmd.served import served_features
from dray.cmd.settings import ControllerManagerSettings, SchedulerSettings
from dray.lib.clock import Clock
from dray.runtime.http.server import serve_health
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from dray.runtime.tasks import TaskGroup


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a component's tasks work with."""

    client: Client
    access: Access
    clock: Clock
    metrics: Metrics
    # Those asked for that the server has the kinds for.
    gates: FeatureGates


# Starts the component's tasks in the group.
Spawn = Callable[[TaskGroup, Surroundings], object]


async def run_component(
    name: str, settings: ControllerManagerSettings | SchedulerSettings, stop: asyncio.Event, spawn: Spawn
) -> None:
    """Run the tasks, while leading under the name if asked to, until told to stop."""
    clock, metrics = SystemClock(), Metrics()
    access = load_access(os.environ, path=settings.kubeconfig)
    client = http_client(access, clock, user_agent=f"{name}/dray")
    try:
        # The first answer shows that the server can be reached before anyone is told that we are ready.
        await client.get_path("/version")
        gates = await served_features(client, settings.feature_gates)
        work = partial(_work, name, spawn, Surroundings(client, access, clock, metrics, gates))
        async with TaskGroup(name) as group:
            port = await serve_health(group, settings.host, settings.port, metrics.exposition)
            group.spawn(_elector(name, client, clock).run(work) if settings.leader_elect else work(), "lead")
            sys.stdout.write(f"ready {access.server} health http://{settings.host}:{port}\n")
            sys.stdout.flush()
            await group.wait(stop)
    finally:
        await client.close()


async def _work(name: str, spawn: Spawn, surroundings: Surroundings) -> None:
    async with TaskGroup(f"{name} tasks") as group:
        spawn(group, surroundings)
        await group.wait()


def _elector(name: str, client: Client, clock: Clock) -> LeaderElector:
    rng = random.Random()  # noqa: S311 - spreads load, guards nothing
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"
    return LeaderElector(client, clock, rng, lease=NamespacedName("kube-system", name), identity=identity)
