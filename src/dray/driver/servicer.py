"""gRPC services of a DRA driver: registration, the DRA service in all versions, health. They only translate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

from dray.api.document import UID, NamespacedName
from dray.driver.health import DeviceHealth, HealthReports
from dray.driver.prepared.checkpoint import AnsweredDevice
from dray.driver.prepared.preparer import ClaimRef, DriverPreparer, Outcome
from dray.lib.clock import Clock
from dray.rpc.dra_services import DRA_PLUGIN
from dray.rpc.pb.dra_health.v1alpha1 import api_pb2 as health
from dray.rpc.pb.dra_health.v1alpha1.api_pb2_grpc import DRAResourceHealthServicer
from dray.rpc.pb.plugin_registration.v1 import api_pb2 as registration
from dray.rpc.pb.plugin_registration.v1.api_pb2_grpc import RegistrationServicer
from dray.runtime.logs import fields
from dray.runtime.tasks import pause

_log = logging.getLogger(__name__)

_MISSING: Final = Outcome(error="driver returned no result")


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


class ResourceHealth(DRAResourceHealthServicer):  # type: ignore[misc]
    """Sends the complete list at first, after each report, and before it expires."""

    def __init__(self, reports: HealthReports, clock: Clock) -> None:
        self._reports = reports
        self._clock = clock
        self._watchers: set[asyncio.Event] = set()

    def changed(self) -> None:
        """Send the list to all watchers."""
        for watcher in self._watchers:
            watcher.set()

    async def NodeWatchResources(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Stream until the caller cancels."""
        wake = asyncio.Event()
        self._watchers.add(wake)
        try:
            while True:
                wake.clear()
                devices = [_device_health(item, self._clock) for item in self._reports.list()]
                yield health.NodeWatchResourcesResponse(devices=devices)
                await pause(self._clock, wake, self._reports.repeat_seconds())
        finally:
            self._watchers.discard(wake)


def _device_health(item: DeviceHealth, clock: Clock) -> health.DeviceHealth:
    return health.DeviceHealth(
        device=health.DeviceIdentifier(pool_name=item.pool, device_name=item.device),
        health=item.health.name,
        last_updated_time=int(clock.now().timestamp()),
        health_check_timeout_seconds=item.timeout_seconds,
        message=item.message,
    )
