"""Runs a driver: its sockets, registration, slices, health; of a kubelet it knows paths and gRPC alone."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc.aio

from dray.client.credentials import load_access
from dray.client.http import http_client
from dray.client.interface import Client
from dray.client.kubeconfig import KubeconfigError
from dray.client.shared_informers import SharedInformerFactory
from dray.driver import servicer
from dray.driver.health import HealthBoard
from dray.driver.interface import DeviceHealth, Driver
from dray.driver.prepared.checkpoint import RecordError
from dray.driver.prepared.checkpoint_files import PreparedClaims
from dray.driver.prepared.preparer import Preparer, claims_from
from dray.driver.program import run_program
from dray.driver.publish.reconciler import REPAIR_SECONDS, PublishSettings, SlicePublisher
from dray.driver.sockets import sole_server
from dray.lib.clock import Clock
from dray.rpc.pb.dra.v1.api_pb2_grpc import add_DRAPluginServicer_to_server as add_v1
from dray.rpc.pb.dra.v1beta1.api_pb2_grpc import add_DRAPluginServicer_to_server as add_v1beta1
from dray.rpc.pb.dra_health.v1alpha1.api_pb2_grpc import add_DRAResourceHealthServicer_to_server as add_health
from dray.rpc.pb.plugin_registration.v1.api_pb2_grpc import add_RegistrationServicer_to_server as add_registration
from dray.rpc.sockets import SocketError, listen, remove_socket
from dray.runtime.clock import SystemClock
from dray.runtime.http.server import serve_health
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics
from dray.runtime.settings import BOOLEAN, PORT, STRING, SettingsError, load, number, setting
from dray.runtime.signals import stop_on_signals
from dray.runtime.tasks import TaskGroup

_log = logging.getLogger(__name__)

ROOT: Final = "/var/lib/kubelet"
CDI_FOLDER: Final = "/var/run/cdi"
V1: Final = "v1.DRAPlugin"
V1BETA1: Final = "v1beta1.DRAPlugin"
HEALTH: Final = "v1alpha1.DRAResourceHealth"
# How long calls under way may take when the driver is asked to stop.
STOP_SECONDS: Final = 5.0
_FOLDER_MODE: Final = 0o750


@dataclass(frozen=True, slots=True)
class Options:
    """Where a driver runs and how."""

    node_name: str
    # kubelet's root folder; registration and service sockets are below it unless their folders are given.
    root: str = ROOT
    registry_folder: str = ""
    plugin_folder: str = ""
    cdi_folder: str = CDI_FOLDER
    # Set for a rolling update: the sockets of two instances then do not collide.
    pod_uid: str = ""
    # In the order of preference that is told to the node agent.
    services: tuple[str, ...] = (V1, V1BETA1)
    # Calls follow each other, also those of several instances.
    serialize: bool = True
    remove_slices_on_stop: bool = False
    repair_seconds: float = REPAIR_SECONDS
    # Hears of trouble with publishing; the default logs it.
    on_error: Callable[[Exception], None] | None = field(default=None)

    def folder(self, driver: str) -> str:
        """The driver's own folder."""
        return self.plugin_folder or str(Path(self.root) / "plugins" / driver)

    def service_socket(self, driver: str) -> str:
        """Where the node agent calls the driver."""
        name = f"dra-{self.pod_uid}.sock" if self.pod_uid else "dra.sock"
        return str(Path(self.folder(driver)) / name)

    def registration_socket(self, driver: str) -> str:
        """Where the node agent finds the driver."""
        name = f"{driver}-{self.pod_uid}-reg.sock" if self.pod_uid else f"{driver}-reg.sock"
        return str(Path(self.registry_folder or Path(self.root) / "plugins_registry") / name)


class DriverRunner:
    """One instance of a driver; implements `dray.driver.interface.Host`."""

    def __init__(self, driver: Driver, client: Client, options: Options, clock: Clock, metrics: Metrics) -> None:
        self._driver = driver
        self._client = client
        self._options = options
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._folder = options.folder(driver.name)
        self._informers = SharedInformerFactory(client, clock, random.Random())  # noqa: S311 - spreads load, guards nothing
        settings = PublishSettings(driver.name, options.node_name, repair_seconds=options.repair_seconds)
        if options.on_error is not None:
            settings = PublishSettings(driver.name, options.node_name, options.on_error, options.repair_seconds)
        self.publisher = SlicePublisher(client, self._informers, clock, settings)
        self._board = HealthBoard()
        self._health = servicer.ResourceHealth(self._board, clock)
        os.makedirs(self._folder, _FOLDER_MODE, exist_ok=True)
        claims = PreparedClaims(self._folder, options.cdi_folder)
        lock_folder = self._folder if options.serialize else ""
        self._preparer = Preparer(driver, claims_from(client, driver.name), claims, lock_folder, clock, metrics)
        # Set by the node agent's last word on the registration.
        self.registered = asyncio.Event()
        self.registration_error = ""
        driver.host = self

    # --- For the driver. ---

    @property
    def node_name(self) -> str:
        """The node the driver runs on."""
        return self._options.node_name

    def publish(self) -> None:
        """Ask the driver for its pools, here and now, and have them published."""
        self._loop.call_soon_threadsafe(self.publisher.publish, self._driver.pools())

    def report_health(self, devices: Iterable[DeviceHealth]) -> None:
        """Pass the health on to the node agent."""
        self._loop.call_soon_threadsafe(self._reported, tuple(devices))

    # --- Running. ---

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set; whatever is prepared stays so, since Pods go on using it."""
        self._driver.start()
        async with self._serving(), TaskGroup(self._driver.name) as group:
            group.spawn(self._informers.run(), "informers")
            group.spawn(self.publisher.run(), "slices")
            self.publisher.publish(self._driver.pools())
            _log.info("driver runs", extra=fields(driver=self._driver.name, node=self._options.node_name))
            await group.wait(stop)
        if self._options.remove_slices_on_stop:
            await self.publisher.remove_all()

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        """The service's socket is there before the registration's, and goes after it."""
        service = self._options.service_socket(self._driver.name)
        registration = self._options.registration_socket(self._driver.name)
        with sole_server(service):
            async with listening(self._service(), service), listening(self._registration(), registration):
                yield

    def _service(self) -> grpc.aio.Server:
        server = grpc.aio.server()
        if V1 in self._options.services:
            add_v1(servicer.DRAV1(self._preparer), server)
        if V1BETA1 in self._options.services:
            add_v1beta1(servicer.DRAV1Beta1(self._preparer), server)
        if self._driver.reports_health:
            add_health(self._health, server)
        return server

    def _registration(self) -> grpc.aio.Server:
        server = grpc.aio.server()
        services = [*self._options.services, *([HEALTH] if self._driver.reports_health else [])]
        endpoint = self._options.service_socket(self._driver.name)
        add_registration(servicer.Registration(self._driver.name, endpoint, services, self._status), server)
        return server

    def _status(self, registered: bool, error: str) -> None:  # noqa: FBT001 - as it comes from the wire
        self.registration_error = error
        if registered:
            self.registered.set()
        else:
            self.registered.clear()

    def _reported(self, devices: Sequence[DeviceHealth]) -> None:
        self._board.report(devices)
        self._health.changed()


@asynccontextmanager
async def listening(server: grpc.aio.Server, path: str) -> AsyncIterator[None]:
    """Serve at the socket for the time of the block."""
    await listen(server, path)
    try:
        yield
    finally:
        # Gone before the last call has ended: nobody is to begin another.
        remove_socket(path)
        await server.stop(STOP_SECONDS)


@dataclass(frozen=True)
class Settings:
    """A DRA driver."""

    node_name: str = setting(STRING, "", "Node the driver runs on.", environment="NODE_NAME")
    kubeconfig: str = setting(STRING, "", "Access to the API server; by default KUBECONFIG's, or a Pod's own.")
    root_dir: str = setting(STRING, ROOT, "kubelet's root folder.")
    registry_dir: str = setting(STRING, "", "Folder of registration sockets; below the root folder by default.")
    plugin_dir: str = setting(STRING, "", "The driver's own folder; below the root folder by default.")
    cdi_dir: str = setting(STRING, CDI_FOLDER, "Folder of CDI files.")
    pod_uid: str = setting(STRING, "", "UID of the driver's Pod, for rolling updates.", environment="POD_UID")
    metrics_port: int = setting(PORT, 0, "Port of /metrics and /healthz on loopback; 0 for none.")
    remove_slices_on_stop: bool = setting(BOOLEAN, default=False, text="Withdraw the devices when stopping.")
    log_format: str = setting(STRING, "text", "text or json.")
    v: int = setting(number(0, 10), 0, "Detail of the log.", flag="v")


def run(driver: Driver, argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """The main function of a driver's program: flags, logging, signals; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    return run_program(
        lambda: _settings(arguments, environ),
        lambda settings: _run(driver, settings, environ),
        (SocketError, KubeconfigError, RecordError),
    )


def _settings(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    settings = load(Settings, argv, environ)
    if not settings.node_name:
        raise SettingsError("--node-name: needs a value")
    return settings


async def _run(driver: Driver, settings: Settings, environ: Mapping[str, str]) -> None:
    clock, metrics = SystemClock(), Metrics()
    client = http_client(load_access(environ, path=settings.kubeconfig), clock)
    options = Options(
        settings.node_name,
        settings.root_dir,
        settings.registry_dir,
        settings.plugin_dir,
        settings.cdi_dir,
        settings.pod_uid,
        remove_slices_on_stop=settings.remove_slices_on_stop,
    )
    stop = asyncio.Event()
    stop_on_signals(stop)
    try:
        async with TaskGroup("metrics") as group:
            if settings.metrics_port:
                await serve_health(group, "127.0.0.1", settings.metrics_port, metrics.exposition)
            await DriverRunner(driver, client, options, clock, metrics).run(stop)
    finally:
        await client.close()
