"""Runs a DRA driver: sockets, registration, ResourceSlices, health. It works with any kubelet."""

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

from dray.client.interface import Client
from dray.client.kubeconfig import KubeconfigError
from dray.client.shared_informers import SharedInformerFactory
from dray.driver import servicer
from dray.driver.health import DeviceHealth, HealthReports
from dray.driver.interface import Driver
from dray.driver.prepared.checkpoint import CheckpointError
from dray.driver.prepared.checkpoint_files import PreparedClaims
from dray.driver.prepared.preparer import DriverPreparer, PreparerOptions
from dray.driver.program import load_node_settings, program_context, run_program
from dray.driver.publish.reconciler import REPAIR_SECONDS, PublishSettings, SlicePublisher
from dray.driver.sockets import RegisteredPlugin, listening, sole_server
from dray.lib.clock import Clock
from dray.rpc.dra_services import DRA_SERVICES, HEALTH
from dray.rpc.pb.dra_health.v1alpha1.api_pb2_grpc import add_DRAResourceHealthServicer_to_server as add_health
from dray.rpc.pb.plugin_registration.v1.api_pb2_grpc import add_RegistrationServicer_to_server as add_registration
from dray.rpc.sockets import SocketError
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics
from dray.runtime.settings import BOOLEAN, PORT, STRING, number, setting
from dray.runtime.tasks import TaskGroup

_log = logging.getLogger(__name__)

ROOT: Final = "/var/lib/kubelet"
CDI_FOLDER: Final = "/var/run/cdi"
_FOLDER_MODE: Final = 0o750


@dataclass(frozen=True, slots=True)
class Options:
    """Where a driver runs and how."""

    node_name: str
    # kubelet's root directory; the sockets are below it unless their directories are given.
    root: str = ROOT
    registry_folder: str = ""
    plugin_folder: str = ""
    cdi_folder: str = CDI_FOLDER
    # Set for rolling updates: the sockets of two instances then have different names.
    pod_uid: str = ""
    # In the order of preference reported to kubelet.
    services: tuple[str, ...] = tuple(DRA_SERVICES)
    # Calls do not overlap, also across instances.
    serialize: bool = True
    remove_slices_on_stop: bool = False
    repair_seconds: float = REPAIR_SECONDS
    # Called with errors of publishing; by default they are logged.
    on_error: Callable[[Exception], None] | None = field(default=None)

    def folder(self, driver: str) -> str:
        """Return the driver's own directory."""
        return self.plugin_folder or str(Path(self.root) / "plugins" / driver)

    def service_socket(self, driver: str) -> str:
        """Return the socket of the DRA service."""
        name = f"dra-{self.pod_uid}.sock" if self.pod_uid else "dra.sock"
        return str(Path(self.folder(driver)) / name)

    def registration_socket(self, driver: str) -> str:
        """Return the socket of the registration service."""
        name = f"{driver}-{self.pod_uid}-reg.sock" if self.pod_uid else f"{driver}-reg.sock"
        return str(Path(self.registry_folder or Path(self.root) / "plugins_registry") / name)


class DriverRunner(RegisteredPlugin):
    """One instance of a driver; implements `dray.driver.interface.Host`."""

    def __init__(self, driver: Driver, client: Client, options: Options, clock: Clock, metrics: Metrics) -> None:
        super().__init__()
        self._driver = driver
        self._client = client
        self._options = options
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._folder = options.folder(driver.name)
        self.informers = SharedInformerFactory(client, clock, random.SystemRandom())
        settings = PublishSettings(driver.name, options.node_name, repair_seconds=options.repair_seconds)
        if options.on_error is not None:
            settings = PublishSettings(driver.name, options.node_name, options.on_error, options.repair_seconds)
        self.publisher = SlicePublisher(client, self.informers, clock, settings)
        self._reports = HealthReports()
        self._health = servicer.ResourceHealth(self._reports, clock)
        os.makedirs(self._folder, _FOLDER_MODE, exist_ok=True)
        claims = PreparedClaims(self._folder, options.cdi_folder)
        lock_folder = self._folder if options.serialize else ""
        self._preparer = DriverPreparer(
            driver, client, PreparerOptions(driver.name, claims, lock_folder, clock, metrics)
        )
        driver.host = self

    # --- For the driver. ---

    @property
    def node_name(self) -> str:
        """The node the driver runs on."""
        return self._options.node_name

    def publish(self) -> None:
        """Read the driver's pools in this thread and publish them."""
        self._loop.call_soon_threadsafe(self.publisher.publish, self._driver.pools())

    def report_health(self, devices: Iterable[DeviceHealth]) -> None:
        """Report the health of devices to kubelet."""
        self._loop.call_soon_threadsafe(self._reported, tuple(devices))

    # --- Running. ---

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set; prepared claims stay prepared, since Pods use them."""
        self._driver.start()
        async with self._serving(), TaskGroup(self._driver.name) as group:
            group.spawn(self.informers.run(), "informers")
            group.spawn(self.publisher.run(), "slices")
            self.publisher.publish(self._driver.pools())
            _log.info("driver started", extra=fields(driver=self._driver.name, node=self._options.node_name))
            await group.wait(stop)
        if self._options.remove_slices_on_stop:
            await self.publisher.remove_all()

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        """Serve both sockets; the service is created before the registration and removed after it."""
        service = self._options.service_socket(self._driver.name)
        registration = self._options.registration_socket(self._driver.name)
        with sole_server(service):
            async with listening(self._service(), service), listening(self._registration(), registration):
                yield

    def _service(self) -> grpc.aio.Server:
        server = grpc.aio.server()
        for name, service in DRA_SERVICES.items():
            if name in self._options.services:
                service.add_servicer(servicer.DRAPlugin(self._preparer, service.messages), server)
        if self._driver.reports_health:
            add_health(self._health, server)
        return server

    def _registration(self) -> grpc.aio.Server:
        server = grpc.aio.server()
        services = [*self._options.services, *([HEALTH] if self._driver.reports_health else [])]
        endpoint = self._options.service_socket(self._driver.name)
        add_registration(servicer.Registration(self._driver.name, endpoint, services, self._on_registration), server)
        return server

    def _reported(self, devices: Sequence[DeviceHealth]) -> None:
        self._reports.report(devices)
        self._health.changed()


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
    metrics_port: int = setting(PORT, 0, "Port of metrics and health checks on loopback; 0 for none.")
    remove_slices_on_stop: bool = setting(BOOLEAN, default=False, text="Withdraw the devices when stopping.")
    log_format: str = setting(STRING, "text", "text or json.")
    v: int = setting(number(0, 10), 0, "Detail of the log.", flag="v")


def run(driver: Driver, argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run a driver as a program, with flags, logging and signals; return the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    return run_program(
        lambda: load_node_settings(Settings, arguments, environ),
        lambda settings: _run(driver, settings, environ),
        (SocketError, KubeconfigError, CheckpointError),
    )


async def _run(driver: Driver, settings: Settings, environ: Mapping[str, str]) -> None:
    options = Options(
        settings.node_name,
        settings.root_dir,
        settings.registry_dir,
        settings.plugin_dir,
        settings.cdi_dir,
        settings.pod_uid,
        remove_slices_on_stop=settings.remove_slices_on_stop,
    )
    async with program_context(settings, environ, driver.name) as program:
        runner = DriverRunner(driver, program.client, options, program.clock, program.metrics)
        program.health.add("informer-sync", runner.informers.out_of_sync)
        await runner.run(program.stop)
