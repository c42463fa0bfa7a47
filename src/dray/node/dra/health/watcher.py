"""Watches the health streams of drivers, and maintains the health cache and its file.

A driver is watched with the newest health service that it lists. A stream that ends is opened again after a pause,
unless the driver does not implement the service: then it is not called again until it registers anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from dray.lib.clock import Clock
from dray.node.dra.driver_client import DriverClient
from dray.node.dra.health.cache import DEVICES_MAX, DeviceHealth, DeviceKey, Health, HealthCache
from dray.rpc.pb.dra_health.v1 import api_pb2 as pb
from dray.rpc.sockets import error_text
from dray.runtime.files import replace_file
from dray.runtime.logs import fields
from dray.runtime.tasks import pause

_log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0
_HEALTHS: Final = {pb.HEALTHY: Health.HEALTHY, pb.UNHEALTHY: Health.UNHEALTHY}


class HealthWatcher:
    """The health of the node's devices; `on_change` is called with the devices whose health changed."""

    def __init__(self, path: str, clock: Clock, on_change: Callable[[frozenset[DeviceKey]], None]) -> None:
        self._path = path
        self._clock = clock
        self._on_change = on_change
        self._cache = HealthCache()
        # By driver, the endpoint of its latest report: during a rolling update the end of the old stream is ignored.
        self._reporting_endpoints: dict[str, str] = {}
        self._wake = asyncio.Event()
        self._restore()

    def get(self, key: DeviceKey) -> DeviceHealth:
        """Return the device's current health."""
        return self._cache.get(key, self._clock.now())

    async def follow(self, connection: DriverClient) -> None:
        """Keep a stream to the instance open until cancelled, or until it answers UNIMPLEMENTED."""
        while True:
            try:
                async for devices in connection.watch_health():
                    self._reported(connection, devices)
            except grpc.aio.AioRpcError as error:
                details = fields(driver=connection.driver, service=connection.health_service, error=error_text(error))
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    _log.info("the driver does not report health", extra=details)
                    return
                _log.debug("health stream ended", extra=details)
            finally:
                self._ended(connection)
            await self._clock.sleep(RETRY_SECONDS)

    async def run(self) -> None:
        """Expire reports until cancelled."""
        while True:
            self._wake.clear()
            due = self._cache.next_expiry()
            # A report is valid up to and including its timeout; 10 ms later it is not.
            wait = None if due is None else (due - self._clock.now()).total_seconds() + 0.01
            await pause(self._clock, self._wake, wait)
            self._changed(self._cache.expire(self._clock.now()))

    def _reported(self, connection: DriverClient, devices: Sequence[Any]) -> None:
        reported = {
            (item.device.pool_name, item.device.device_name): DeviceHealth.reported(
                _HEALTHS.get(item.health, Health.UNKNOWN), item.message, item.health_check_timeout_seconds
            )
            for item in devices
        }
        self._reporting_endpoints[connection.driver] = connection.endpoint
        update = self._cache.report(connection.driver, reported, self._clock.now())
        if update.ignored:
            _log.error(
                "health of further devices ignored: the driver has too many, or their names are too long",
                extra=fields(driver=connection.driver, ignored=update.ignored, limit=DEVICES_MAX),
            )
        self._changed(update.changed)
        self._wake.set()

    def _ended(self, connection: DriverClient) -> None:
        if self._reporting_endpoints.get(connection.driver) == connection.endpoint:
            del self._reporting_endpoints[connection.driver]
            self._changed(self._cache.clear(connection.driver))

    def _changed(self, keys: frozenset[DeviceKey]) -> None:
        if not keys:
            return
        try:
            replace_file(self._path, self._cache.encode())
        except OSError as error:
            _log.warning("health state not written", extra=fields(error=error))
        self._on_change(keys)

    def _restore(self) -> None:
        try:
            self._cache.restore(Path(self._path).read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            _log.warning("health state not read", extra=fields(error=error))
