"""The cluster of `pytest --dray`: the control plane of `dray up`, a node agent and simulated nodes in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dray.api.document import Document, GroupVersion
from dray.api.features import FeatureGates
from dray.client.in_process import in_process_client
from dray.client.interface import Client, unstructured
from dray.cmd import node as node_command
from dray.cmd.containers import end_containers
from dray.cmd.node_agent import NodeAgent
from dray.cmd.settings import NodeSettings, UpSettings
from dray.cmd.simulated_nodes import SimulatedNodes, Simulation
from dray.cmd.testing.threads import ContextTask
from dray.cmd.up import ControlPlane, running_control_plane
from dray.lib.clock import Clock
from dray.rpc.dra_services import DRA_PLUGIN
from dray.runtime.tasks import TaskGroup


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of a cluster."""

    # memory, or sqlite in the cluster's folder.
    store: str = "memory"
    # As on the command line: A=true,B=false.
    feature_gates: str = ""
    # Run the agent of a real node, whose containers are processes.
    node: bool = True
    node_name: str = "node-1"
    # Simulated nodes from the start; `Cluster.nodes` adds others.
    nodes: int = 0
    # File with a KubeSchedulerConfiguration.
    scheduler_config: str = ""
    # Further settings of the node agent, as in `dray node --help`, with underscores.
    node_settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunningNode:
    """A node agent."""

    agent: NodeAgent

    def drivers(self) -> list[str]:
        """Return the names of the registered DRA drivers."""
        return sorted(plugin.name for plugin in self.agent.managers.plugins.plugins if plugin.type == DRA_PLUGIN)


@asynccontextmanager
async def _running_node(settings: NodeSettings, clock: Clock) -> AsyncIterator[RunningNode]:
    async with TaskGroup("node") as group:
        agent, _ = await node_command.start_local(settings, group, clock)
        try:
            yield RunningNode(agent)
            await group.cancel()
        finally:
            await agent.stop()


class Stack:
    """A running cluster; belongs to one event loop."""

    def __init__(self, options: ClusterOptions, folder: Path, control_plane: ContextTask[ControlPlane]) -> None:
        self.options = options
        self.folder = folder
        self.root = folder / "node"
        self.cdi = folder / "cdi"
        self.running = control_plane.value.server
        self.gates = FeatureGates.parse(options.feature_gates)
        self.client = self.client_as("system:admin", "system:masters")
        self._control_plane = control_plane
        self._node: ContextTask[RunningNode] | None = None
        self._simulated = 0

    @classmethod
    async def start(cls, options: ClusterOptions, folder: Path) -> Stack:
        """Start a cluster; return when a Pod can be created."""
        settings = UpSettings(
            data_dir=str(folder / "server"),
            port=0,
            store=options.store,
            feature_gates=FeatureGates.parse(options.feature_gates),
            scheduler_config=options.scheduler_config,
        )
        control_plane = await ContextTask.start(running_control_plane(settings), "control plane")
        stack = cls(options, folder, control_plane)
        try:
            stack.cdi.mkdir(exist_ok=True)
            if options.node:
                await stack.start_node()
            await stack.add_nodes(options.nodes)
        except BaseException:
            await stack.stop()
            raise
        return stack

    async def stop(self) -> None:
        """Stop everything, containers too; raise the error of a part that failed."""
        try:
            await self.stop_node()
        finally:
            try:
                await self._control_plane.stop()
            finally:
                await end_containers(self.root, grace_seconds=0)

    @property
    def node(self) -> RunningNode | None:
        """The node agent; None while it is stopped."""
        return self._node.value if self._node is not None else None

    def client_as(self, user: str, *groups: str) -> Client:
        """Return an in-process client."""
        return in_process_client(self.running.local, user=user, groups=groups or ("system:authenticated",))

    async def start_node(self) -> None:
        """Start the node agent with the state that an earlier one left."""
        assert self._node is None, "the node agent runs already"
        chosen: dict[str, Any] = {
            "feature_gates": self.gates,
            "data_dir": str(self.folder / "server"),
            "node_name": self.options.node_name,
            "root_dir": str(self.root),
            "runtime": "process",
            "cdi_spec_dirs": (str(self.cdi),),
            "host": "127.0.0.1",
            "node_ip": "127.0.0.1",
            "port": 0,
            **self.options.node_settings,
        }
        self._node = await ContextTask.start(_running_node(NodeSettings(**chosen), self.running.clock), "node")

    async def stop_node(self) -> None:
        """Stop the node agent; containers go on running."""
        node, self._node = self._node, None
        if node is not None:
            await node.stop()

    async def add_nodes(self, count: int) -> list[str]:
        """Register simulated nodes and return their names."""
        if not count:
            return []
        prefix = f"sim{self._simulated}-" if self._simulated else "sim-"
        self._simulated += 1
        registered = asyncio.Event()
        nodes = SimulatedNodes(self.client, self.running.clock, Simulation(count, prefix))
        self._control_plane.value.group.spawn(nodes.run(registered), "simulated nodes")
        await registered.wait()
        return [f"{prefix}{number}" for number in range(count)]

    async def objects(self, group: str, version: str, plural: str, namespace: str = "") -> list[Document]:
        """Return every object of a resource."""
        page = await self.client.list(unstructured(GroupVersion(group, version), plural, ""), namespace)
        return list(page.items)
