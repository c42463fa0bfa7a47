"""API server, controllers, scheduler, node agent and simulated nodes in the running event loop, as in `dray up`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dray.api.document import Document, GroupVersion
from dray.api.errors import NotFoundError
from dray.api.features import FeatureGates
from dray.client.in_process import in_process_client
from dray.client.interface import Client, unstructured
from dray.client.resources import SERVICE_ACCOUNTS
from dray.cmd import apiserver
from dray.cmd import node as node_command
from dray.cmd.controllers import spawn_controllers
from dray.cmd.node_agent import NodeAgent
from dray.cmd.scheduler import spawn_scheduler
from dray.cmd.settings import APIServerSettings, NodeSettings
from dray.cmd.simulated_nodes import SimulatedNodes, Simulation
from dray.node.plugins.handler import DRA_PLUGIN
from dray.runtime.tasks import TaskGroup
from dray.scheduler.config_loader import read_config

START_SECONDS_MAX: Final = 30.0
LOOK_SECONDS: Final = 0.005
# Beyond this a socket's path would not leave room for a driver's name: the kernel allows 107 bytes in all.
FOLDER_LENGTH_MAX: Final = 24


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What a cluster is made of."""

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


@dataclass(slots=True)
class RunningNode:
    """A node agent and its tasks."""

    agent: NodeAgent
    group: TaskGroup

    def drivers(self) -> list[str]:
        """Names of the registered DRA drivers."""
        return sorted(plugin.name for plugin in self.agent.managers.plugins.plugins if plugin.type == DRA_PLUGIN)


class Stack:
    """Everything that runs; belongs to one event loop."""

    def __init__(self, options: ClusterOptions, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.root = folder / "node"
        self.cdi = folder / "cdi"
        self.gates = FeatureGates.parse(options.feature_gates)
        self.node: RunningNode | None = None
        self.client: Client
        self.running: apiserver.Running
        self._group = TaskGroup("cluster")
        self._exit = AsyncExitStack()
        self._simulated = 0

    async def start(self) -> None:
        """Start everything; returns when a Pod can be created."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        self.cdi.mkdir(exist_ok=True)
        settings = APIServerSettings(
            data_dir=str(self.folder / "server"), port=0, store=self.options.store, feature_gates=self.gates
        )
        self.running = await apiserver.start(settings)
        self._exit.push_async_callback(self.running.stop)
        self.client = self.client_as("system:admin", "system:masters")
        await self._exit.enter_async_context(self._group)
        running = self.running
        spawn_controllers(
            self._group,
            self.client_as("system:kube-controller-manager"),
            running.clock,
            running.metrics,
            root_ca=running.pki.authority.certificate.decode(),
            gates=self.gates,
        )
        spawn_scheduler(
            self._group,
            self.client_as("system:kube-scheduler"),
            running.clock,
            running.metrics,
            config=read_config(self.options.scheduler_config),
            features=self.gates,
        )
        if self.options.node:
            await self.start_node()
        await self.add_nodes(self.options.nodes)
        await self._account()

    async def stop(self) -> None:
        """End everything, containers too."""
        await self.stop_node()
        await self._exit.aclose()
        await end_containers(self.root / "containers")

    def client_as(self, user: str, *groups: str) -> Client:
        """A client without a connection in between."""
        return in_process_client(self.running.local, user=user, groups=groups or ("system:authenticated",))

    async def start_node(self) -> None:
        """Start the node agent, on whatever an earlier one left."""
        assert self.node is None, "the node agent runs already"
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
        settings = NodeSettings(**chosen)
        group = await TaskGroup("node").__aenter__()
        try:
            agent, _ = await node_command.start_local(settings, group, self.running.clock)
        except BaseException:
            await group.cancel()
            raise
        self.node = RunningNode(agent, group)

    async def stop_node(self) -> None:
        """Stop the node agent; containers run on."""
        node, self.node = self.node, None
        if node is not None:
            await node.group.cancel()
            await node.agent.stop()
            await node.group.__aexit__(None, None, None)

    async def add_nodes(self, count: int) -> list[str]:
        """Register simulated nodes; their names."""
        if not count:
            return []
        prefix = f"sim{self._simulated}-" if self._simulated else "sim-"
        self._simulated += 1
        registered = asyncio.Event()
        nodes = SimulatedNodes(self.client, self.running.clock, Simulation(count, prefix))
        self._group.spawn(nodes.run(registered), "simulated nodes")
        await registered.wait()
        return [f"{prefix}{number}" for number in range(count)]

    async def objects(self, group: str, version: str, plural: str, namespace: str = "") -> list[Document]:
        """Every object of a kind."""
        page = await self.client.list(unstructured(GroupVersion(group, version), plural, ""), namespace)
        return list(page.items)

    async def _account(self) -> None:
        """Pods of the namespace `default` need its account, which a controller makes."""
        async with asyncio.timeout(START_SECONDS_MAX):
            while True:
                with contextlib.suppress(NotFoundError):
                    await self.client.get(SERVICE_ACCOUNTS, "default", "default")
                    return
                await asyncio.sleep(LOOK_SECONDS)


def make_folder() -> Path:
    """A folder whose path is short enough for sockets."""
    base = tempfile.gettempdir()
    if len(base) > FOLDER_LENGTH_MAX and os.access("/tmp", os.W_OK):  # noqa: S108 - only the parent of a private folder
        base = "/tmp"  # noqa: S108
    return Path(tempfile.mkdtemp(prefix="dray-", dir=base))


def remove_folder(folder: Path) -> None:
    """Remove everything; what cannot go stays for the system's own cleaning."""
    shutil.rmtree(folder, ignore_errors=True)


async def end_containers(folder: Path) -> None:
    """Kill what the agent's containers left running, and wait until their shims have written so."""
    living = _killed(folder)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_SECONDS_MAX):
            while not all(_ended(path) for path in living):  # noqa: ASYNC110 - the shims are other processes
                await asyncio.sleep(LOOK_SECONDS)


def _killed(folder: Path) -> list[Path]:
    return [path.parent for path in folder.glob("*/*/control") if _kill(path)]


def _ended(folder: Path) -> bool:
    return (folder / "exit.json").exists()


def _kill(control: Path) -> bool:
    """Ask a shim; without one there is nobody at the other end."""
    try:
        descriptor = os.open(control, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        os.write(descriptor, b"SIGKILL\n")
    finally:
        os.close(descriptor)
    return True
