"""Runs a classic driver's plugin: its sockets and registration, and the claims it may be asked for."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc.aio

from dray.api.document import UID
from dray.api.errors import NotFoundError
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.client.credentials import load_access
from dray.client.http import http_client
from dray.client.interface import Client
from dray.client.kubeconfig import KubeconfigError
from dray.client.resources import CLASSIC_CLAIMS, CLASSIC_CLASSES
from dray.client.shared_informers import SharedInformerFactory
from dray.driver.classic.controller_runner import Options, run, serve
from dray.driver.classic.interface import ClassicController, NodePlugin
from dray.driver.classic.node_preparer import FoundClaim, PluginAuthor, check_allocated
from dray.driver.classic.plan import to_claim
from dray.driver.classic.servicer import ClassicNode
from dray.driver.prepared.checkpoint import RecordError
from dray.driver.prepared.checkpoint_files import PreparedClaims
from dray.driver.prepared.preparer import ClaimMissingError, ClaimRef, Preparer
from dray.driver.program import run_program
from dray.driver.runner import CDI_FOLDER, ROOT, listening
from dray.driver.servicer import Registration
from dray.driver.sockets import sole_server
from dray.lib.clock import Clock
from dray.rpc.pb.classic_dra.v1alpha1.api_pb2_grpc import add_NodeServicer_to_server as add_node
from dray.rpc.pb.plugin_registration.v1.api_pb2_grpc import add_RegistrationServicer_to_server as add_registration
from dray.rpc.sockets import SocketError
from dray.runtime.clock import SystemClock
from dray.runtime.http.server import serve_health
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics
from dray.runtime.settings import PORT, STRING, SettingsError, load, number, setting
from dray.runtime.signals import stop_on_signals
from dray.runtime.tasks import TaskGroup

_log = logging.getLogger(__name__)

PLUGIN_TYPE: Final = "ResourcePlugin"
VERSION: Final = "v1alpha1"
_FOLDER_MODE: Final = 0o750
_BY_UID: Final = "uid"


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Where a plugin runs and how."""

    node_name: str
    # kubelet's root folder.
    root: str = ROOT
    cdi_folder: str = CDI_FOLDER
    # Set for a rolling update: the sockets of two instances then do not collide.
    pod_uid: str = ""

    def folder(self, driver: str) -> str:
        """The plugin's own folder; a DRA driver of the same name has the one above."""
        return str(Path(self.root) / "plugins" / driver / "classic")

    def service_socket(self, driver: str) -> str:
        """Where the node agent calls the plugin."""
        return str(Path(self.folder(driver)) / (f"plugin-{self.pod_uid}.sock" if self.pod_uid else "plugin.sock"))

    def registration_socket(self, driver: str) -> str:
        """Where the node agent finds the plugin."""
        name = f"{driver}-classic-{self.pod_uid}-reg.sock" if self.pod_uid else f"{driver}-classic-reg.sock"
        return str(Path(self.root) / "plugins_registry" / name)


class NodePluginRunner:
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
        self._plugin = plugin
        self._client = client
        self._options = options
        self._clock = clock
        self._metrics = metrics
        # Allocates what is the node's own.
        self._local = local
        folder = options.folder(plugin.name)
        os.makedirs(folder, _FOLDER_MODE, exist_ok=True)
        self._informers = SharedInformerFactory(client, clock, random.Random())  # noqa: S311 - spreads load, guards nothing
        self._claims = self._informers.informer(CLASSIC_CLAIMS, indexes={_BY_UID: _uid_of})
        prepared = PreparedClaims(folder, options.cdi_folder)
        self._preparer = Preparer(PluginAuthor(plugin), self._fetch, prepared, folder, clock, metrics)
        # Set by the node agent's last word on the registration.
        self.registered = asyncio.Event()
        self.registration_error = ""
        plugin.node_name = options.node_name
        plugin.client = client

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set; whatever is prepared stays so, since Pods go on using it."""
        begun = self._plugin.start()
        if inspect.isawaitable(begun):
            await begun
        service = self._options.service_socket(self._plugin.name)
        registration = self._options.registration_socket(self._plugin.name)
        async with TaskGroup(self._plugin.name) as group:
            group.spawn(self._informers.run(), "informers")
            if self._local is not None:
                own = Options(node_name=self._options.node_name)
                group.spawn(serve(self._local, self._client, self._clock, self._metrics, own), "allocation")
            await self._claims.wait_for_sync()
            with sole_server(service):
                async with listening(self._service(), service), listening(self._registration(), registration):
                    _log.info("plugin runs", extra=fields(driver=self._plugin.name, node=self._options.node_name))
                    await group.wait(stop)
            await group.cancel()

    def _service(self) -> grpc.aio.Server:
        server = grpc.aio.server()
        add_node(ClassicNode(self._preparer), server)
        return server

    def _registration(self) -> grpc.aio.Server:
        server = grpc.aio.server()
        endpoint = self._options.service_socket(self._plugin.name)
        add_registration(Registration(self._plugin.name, endpoint, [VERSION], self._status, PLUGIN_TYPE), server)
        return server

    def _status(self, registered: bool, error: str) -> None:  # noqa: FBT001 - as it comes from the wire
        self.registration_error = error
        if registered:
            self.registered.set()
        else:
            self.registered.clear()

    # --- Claims by their UIDs. ---

    async def _fetch(self, ref: ClaimRef) -> FoundClaim:
        claim = await self._find(ref.uid)
        if claim is None:
            raise ClaimMissingError(f"resource {ref.uid} does not exist")
        check_allocated(claim, self._plugin.name)
        try:
            claim_class = await self._client.get(CLASSIC_CLASSES, claim.spec.resource_class_name)
        except NotFoundError:
            claim_class = None
        return FoundClaim(to_claim(claim, claim_class))

    async def _find(self, uid: UID) -> ResourceClaim | None:
        """The claim as it is now: what the informer knows may be older than what the node agent does."""
        known = next(iter(self._claims.lister.by_index(_BY_UID, uid)), None)
        if known is not None:
            try:
                found = await self._client.get(
                    CLASSIC_CLAIMS, known.metadata.name or "", known.metadata.namespace or ""
                )
            except NotFoundError:
                return None
            return found if found.metadata.uid == uid else None
        return _with_uid((await self._client.list(CLASSIC_CLAIMS)).items, uid)


def _uid_of(claim: Any) -> tuple[str, ...]:
    return (claim.metadata.uid or "",)


def _with_uid(claims: Iterable[ResourceClaim], uid: UID) -> ResourceClaim | None:
    return next((claim for claim in claims if claim.metadata.uid == uid), None)


@dataclass(frozen=True)
class NodeSettings:
    """The node plugin of a classic resource driver."""

    node_name: str = setting(STRING, "", "Node the plugin runs on.", environment="NODE_NAME")
    kubeconfig: str = setting(STRING, "", "Access to the API server; by default KUBECONFIG's, or a Pod's own.")
    root_dir: str = setting(STRING, ROOT, "kubelet's root folder.")
    cdi_dir: str = setting(STRING, CDI_FOLDER, "Folder of CDI files.")
    pod_uid: str = setting(STRING, "", "UID of the plugin's Pod, for rolling updates.", environment="POD_UID")
    metrics_port: int = setting(PORT, 0, "Port of /metrics and /healthz on loopback; 0 for none.")
    log_format: str = setting(STRING, "text", "text or json.")
    v: int = setting(number(0, 10), 0, "Detail of the log.", flag="v")


def run_node(
    plugin: NodePlugin,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] = os.environ,
    local: ClassicController | None = None,
) -> int:
    """The main function of a plugin's program: flags, logging, signals; returns the exit code.

    `local` allocates the node's own resources, for a driver whose controller is `node_local`.
    """
    arguments = sys.argv[1:] if argv is None else argv
    return run_program(
        lambda: _settings(arguments, environ),
        lambda settings: _run(plugin, settings, environ, local),
        (SocketError, KubeconfigError, RecordError),
    )


def _settings(argv: Sequence[str], environ: Mapping[str, str]) -> NodeSettings:
    settings = load(NodeSettings, argv, environ)
    if not settings.node_name:
        raise SettingsError("--node-name: needs a value")
    return settings


async def _run(
    plugin: NodePlugin, settings: NodeSettings, environ: Mapping[str, str], local: ClassicController | None
) -> None:
    clock, metrics = SystemClock(), Metrics()
    access = load_access(environ, path=settings.kubeconfig)
    client = http_client(access, clock, user_agent=f"{plugin.name}/dray")
    options = NodeOptions(settings.node_name, settings.root_dir, settings.cdi_dir, settings.pod_uid)
    stop = asyncio.Event()
    stop_on_signals(stop)
    try:
        async with TaskGroup(plugin.name) as group:
            if settings.metrics_port:
                await serve_health(group, "127.0.0.1", settings.metrics_port, metrics.exposition)
            await NodePluginRunner(plugin, client, options, clock, metrics, local).run(stop)
    finally:
        await client.close()


def main(
    controller: ClassicController,
    plugin: NodePlugin,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] = os.environ,
    local: ClassicController | None = None,
) -> int:
    """Run as the first argument says, `controller` or `node`, with the flags after it; returns the exit code.

    `local` runs beside the plugin and allocates what is the node's own.
    """
    given = sys.argv[1:] if argv is None else list(argv)
    match given[:1]:
        case ["controller"]:
            return run(controller, argv=given[1:], environ=environ)
        case ["node"]:
            return run_node(plugin, given[1:], environ, local)
    sys.stderr.write("the first argument must be controller or node\n")
    return 2
