"""Health of devices as the driver reports it, and whether its reports are overdue. Pure; time is an argument.

By default the SDK repeats the last reports before they expire, as long as the driver's process runs. A driver whose
checks can hang sets `repeats_health = False`: its reports then expire, as with other SDKs, and an overdue report is an
error.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

# A report is valid for `timeout_seconds`; it is repeated three times within.
REPEATS: Final = 3
REPEAT_SECONDS_MIN: Final = 1.0
# Validity of a report whose timeout is not positive, as in kubelet.
TIMEOUT_SECONDS: Final = 30
# How often overdue reports are looked for.
WATCHDOG_SECONDS: Final = 10.0


class Health(enum.IntEnum):
    """The values of the health service."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """Health of a device; the SDK repeats it before it expires, as long as the driver runs."""

    pool: str
    device: str
    health: Health
    message: str = ""
    # Without a report for so long, the device's health is unknown.
    timeout_seconds: int = TIMEOUT_SECONDS

    @property
    def valid_seconds(self) -> int:
        """How long the report is valid."""
        return self.timeout_seconds if self.timeout_seconds > 0 else TIMEOUT_SECONDS


class HealthReportOverdueError(Exception):
    """The driver did not report health within the timeout of its last report; its devices become Unknown."""


class HealthReports:
    """The last report of each device."""

    def __init__(self, *, repeats: bool = True) -> None:
        self._repeats = repeats
        self._devices: dict[tuple[str, str], tuple[DeviceHealth, datetime]] = {}
        # The shortest validity in the last report, and when that was; None before the first one.
        self._last: tuple[int, datetime] | None = None
        # Whether the last report was found overdue.
        self._is_overdue = False

    def report(self, devices: Iterable[DeviceHealth], now: datetime) -> None:
        """Store a report."""
        items = tuple(devices)
        self._devices.update({(item.pool, item.device): (item, now) for item in items})
        self._last = min((item.valid_seconds for item in items), default=TIMEOUT_SECONDS), now
        self._is_overdue = False

    def list(self, now: datetime) -> tuple[tuple[DeviceHealth, datetime], ...]:
        """Return the devices to send, by pool and name, each with the time of its report."""
        found = [self._devices[key] for key in sorted(self._devices)]
        if self._repeats:
            return tuple((item, now) for item, _ in found)
        return tuple((item, time) for item, time in found if (now - time).total_seconds() <= item.valid_seconds)

    def repeat_seconds(self) -> float | None:
        """Return how soon the list must be sent again; None if it need not."""
        if not self._repeats or not self._devices:
            return None
        shortest = min(item.valid_seconds for item, _ in self._devices.values())
        return max(shortest / REPEATS, REPEAT_SECONDS_MIN)

    def overdue_seconds(self, now: datetime) -> float | None:
        """Return the time since the last report if that is longer than it is valid, once for each report."""
        if self._last is None or self._is_overdue:
            return None
        valid_seconds, time = self._last
        passed = (now - time).total_seconds()
        if passed <= valid_seconds:
            return None
        self._is_overdue = True
        return passed
