"""`dray scheduler`: the scheduler alone, as a client of any Kubernetes API server."""

from __future__ import annotations

import asyncio
import random

from dray.api.features import FeatureGates
from dray.client.interface import Client
from dray.client.shared_informers import SharedInformerFactory
from dray.cmd.settings import SchedulerSettings
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup
from dray.scheduler.config import SchedulerConfig
from dray.scheduler.config_loader import find_factories, read_config
from dray.scheduler.scheduler import Scheduler


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
    informers = SharedInformerFactory(client, clock, random.Random())  # noqa: S311 - spreads load, guards nothing
    scheduler = Scheduler(
        client, informers, clock, metrics, factories=find_factories(), config=config, features=features
    )
    group.spawn(informers.run(), "scheduler informers")
    group.spawn(scheduler.run(), "scheduler")
    return scheduler


async def run(settings: SchedulerSettings, stop: asyncio.Event) -> None:
    """Schedule, while leading if asked to, until told to stop."""
    # Only a process of its own needs HTTP; `dray up` starts faster and smaller without.
    from dray.cmd.component import Surroundings, run_component

    config = read_config(settings.scheduler_config)

    def spawn(group: TaskGroup, around: Surroundings) -> None:
        spawn_scheduler(group, around.client, around.clock, around.metrics, config=config, features=around.gates)

    await run_component("kube-scheduler", settings, stop, spawn)
