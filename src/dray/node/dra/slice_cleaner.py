"""Performs the deletions of slices when they are due."""

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
    """Deletes the slices of one node as `SliceCleanup` decides."""

    def __init__(self, client: Client, node_name: str, clock: Clock) -> None:
        self._client = client
        self._node_name = node_name
        self._clock = clock
        self._plan = SliceCleanup(clock.monotonic())
        self._wake = asyncio.Event()

    def usable(self, driver: str) -> None:
        """The driver is connected."""
        self._plan.usable(driver)

    def unusable(self, driver: str) -> None:
        """No instance of the driver is connected."""
        self._plan.unusable(driver, self._clock.monotonic())
        self._wake.set()

    async def run(self) -> None:
        """Delete until cancelled, beginning with everything of the node."""
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
            _log.warning("slices not deleted, will be retried", extra=fields(selector=selector, error=error))
            return
        self._plan.done(driver)
        _log.info("slices deleted", extra=fields(selector=selector))


WIPING_DELAY_SECONDS: Final = 30.0
RETRY_FIRST_SECONDS: Final = 1.0
RETRY_MAX_SECONDS: Final = 300.0
# Stands for every driver of the node.
EVERY_DRIVER: Final = ""


@dataclass(slots=True)
class _Pending:
    due: float
    failures: int = 0


class SliceCleanup:
    """The deletions to come."""

    def __init__(self, now: float) -> None:
        self._pending: dict[str, _Pending] = {EVERY_DRIVER: _Pending(now)}

    def usable(self, driver: str) -> None:
        """The driver is connected: its slices stay."""
        self._pending.pop(driver, None)

    def unusable(self, driver: str, now: float) -> None:
        """The driver's last connected instance is gone; an earlier notice of it still counts."""
        self._pending.setdefault(driver, _Pending(now + WIPING_DELAY_SECONDS))

    def due(self, now: float) -> tuple[str, ...]:
        """The drivers whose slices are to be deleted now."""
        return tuple(sorted(driver for driver, pending in self._pending.items() if pending.due <= now))

    def done(self, driver: str) -> None:
        """The driver's slices are deleted."""
        self._pending.pop(driver, None)

    def failed(self, driver: str, now: float) -> None:
        """The deletion failed; it is tried again unless the driver came back meanwhile."""
        pending = self._pending.get(driver)
        if pending is None:
            return
        pending.due = now + min(RETRY_FIRST_SECONDS * 2.0 ** min(pending.failures, 16), RETRY_MAX_SECONDS)
        pending.failures += 1

    def next_due(self) -> float | None:
        """When the next deletion is due."""
        return min((pending.due for pending in self._pending.values()), default=None)
