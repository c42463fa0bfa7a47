"""`dray up`: the API server and its controllers in one process."""

from __future__ import annotations

import asyncio
import random

from dray.client.loop import Informers
from dray.client.memory import memory_client
from dray.cmd import apiserver
from dray.cmd.settings import UpSettings
from dray.controllers.garbage_collector.reconciler import GarbageCollector
from dray.controllers.namespace.reconciler import NamespaceController
from dray.controllers.service_account.reconciler import ServiceAccountController
from dray.runtime.tasks import TaskGroup


async def run(settings: UpSettings, stop: asyncio.Event) -> None:
    """Serve until told to stop."""
    running = await apiserver.start(settings)
    try:
        async with TaskGroup("up") as group:
            start_controllers(running, group)
            apiserver.announce(running)
            await group.wait(stop)
            await group.cancel()
    finally:
        await running.stop()


def start_controllers(running: apiserver.Running, group: TaskGroup) -> None:
    """Run the controllers against the server in this process."""
    client = memory_client(
        running.local,
        user="system:kube-controller-manager",
        groups=("system:authenticated",),
        user_agent="kube-controller-manager",
    )
    rng = random.Random()  # noqa: S311 - spreads load, guards nothing
    informers = Informers(client, running.clock, rng)
    clock, metrics = running.clock, running.metrics
    controllers = (
        GarbageCollector(client, informers, clock, metrics),
        NamespaceController(client, informers, clock, metrics),
        ServiceAccountController(
            client, informers, clock, root_ca=running.pki.authority.certificate.decode(), metrics=metrics
        ),
    )
    group.spawn(informers.run(), "informers")
    for controller in controllers:
        group.spawn(controller.run(), type(controller).__name__)
