"""gRPC services of a DRA driver: registration, the DRA service in all versions, health. They only translate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any, Final

import grpc

from dray.api.document import UID, NamespacedName
from dray.driver.health import WATCHDOG_SECONDS, DeviceHealth, HealthReportOverdueError, HealthReports
from dray.driver.prepared.checkpoint import AnsweredDevice
from dray.driver.prepared.preparer import ClaimRef, DriverPreparer, Outcome
from dray.lib.clock import Clock
from dray.rpc.dra_services import DRA_PLUGIN
from dray.rpc.pb.plugin_registration.v1 import api_pb2 as registration
from dray.rpc.pb.plugin_registration.v1.api_pb2_grpc import RegistrationServicer
from dray.runtime.logs import fields
from dray.runtime.tasks import pause

_log = logging.getLogger(__name__)

_MISSING: Final = Outcome(error="driver returned no result")
_NO_HEALTH: Final = "device health reporting is not supported by this driver"


class Registration(RegistrationServicer):  # type: ignore[misc]
    """Describes the plugin to kubelet and receives the registration status."""

    def __init__(
        self,
        name: str,
        endpoint: str,
        services: Sequence[str],
        on_status: Callable[[str | None], None],
        plugin_type: str = DRA_PLUGIN,
    ) -> None:
        self._info = registration.PluginInfo(
            type=plugin_type, name=name, endpoint=endpoint, supported_versions=services
        )
        self._on_status = on_status

    async def GetInfo(self, request: Any, context: Any) -> registration.PluginInfo:
        """Return name, endpoint and versions of the plugin."""
        return self._info

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> registration.RegistrationStatusResponse:
        """Pass on the error of the registration, None for success."""
        if not request.plugin_registered:
            _log.error("registration failed", extra=fields(driver=self._info.name, error=request.error))
        self._on_status(None if request.plugin_registered else request.error)
        return registration.RegistrationStatusResponse()


class DRAPlugin:
    """One version of the DRA service; `messages` is its generated module."""

    def __init__(self, preparer: DriverPreparer, messages: Any) -> None:
        self._preparer = preparer
        self._messages = messages

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:
        """Return one result per claim; the failure of one does not affect the others."""
        refs = _refs(request.claims)
        outcomes = await self._preparer.prepare(refs)
        response = self._messages.NodePrepareResourcesResponse()
        for ref in refs:
            response.claims[ref.uid].CopyFrom(self._prepared(outcomes.get(ref.uid, _MISSING)))
        return response

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        """Return one result per claim."""
        refs = _refs(request.claims)
        outcomes: Mapping[UID, Outcome] = await self._preparer.unprepare(refs)
        response = self._messages.NodeUnprepareResourcesResponse()
        for ref in refs:
            response.claims[ref.uid].error = outcomes.get(ref.uid, _MISSING).error
        return response

    def _prepared(self, outcome: Outcome) -> Any:
        devices = [] if outcome.error else [self._device(item) for item in outcome.devices]
        return self._messages.NodePrepareResourceResponse(devices=devices, error=outcome.error)

    def _device(self, item: AnsweredDevice) -> Any:
        message = self._messages.Device(
            request_names=item.request_names,
            pool_name=item.pool,
            device_name=item.name,
            cdi_device_ids=item.cdi_device_ids,
        )
        # v1beta1 has no shares.
        if item.share_id is not None and "share_id" in message.DESCRIPTOR.fields_by_name:
            message.share_id = item.share_id
        return message


def _refs(claims: Sequence[Any]) -> list[ClaimRef]:
    return [ClaimRef(UID(item.uid), NamespacedName(item.namespace, item.name)) for item in claims]


class HealthSource:
    """The driver's reports for the health services of all versions."""

    def __init__(self, reports: HealthReports, clock: Clock) -> None:
        self._reports = reports
        self._clock = clock
        self._watchers: set[asyncio.Event] = set()

    def report(self, devices: Sequence[DeviceHealth]) -> None:
        """Store a report and send it to all watchers."""
        self._reports.report(devices, self._clock.now())
        for watcher in self._watchers:
            watcher.set()

    async def watch(self) -> AsyncGenerator[Sequence[tuple[DeviceHealth, datetime]], None]:
        """Yield the complete list at first, after each report, and before it expires."""
        wake = asyncio.Event()
        self._watchers.add(wake)
        try:
            while True:
                wake.clear()
                yield self._reports.list(self._clock.now())
                await pause(self._clock, wake, self._reports.repeat_seconds())
        finally:
            self._watchers.discard(wake)

    async def run_watchdog(self, on_error: Callable[[Exception], None]) -> None:
        """Report overdue reports until cancelled."""
        while True:
            await self._clock.sleep(WATCHDOG_SECONDS)
            seconds = self._reports.overdue_seconds(self._clock.now())
            if seconds is not None:
                on_error(HealthReportOverdueError(f"no health report for {seconds:.0f} s: the devices become Unknown"))


class ResourceHealth:
    """One version of the health service; `messages` is its generated module, a driver without reports has no source."""

    def __init__(self, source: HealthSource | None, messages: Any) -> None:
        self._source = source
        self._messages = messages

    async def NodeWatchResources(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Stream until the caller cancels."""
        if self._source is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, _NO_HEALTH)
            return
        async with aclosing(self._source.watch()) as lists:
            async for devices in lists:
                yield self._messages.NodeWatchResourcesResponse(devices=[self._device(*item) for item in devices])

    def _device(self, item: DeviceHealth, time: datetime) -> Any:
        return self._messages.DeviceHealth(
            device=self._messages.DeviceIdentifier(pool_name=item.pool, device_name=item.device),
            health=item.health.name,
            last_updated_time=int(time.timestamp()),
            health_check_timeout_seconds=item.timeout_seconds,
            message=item.message,
        )
