"""`dray up`: the API server, its controllers and the scheduler in one process."""

from __future__ import annotations

import asyncio

from dray.client.memory import memory_client
from dray.cmd import apiserver
from dray.cmd.controllers import spawn_controllers
from dray.cmd.scheduler import spawn_scheduler
from dray.cmd.settings import UpSettings
from dray.runtime.tasks import TaskGroup
from dray.scheduler.files import read_config


async def run(settings: UpSettings, stop: asyncio.Event) -> None:
    """Serve until told to stop."""
    scheduler_config = read_config(settings.scheduler_config)
    running = await apiserver.start(settings)
    try:
        async with TaskGroup("up") as group:
            client = memory_client(
                running.local, user="system:kube-controller-manager", user_agent="kube-controller-manager"
            )
            root_ca = running.pki.authority.certificate.decode()
            spawn_controllers(
                group, client, running.clock, running.metrics, root_ca=root_ca, gates=settings.feature_gates
            )
            spawn_scheduler(
                group,
                memory_client(running.local, user="system:kube-scheduler", user_agent="kube-scheduler"),
                running.clock,
                running.metrics,
                config=scheduler_config,
                features=settings.feature_gates,
            )
            apiserver.announce(running)
            await group.wait(stop)
            await group.cancel()
    finally:
        await running.stop()
