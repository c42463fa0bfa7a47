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
from typing import Any, Final

import grpc.aio

from dray.api.device_metadata import DeviceMetadataError
from dray.api.types.resource_v1 import NetworkDeviceData
from dray.client.interface import Client
from dray.client.kubeconfig import KubeconfigError
from dray.client.shared_informers import SharedInformerFactory
from dray.driver import servicer
from dray.driver.author_errors import check_name, pools_of
from dray.driver.binder import DeviceBinder, is_overridden
from dray.driver.claims import AllocatedDevice, Claim, PreparedClaim, PreparedDevice
from dray.driver.device_status import DeviceCondition
from dray.driver.health import DeviceHealth, HealthReports
from dray.driver.interface import Driver, DriverError
from dray.driver.metadata.writer import MetadataWriter
from dray.driver.prepared.checkpoint import CheckpointError
from dray.driver.prepared.checkpoint_files import PreparedClaims
from dray.driver.prepared.preparer import DriverPreparer, PreparerOptions
from dray.driver.program import load_node_settings, program_context, run_program
from dray.driver.publish.reconciler import REPAIR_SECONDS, PublishSettings, SlicePublisher, log_publish_error
from dray.driver.sockets import RegisteredPlugin, listening, registration_socket, service_socket, sole_server
from dray.driver.status_reporter import StatusReporter
from dray.lib.clock import Clock
from dray.rpc.dra_services import DRA_SERVICES, HEALTH_SERVICES
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
    # Versions of the health service to serve, listed after the others; empty for none.
    health_services: tuple[str, ...] = tuple(HEALTH_SERVICES)
    # Calls do not overlap, also across instances.
    serialize: bool = True
    remove_slices_on_stop: bool = False
    repair_seconds: float = REPAIR_SECONDS
    # Called with errors of publishing and of status reports, and with overdue health reports; logged by default.
    on_error: Callable[[Exception], None] | None = field(default=None)

    def folder(self, driver: str) -> str:
        """Return the driver's own directory."""
        return self.plugin_folder or str(Path(self.root) / "plugins" / driver)

    def service_socket(self, driver: str) -> str:
        """Return the socket of the DRA service."""
        return service_socket(self.folder(driver), self.pod_uid)

    def registration_socket(self, driver: str) -> str:
        """Return the socket of the registration service."""
        folder = self.registry_folder or str(Path(self.root) / "plugins_registry")
        return registration_socket(folder, driver, self.pod_uid)


class DriverRunner(RegisteredPlugin):
    """One instance of a driver; implements `dray.driver.interface.Host`."""

    def __init__(self, driver: Driver, client: Client, options: Options, clock: Clock, metrics: Metrics) -> None:
        super().__init__()
        check_name(driver)
        self._driver = driver
        self._client = client
        self._options = options
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._folder = options.folder(driver.name)
        self.informers = SharedInformerFactory(client, clock, random.SystemRandom())
        settings = PublishSettings(
            driver.name, options.node_name, options.on_error or log_publish_error, options.repair_seconds
        )
        self.publisher = SlicePublisher(client, self.informers, clock, settings)
        self.status_reporter = StatusReporter(client, driver.name, clock, options.on_error or self._log_status_error)
        self._binder = None
        if is_overridden(driver):
            self._binder = DeviceBinder(driver, self.informers, self.status_reporter, clock, self.publisher.has_pool)
        self._health = servicer.HealthSource(HealthReports(repeats=driver.repeats_health), clock)
        os.makedirs(self._folder, _FOLDER_MODE, exist_ok=True)
        claims = PreparedClaims(self._folder, options.cdi_folder)
        lock_folder = self._folder if options.serialize else ""
        self._metadata = None
        if driver.metadata_versions is not None:
            self._metadata = MetadataWriter(driver.name, self._folder, options.cdi_folder, driver.metadata_versions)
        self._preparer = DriverPreparer(
            driver, client, PreparerOptions(driver.name, claims, lock_folder, clock, metrics), self._metadata
        )
        driver.host = self

    # --- For the driver. ---

    @property
    def node_name(self) -> str:
        """The node the driver runs on."""
        return self._options.node_name

    def publish(self) -> None:
        """Read the driver's pools in this thread and publish them."""
        self._loop.call_soon_threadsafe(self.publisher.publish, pools_of(self._driver))

    def report_health(self, devices: Iterable[DeviceHealth]) -> None:
        """Report the health of devices to kubelet."""
        self._loop.call_soon_threadsafe(self._health.report, tuple(devices))

    def report_status(
        self,
        claim: Claim | PreparedClaim,
        device: AllocatedDevice,
        *,
        conditions: Iterable[DeviceCondition] = (),
        data: Mapping[str, Any] | None = None,
        network: NetworkDeviceData | None = None,
    ) -> None:
        """Report a device's status in its claim, in the background; raises `DeviceStatusError`."""
        status = self.status_reporter.check(device, conditions, data, network)
        self._loop.call_soon_threadsafe(self.status_reporter.report, claim, device, status)

    def update_metadata(self, claim: Claim | PreparedClaim, request: str, devices: Iterable[PreparedDevice]) -> None:
        """Replace the metadata of a prepared request, in this thread; raises `DeviceMetadataError`."""
        if self._metadata is None:
            raise DeviceMetadataError(f"driver {self._driver.name} has no metadata_versions")
        self._metadata.update(claim, request, devices)

    # --- Running. ---

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set; prepared claims stay prepared, since Pods use them."""
        self._driver.start()
        async with self._serving(), TaskGroup(self._driver.name) as group:
            group.spawn(self.informers.run(), "informers")
            group.spawn(self.publisher.run(), "slices")
            group.spawn(self.status_reporter.run(), "device status")
            if self._binder is not None:
                group.spawn(self._binder.run(), "device binding")
            if self._driver.reports_health and not self._driver.repeats_health:
                group.spawn(self._health.run_watchdog(self._options.on_error or self._log_overdue), "health watchdog")
            self.publisher.publish(pools_of(self._driver))
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
        source = self._health if self._driver.reports_health else None
        for name, service in HEALTH_SERVICES.items():
            if name in self._options.health_services:
                service.add_servicer(servicer.ResourceHealth(source, service.messages), server)
        return server

    def _registration(self) -> grpc.aio.Server:
        server = grpc.aio.server()
        services = [*self._options.services, *(self._options.health_services if self._driver.reports_health else ())]
        endpoint = self._options.service_socket(self._driver.name)
        add_registration(servicer.Registration(self._driver.name, endpoint, services, self._on_registration), server)
        return server

    def _log_status_error(self, error: Exception) -> None:
        _log.error("device status not reported", extra=fields(driver=self._driver.name, error=error))

    def _log_overdue(self, error: Exception) -> None:
        _log.error("health report overdue", extra=fields(driver=self._driver.name, error=error))


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
        (DriverError, SocketError, KubeconfigError, CheckpointError, DeviceMetadataError),
    )


async def _run(driver: Driver, settings: Settings, environ: Mapping[str, str]) -> None:
    check_name(driver)
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
