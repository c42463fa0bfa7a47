"""`dray up`: the API server, its controllers, the scheduler and, if asked for, nodes in one process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dray.api.document import Document
from dray.api.errors import APIError
from dray.client.in_process import in_process_client
from dray.client.interface import Client
from dray.client.resources import NODES, SERVICE_ACCOUNTS
from dray.cmd import apiserver
from dray.cmd.apiserver import Running
from dray.cmd.settings import NodeSettings, UpSettings
from dray.runtime.settings import SettingsError
from dray.runtime.tasks import TaskGroup

if TYPE_CHECKING:
    from dray.cmd.node_agent import NodeAgent
    from dray.scheduler.config import SchedulerConfig
    from dray.scheduler.decisions import DecisionLog
    from dray.sim.device_shapes import Wanted


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A running API server with its controllers and scheduler; further tasks may be spawned in the group."""

    server: Running
    group: TaskGroup
    # Of each simulated node.
    devices: tuple[Wanted, ...] = ()


@asynccontextmanager
async def running_control_plane(settings: UpSettings) -> AsyncIterator[ControlPlane]:
    """Run the control plane for the time of a `with` block; a failure of any part cancels the body and is raised."""
    # An invalid file is refused before anything starts.
    scheduler_config, devices = _read_scheduler_config(settings), _read_devices(settings)
    # Imported after the settings were read, so that invalid ones are refused at once.
    from dray.scheduler.decisions import DecisionLog

    decisions, contents = DecisionLog(), _read_start(settings)
    async with apiserver.running(settings, decisions, contents) as server, TaskGroup("control plane") as group:
        manager = in_process_client(
            server.local, user="system:kube-controller-manager", user_agent="kube-controller-manager"
        )
        await _create_default_account(manager)
        _start_components(settings, scheduler_config, group, server, manager, decisions)
        yield ControlPlane(server, group, devices)


async def run(settings: UpSettings, stop: asyncio.Event) -> None:
    """Serve until stopped."""
    async with running_control_plane(settings) as plane:
        agent = await _start_nodes(settings, plane)
        try:
            apiserver.announce(plane.server)
            await stop.wait()
            await apiserver.delay_shutdown(plane.server, settings)
            await plane.group.cancel()
        finally:
            if agent is not None:
                await agent.stop()


def _read_scheduler_config(settings: UpSettings) -> SchedulerConfig | None:
    if not settings.scheduler_config and settings.scheduler_profile == "spread":
        return None
    # Imported only if needed: the scheduler's modules take time to load.
    from dray.scheduler.config_loader import read_config

    return read_config(settings.scheduler_config, settings.scheduler_profile)


def _read_devices(settings: UpSettings) -> tuple[Wanted, ...]:
    if not settings.devices:
        return ()
    if not settings.nodes:
        raise SettingsError("--devices are those of simulated nodes: specify their number, as in --nodes=4")
    # Imported only if needed.
    from dray.cmd.simulated_devices import read_devices

    return read_devices(settings.devices)


def _read_start(settings: UpSettings) -> list[Document]:
    if not settings.snapshot:
        return []
    # Imported only if needed.
    from dray.cmd.simulated_devices import read_start

    return read_start(settings.snapshot, Path(settings.data_dir))


async def _create_default_account(client: Client) -> None:
    """Create the service account that Pods of the default namespace need, so that they can be created at once."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "default"}}
    # It may exist already. After any other failure the controller tries again and reports it.
    with contextlib.suppress(APIError):
        await client.create(SERVICE_ACCOUNTS, account)


def _start_components(
    settings: UpSettings,
    scheduler_config: SchedulerConfig | None,
    group: TaskGroup,
    server: Running,
    manager: Client,
    decisions: DecisionLog,
) -> None:
    """Start the controllers and the scheduler."""
    # Imported after the settings were read, so that invalid ones are refused at once.
    from dray.cmd.cluster_authority import ClusterAuthority
    from dray.cmd.controllers import spawn_controllers
    from dray.cmd.scheduler import FIELD_MANAGER, spawn_scheduler
    from dray.scheduler.config import SchedulerConfig

    spawn_controllers(
        group,
        manager,
        server.clock,
        server.metrics,
        root_ca=server.pki.authority.certificate.decode(),
        gates=settings.feature_gates,
        nodes=settings,
        authority=ClusterAuthority(server.pki.authority),
        signing_seconds=settings.cluster_signing_duration,
    )
    spawn_scheduler(
        group,
        in_process_client(server.local, user="system:kube-scheduler", user_agent=FIELD_MANAGER),
        server.clock,
        server.metrics,
        config=scheduler_config or SchedulerConfig(),
        features=settings.feature_gates,
        decisions=decisions,
    )


async def _start_nodes(settings: UpSettings, plane: ControlPlane) -> NodeAgent | None:
    """Start the nodes of the settings; return when they are registered."""
    # Imported only if needed: the node agent loads gRPC.
    if settings.nodes or settings.snapshot:
        from dray.cmd.simulated_nodes import SimulatedNodes, Simulation

        client = in_process_client(
            plane.server.local, user="system:admin", groups=("system:masters",), user_agent="kubelet"
        )
        existing = tuple((await client.list(NODES.unstructured)).items) if settings.snapshot else ()
        simulation = Simulation(
            settings.nodes, start_seconds=settings.simulated_start, existing=existing, devices=plane.devices
        )
        registered = asyncio.Event()
        plane.group.spawn(SimulatedNodes(client, plane.server.clock, simulation).run(registered), "simulated nodes")
        await registered.wait()
    if not settings.node:
        return None
    return await _start_node(settings, plane)


async def _start_node(settings: UpSettings, plane: ControlPlane) -> NodeAgent:
    from dray.cmd import node

    data_dir = plane.server.pki.directory.parent
    own = NodeSettings(
        feature_gates=settings.feature_gates,
        data_dir=str(data_dir),
        root_dir=settings.node_root_dir or str(data_dir / "node"),
        runtime=settings.node_runtime,
        registries=settings.node_registries,
        registry_config=settings.node_registry_config,
        cdi_spec_dirs=settings.node_cdi_spec_dirs,
        port=0,
        healthz_port=0,
    )
    agent, _ = await node.start_local(own, plane.group, plane.server.clock)
    return agent
