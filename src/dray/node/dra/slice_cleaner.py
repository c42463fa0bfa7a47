"""Deletes the ResourceSlices of drivers that are gone, so that no Pod is scheduled to their devices.

All slices of the node are deleted when the agent starts; those of a driver 30 s after its last connected instance is
gone, unless one connects. A failed deletion is retried after 1 s, doubling up to 5 min.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from dray.api.errors import APIError, NotFoundError
from dray.client.interface import Client, ListOptions
from dray.client.resources import RESOURCE_SLICES
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.tasks import pause

_log = logging.getLogger(__name__)


class SliceCleaner:
    """Deletes the slices of one node when `SliceCleanup` says so."""

    def __init__(self, client: Client, node_name: str, clock: Clock) -> None:
        self._client = client
        self._node_name = node_name
        self._clock = clock
        self._plan = SliceCleanup(clock.monotonic())
        self._wake = asyncio.Event()

    def usable(self, driver: str) -> None:
        """Note that the driver is connected."""
        self._plan.usable(driver)

    def unusable(self, driver: str) -> None:
        """Note that no instance of the driver is connected."""
        self._plan.unusable(driver, self._clock.monotonic())
        self._wake.set()

    async def run(self) -> None:
        """Delete slices until cancelled, first those of all drivers."""
        while True:
            self._wake.clear()
            for driver in self._plan.due(self._clock.monotonic()):
                await self._delete(driver)
            due = self._plan.next_due()
            await pause(self._clock, self._wake, None if due is None else due - self._clock.monotonic())

    async def _delete(self, driver: str) -> None:
        selector = f"spec.nodeName={self._node_name}"
        if driver != EVERY_DRIVER:
            selector += f",spec.driver={driver}"
        try:
            await self._client.delete_collection(RESOURCE_SLICES, selection=ListOptions(field_selector=selector))
        except NotFoundError:
            pass
        except APIError as error:
            self._plan.failed(driver, self._clock.monotonic())
            _log.warning("slices not deleted", extra=fields(selector=selector, error=error))
            return
        self._plan.done(driver)
        _log.info("slices deleted", extra=fields(selector=selector))


WIPING_DELAY_SECONDS: Final = 30.0
RETRY_FIRST_SECONDS: Final = 1.0
RETRY_MAX_SECONDS: Final = 300.0
# Means every driver of the node.
EVERY_DRIVER: Final = ""


@dataclass(slots=True)
class _Pending:
    due: float
    failures: int = 0


class SliceCleanup:
    """The pending deletions. Pure; time is an argument."""

    def __init__(self, now: float) -> None:
        self._pending: dict[str, _Pending] = {EVERY_DRIVER: _Pending(now)}

    def usable(self, driver: str) -> None:
        """Cancel the deletion: the driver is connected."""
        self._pending.pop(driver, None)

    def unusable(self, driver: str, now: float) -> None:
        """Schedule the deletion: the driver's last connected instance is gone."""
        self._pending.setdefault(driver, _Pending(now + WIPING_DELAY_SECONDS))

    def due(self, now: float) -> tuple[str, ...]:
        """Return the drivers whose slices are to be deleted now."""
        return tuple(sorted(driver for driver, pending in self._pending.items() if pending.due <= now))

    def done(self, driver: str) -> None:
        """Note that the driver's slices are deleted."""
        self._pending.pop(driver, None)

    def failed(self, driver: str, now: float) -> None:
        """Schedule a retry, unless the driver has connected in the meantime."""
        pending = self._pending.get(driver)
        if pending is None:
            return
        pending.due = now + min(RETRY_FIRST_SECONDS * 2.0 ** min(pending.failures, 16), RETRY_MAX_SECONDS)
        pending.failures += 1

    def next_due(self) -> float | None:
        """Return when the next deletion is due."""
        return min((pending.due for pending in self._pending.values()), default=None)
