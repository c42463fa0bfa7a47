"""Health of devices as the driver reports it. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

# A report is valid for `timeout_seconds`; it is repeated three times within.
REPEATS: Final = 3
REPEAT_SECONDS_MIN: Final = 1.0


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
    timeout_seconds: int = 30


class HealthReports:
    """The last report of each device."""

    def __init__(self) -> None:
        self._devices: dict[tuple[str, str], DeviceHealth] = {}

    def report(self, devices: Iterable[DeviceHealth]) -> None:
        """Store a report."""
        self._devices.update({(item.pool, item.device): item for item in devices})

    def list(self) -> tuple[DeviceHealth, ...]:
        """Return every device reported so far, by pool and name."""
        return tuple(self._devices[key] for key in sorted(self._devices))

    def repeat_seconds(self) -> float | None:
        """Return how soon the list must be sent again; None if it is empty."""
        shortest = min((item.timeout_seconds for item in self._devices.values()), default=None)
        return None if shortest is None else max(shortest / REPEATS, REPEAT_SECONDS_MIN)
