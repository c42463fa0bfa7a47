"""Runs the node plugin of a classic driver: sockets, registration, claims; and `main` for both sides of a driver."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc.aio

from dray.client.interface import Client
from dray.client.kubeconfig import KubeconfigError
from dray.client.shared_informers import SharedInformerFactory
from dray.driver.classic.controller_runner import Options, run, serve
from dray.driver.classic.interface import ClassicController, NodePlugin
from dray.driver.classic.node_preparer import NodePluginPreparer
from dray.driver.classic.servicer import ClassicNode
from dray.driver.prepared.checkpoint import CheckpointError
from dray.driver.prepared.checkpoint_files import PreparedClaims
from dray.driver.prepared.preparer import PreparerOptions
from dray.driver.program import load_node_settings, program_context, run_program
from dray.driver.runner import CDI_FOLDER, ROOT
from dray.driver.servicer import Registration
from dray.driver.sockets import RegisteredPlugin, listening, sole_server
from dray.lib.clock import Clock
from dray.rpc.dra_services import RESOURCE_PLUGIN
from dray.rpc.pb.classic_dra.v1alpha1.api_pb2_grpc import add_NodeServicer_to_server as add_node
from dray.rpc.pb.plugin_registration.v1.api_pb2_grpc import add_RegistrationServicer_to_server as add_registration
from dray.rpc.sockets import SocketError
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics
from dray.runtime.settings import PORT, STRING, number, setting
from dray.runtime.tasks import TaskGroup

_log = logging.getLogger(__name__)

VERSION: Final = "v1alpha1"
_FOLDER_MODE: Final = 0o750


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Where a plugin runs and how."""

    node_name: str
    # kubelet's root directory.
    root: str = ROOT
    cdi_folder: str = CDI_FOLDER
    # Set for rolling updates: the sockets of two instances then have different names.
    pod_uid: str = ""

    def folder(self, driver: str) -> str:
        """Return the plugin's own directory; its parent belongs to the DRA driver of the same name."""
        return str(Path(self.root) / "plugins" / driver / "classic")

    def service_socket(self, driver: str) -> str:
        """Return the socket of the node service."""
        return str(Path(self.folder(driver)) / (f"plugin-{self.pod_uid}.sock" if self.pod_uid else "plugin.sock"))

    def registration_socket(self, driver: str) -> str:
        """Return the socket of the registration service."""
        name = f"{driver}-classic-{self.pod_uid}-reg.sock" if self.pod_uid else f"{driver}-classic-reg.sock"
        return str(Path(self.root) / "plugins_registry" / name)


class NodePluginRunner(RegisteredPlugin):
    """One instance of a plugin."""

    def __init__(
        self,
        plugin: NodePlugin,
        client: Client,
        options: NodeOptions,
        clock: Clock,
        metrics: Metrics,
        local: ClassicController | None = None,
    ) -> None:
        super().__init__()
        self._plugin = plugin
        self._client = client
        self._options = options
        self._clock = clock
        self._metrics = metrics
        # Allocates node-local resources.
        self._local = local
        folder = options.folder(plugin.name)
        os.makedirs(folder, _FOLDER_MODE, exist_ok=True)
        self.informers = SharedInformerFactory(client, clock, random.SystemRandom())
        prepared = PreparerOptions(plugin.name, PreparedClaims(folder, options.cdi_folder), folder, clock, metrics)
        self._preparer = NodePluginPreparer(plugin, client, self.informers, prepared)
        plugin.node_name = options.node_name
        plugin.client = client

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set; prepared claims stay prepared, since Pods use them."""
        started = self._plugin.start()
        if inspect.isawaitable(started):
            await started
        service = self._options.service_socket(self._plugin.name)
        registration = self._options.registration_socket(self._plugin.name)
        async with TaskGroup(self._plugin.name) as group:
            group.spawn(self.informers.run(), "informers")
            if self._local is not None:
                own = Options(node_name=self._options.node_name)
                group.spawn(serve(self._local, self._client, self._clock, self._metrics, own), "allocation")
            await self._preparer.informer.wait_for_sync()
            with sole_server(service):
                async with listening(self._service(), service), listening(self._registration(), registration):
                    _log.info("plugin started", extra=fields(driver=self._plugin.name, node=self._options.node_name))
                    await group.wait(stop)

    def _service(self) -> grpc.aio.Server:
        server = grpc.aio.server()
        add_node(ClassicNode(self._preparer), server)
        return server

    def _registration(self) -> grpc.aio.Server:
        server = grpc.aio.server()
        endpoint = self._options.service_socket(self._plugin.name)
        add_registration(
            Registration(self._plugin.name, endpoint, [VERSION], self._on_registration, RESOURCE_PLUGIN), server
        )
        return server


@dataclass(frozen=True)
class NodeSettings:
    """The node plugin of a classic resource driver."""

    node_name: str = setting(STRING, "", "Node the plugin runs on.", environment="NODE_NAME")
    kubeconfig: str = setting(STRING, "", "Access to the API server; by default KUBECONFIG's, or a Pod's own.")
    root_dir: str = setting(STRING, ROOT, "kubelet's root folder.")
    cdi_dir: str = setting(STRING, CDI_FOLDER, "Folder of CDI files.")
    pod_uid: str = setting(STRING, "", "UID of the plugin's Pod, for rolling updates.", environment="POD_UID")
    metrics_port: int = setting(PORT, 0, "Port of metrics and health checks on loopback; 0 for none.")
    log_format: str = setting(STRING, "text", "text or json.")
    v: int = setting(number(0, 10), 0, "Detail of the log.", flag="v")


def run_node(
    plugin: NodePlugin,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] = os.environ,
    local: ClassicController | None = None,
) -> int:
    """Run a node plugin as a program, with flags, logging and signals; return the exit code.

    `local` allocates node-local resources, for a driver whose controller is `node_local`.
    """
    arguments = sys.argv[1:] if argv is None else argv
    return run_program(
        lambda: load_node_settings(NodeSettings, arguments, environ),
        lambda settings: _run(plugin, settings, environ, local),
        (SocketError, KubeconfigError, CheckpointError),
    )


async def _run(
    plugin: NodePlugin, settings: NodeSettings, environ: Mapping[str, str], local: ClassicController | None
) -> None:
    options = NodeOptions(settings.node_name, settings.root_dir, settings.cdi_dir, settings.pod_uid)
    async with program_context(settings, environ, plugin.name, user_agent=f"{plugin.name}/dray") as program:
        runner = NodePluginRunner(plugin, program.client, options, program.clock, program.metrics, local)
        program.health.add("informer-sync", runner.informers.out_of_sync)
        await runner.run(program.stop)


def main(
    controller: ClassicController,
    plugin: NodePlugin,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] = os.environ,
    local: ClassicController | None = None,
) -> int:
    """Run the controller or the node plugin, as the first argument says; return the exit code.

    `local` runs beside the plugin and allocates node-local resources.
    """
    given = sys.argv[1:] if argv is None else list(argv)
    match given[:1]:
        case ["controller"]:
            return run(controller, argv=given[1:], environ=environ)
        case ["node"]:
            return run_node(plugin, given[1:], environ, local)
    sys.stderr.write("the first argument must be controller or node\n")
    return 2
