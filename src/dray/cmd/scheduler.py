"""`dray scheduler`: the scheduler as a client of any Kubernetes API server."""

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
    """Run the scheduler, with leader election if enabled, until stopped."""
    # Imported here: `dray up` does not need the HTTP client and starts faster without it.
    from dray.cmd.component import Dependencies, run_component

    config = read_config(settings.scheduler_config)

    def spawn(group: TaskGroup, dependencies: Dependencies) -> None:
        spawn_scheduler(
            group,
            dependencies.client,
            dependencies.clock,
            dependencies.metrics,
            config=config,
            features=dependencies.gates,
        )

    await run_component("kube-scheduler", settings, stop, spawn)
