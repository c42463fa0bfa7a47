"""`dray node`: the node agent, as a client of any Kubernetes API server."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from dray.client.credentials import ClientCertificate
from dray.client.http import http_client
from dray.client.interface import Client
from dray.cmd.component import announce_ready, with_fallback_servers
from dray.cmd.node_agent import NodeAgent, make_root
from dray.cmd.node_identity import find_identity
from dray.cmd.node_managers import NodeContext
from dray.cmd.old_engine import report_leftovers
from dray.cmd.runtime_choice import choose_runtime
from dray.cmd.settings import NodeSettings
from dray.lib.clock import Clock
from dray.node.agent.machine_info import read_machine
from dray.runtime.metrics import Metrics
from dray.runtime.settings import SettingsError
from dray.runtime.system import SystemClock
from dray.runtime.tasks import TaskGroup, first_completed


async def run(settings: NodeSettings, stop: asyncio.Event) -> None:
    """Run the agent until a stop signal; its containers keep running."""
    if settings.cleanup:
        await _clean_up(settings)
        return
    async with TaskGroup("node") as group:
        # Registration is retried until the server answers, which must not delay the end of the process.
        position, started = await first_completed(stop.wait(), start_local(settings, group, SystemClock()))
        if position == 0:
            return
        agent, ready = started
        try:
            group.spawn(announce_ready(agent.health, SystemClock(), ready), "announce")
            await group.wait(stop)
            await group.cancel()
        finally:
            await agent.stop()


async def _clean_up(settings: NodeSettings) -> None:
    """Remove what the agent has set up in the network of this machine."""
    # Imported only if needed.
    from dray.node.network.pod_network import RoutedNetwork
    from dray.node.runtimes.runtime import RuntimeFailure

    try:
        root = make_root(settings.root_dir)
        await RoutedNetwork(root / "network", Path(settings.cni_conf_dir)).clean_up()
    except (RuntimeFailure, OSError) as error:
        raise SettingsError(f"--cleanup: {error}") from error


async def start_local(settings: NodeSettings, group: TaskGroup, clock: Clock) -> tuple[NodeAgent, str]:
    """Start the agent of this machine in the group; return it and the line that announces it."""
    settings = await choose_runtime(settings)
    name = settings.node_name or socket.gethostname().lower()
    address = settings.node_ip or read_machine(Path("/")).addresses[0]
    identity = find_identity(settings, name, (name, address), clock.now())
    certificate = ClientCertificate(identity.access.certificate_data, identity.access.key_data)
    access = with_fallback_servers(identity.access, settings.api_servers)
    client = http_client(access, clock, user_agent="kubelet/dray", certificate=certificate)
    group.spawn(_close_at_end(client), "connections")
    root = make_root(settings.root_dir)
    report_leftovers(root)
    context = NodeContext(settings, name, root, client, clock, Metrics())
    agent = NodeAgent(context, identity, certificate)
    port = await agent.start(group)
    return agent, f"ready {identity.access.server} node {name} port {port}"


async def _close_at_end(client: Client) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await client.close()
