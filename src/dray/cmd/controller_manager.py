"""`dray controller-manager`: the controllers alone, as clients of any Kubernetes API server."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
import uuid
from pathlib import Path

from dray.client.files import load_access
from dray.client.http import http_client
from dray.client.interface import Client
from dray.client.kubeconfig import Access
from dray.client.leader_election.loop import LeaderElector
from dray.cmd.controllers import spawn_controllers
from dray.cmd.served import served_features
from dray.cmd.settings import ControllerManagerSettings
from dray.lib.clock import Clock
from dray.runtime.clock import SystemClock
from dray.runtime.http.health import serve_health
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup


async def run(settings: ControllerManagerSettings, stop: asyncio.Event) -> None:
    """Run the controllers, while leading if asked to, until told to stop."""
    clock, metrics = SystemClock(), Metrics()
    access = load_access(os.environ, path=settings.kubeconfig)
    client = http_client(access, clock, user_agent="kube-controller-manager/dray")
    # The first answer shows that the server can be reached before anyone is told that we are ready.
    await client.get_path("/version")
    try:
        async with TaskGroup("controller-manager") as group:
            port = await serve_health(group, settings.host, settings.port, metrics.exposition)
            group.spawn(_lead(settings, client, access, clock, metrics), "lead")
            sys.stdout.write(f"ready {access.server} health http://{settings.host}:{port}\n")
            sys.stdout.flush()
            await group.wait(stop)
            await group.cancel()
    finally:
        await client.close()


async def _lead(
    settings: ControllerManagerSettings, client: Client, access: Access, clock: Clock, metrics: Metrics
) -> None:
    root_ca = _root_ca(access)
    gates = await served_features(client, settings.feature_gates)

    async def work() -> None:
        async with TaskGroup("controllers") as group:
            spawn_controllers(group, client, clock, metrics, root_ca=root_ca, gates=gates, nodes=settings)
            try:
                await group.wait()
            finally:
                await group.cancel()

    if not settings.leader_elect:
        await work()
        return
    elector = LeaderElector(
        client,
        clock,
        random.Random(),  # noqa: S311 - spreads load, guards nothing
        name="kube-controller-manager",
        namespace="kube-system",
        identity=f"{socket.gethostname()}_{uuid.uuid4()}",
    )
    await elector.run(work)


def _root_ca(access: Access) -> str:
    if access.authority_data:
        return access.authority_data.decode()
    return Path(access.authority_file).read_text(encoding="utf-8") if access.authority_file else ""
