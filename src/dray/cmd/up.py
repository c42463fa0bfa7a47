"""`dray up`: the API server, its controllers, the scheduler and, if asked for, nodes in one process."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from dray.api.errors import APIError
from dray.client.in_process import in_process_client
from dray.client.interface import Client
from dray.client.resources import SERVICE_ACCOUNTS
from dray.cmd import apiserver
from dray.cmd.apiserver import Running
from dray.cmd.settings import NodeSettings, UpSettings
from dray.runtime.tasks import TaskGroup

if TYPE_CHECKING:
    from dray.cmd.node_agent import NodeAgent
    from dray.scheduler.config import SchedulerConfig


async def run(settings: UpSettings, stop: asyncio.Event) -> None:
    """Serve until told to stop."""
    # A wrong file is refused before anything starts.
    scheduler_config = _read_scheduler_config(settings.scheduler_config)
    running = await apiserver.start(settings)
    try:
        async with TaskGroup("up") as group:
            manager = in_process_client(
                running.local, user="system:kube-controller-manager", user_agent="kube-controller-manager"
            )
            await _make_first_account(manager)
            _start_components(settings, scheduler_config, group, running, manager)
            agent = await _start_nodes(settings, group, running)
            try:
                apiserver.announce(running)
                await group.wait(stop)
                await group.cancel()
            finally:
                if agent is not None:
                    await agent.stop()
    finally:
        await running.stop()


def _read_scheduler_config(path: str) -> SchedulerConfig | None:
    if not path:
        return None
    # The scheduler's types come with it; without a file that is left for later.
    from dray.scheduler.config_loader import read_config

    return read_config(path)


async def _make_first_account(client: Client) -> None:
    """Have the account that Pods are refused without, so that nobody who is told of the server need wait for it."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "default"}}
    # It may be there already; whatever else is in its way, the controller will try again and tell.
    with contextlib.suppress(APIError):
        await client.create(SERVICE_ACCOUNTS, account)


def _start_components(
    settings: UpSettings, scheduler_config: SchedulerConfig | None, group: TaskGroup, running: Running, manager: Client
) -> None:
    """Start the controllers and the scheduler."""
    # After the settings were read: wrong ones are refused at once.
    from dray.cmd.controllers import spawn_controllers
    from dray.cmd.scheduler import spawn_scheduler
    from dray.scheduler.config import SchedulerConfig

    spawn_controllers(
        group,
        manager,
        running.clock,
        running.metrics,
        root_ca=running.pki.authority.certificate.decode(),
        gates=settings.feature_gates,
        nodes=settings,
    )
    spawn_scheduler(
        group,
        in_process_client(running.local, user="system:kube-scheduler", user_agent="kube-scheduler"),
        running.clock,
        running.metrics,
        config=scheduler_config or SchedulerConfig(),
        features=settings.feature_gates,
    )


async def _start_nodes(settings: UpSettings, group: TaskGroup, running: Running) -> NodeAgent | None:
    """Start the nodes asked for; returns once they are registered."""
    # The node room brings gRPC along; a server without nodes starts faster and smaller without it.
    if settings.nodes:
        from dray.cmd.simulated_nodes import SimulatedNodes, Simulation

        client = in_process_client(running.local, user="system:admin", groups=("system:masters",), user_agent="kubelet")
        simulation = Simulation(settings.nodes, start_seconds=settings.simulated_start)
        registered = asyncio.Event()
        group.spawn(SimulatedNodes(client, running.clock, simulation).run(registered), "simulated nodes")
        await registered.wait()
    if not settings.node:
        return None
    return await _start_node(settings, group, running)


async def _start_node(settings: UpSettings, group: TaskGroup, running: Running) -> NodeAgent:
    from dray.cmd import node

    data_dir = running.pki.directory.parent
    own = NodeSettings(
        feature_gates=settings.feature_gates,
        data_dir=str(data_dir),
        root_dir=settings.node_root_dir or str(data_dir / "node"),
        runtime=settings.node_runtime,
        cdi_spec_dirs=settings.node_cdi_spec_dirs,
        port=0,
    )
    agent, _ = await node.start_local(own, group, running.clock)
    return agent
