"""`dray scheduler`: the scheduler alone, as a client of any Kubernetes API server."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
import uuid

from dray.api.features import FeatureGates
from dray.client.files import load_access
from dray.client.interface import Client
from dray.client.leader_election.loop import LeaderElector
from dray.client.loop import Informers
from dray.cmd.served import served_features
from dray.cmd.settings import SchedulerSettings
from dray.lib.clock import Clock
from dray.runtime.clock import SystemClock
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup
from dray.scheduler.config import SchedulerConfig
from dray.scheduler.files import find_factories, read_config
from dray.scheduler.loop import Scheduler


def spawn_scheduler(
    group: TaskGroup,
    client: Client,
    clock: Clock,
    metrics: Metrics,
    *,
    config: SchedulerConfig,
    features: FeatureGates,
) -> Scheduler:
    """Run a scheduler in the group."""
    informers = Informers(client, clock, random.Random())  # noqa: S311 - spreads load, guards nothing
    scheduler = Scheduler(
        client, informers, clock, metrics, factories=find_factories(), config=config, features=features
    )
    group.spawn(informers.run(), "scheduler informers")
    group.spawn(scheduler.run(), "scheduler")
    return scheduler


async def run(settings: SchedulerSettings, stop: asyncio.Event) -> None:
    """Schedule, while leading if asked to, until told to stop."""
    # Only a process of its own needs HTTP; `dray up` starts faster and smaller without.
    from dray.client.http import http_client
    from dray.runtime.http.health import serve_health

    clock, metrics = SystemClock(), Metrics()
    config = read_config(settings.scheduler_config)
    access = load_access(os.environ, path=settings.kubeconfig)
    client = http_client(access, clock, user_agent="kube-scheduler/dray")
    # The first answer shows that the server can be reached before anyone is told that we are ready.
    await client.get_path("/version")
    try:
        async with TaskGroup("scheduler process") as group:
            port = await serve_health(group, settings.host, settings.port, metrics.exposition)
            group.spawn(_lead(settings, client, config, clock, metrics), "lead")
            sys.stdout.write(f"ready {access.server} health http://{settings.host}:{port}\n")
            sys.stdout.flush()
            await group.wait(stop)
            await group.cancel()
    finally:
        await client.close()


async def _lead(
    settings: SchedulerSettings, client: Client, config: SchedulerConfig, clock: Clock, metrics: Metrics
) -> None:
    features = await served_features(client, settings.feature_gates)

    async def work() -> None:
        async with TaskGroup("scheduler") as group:
            spawn_scheduler(group, client, clock, metrics, config=config, features=features)
            await group.wait()

    if not settings.leader_elect:
        await work()
        return
    elector = LeaderElector(
        client,
        clock,
        random.Random(),  # noqa: S311 - spreads load, guards nothing
        name="kube-scheduler",
        namespace="kube-system",
        identity=f"{socket.gethostname()}_{uuid.uuid4()}",
    )
    await elector.run(work)
