"""The driver's health board: what was reported last, and the complete list that watchers get. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dray.driver.interface import DeviceHealth

# A report counts for `timeout_seconds`; it is repeated three times within.
REPEATS: Final = 3
REPEAT_SECONDS_MIN: Final = 1.0


class HealthBoard:
    """The last word on each device."""

    def __init__(self) -> None:
        self._devices: dict[tuple[str, str], DeviceHealth] = {}
        # Grows with every report, so that watchers know whether they have seen it.
        self.revision = 0

    def report(self, devices: Iterable[DeviceHealth]) -> None:
        """Take in a report."""
        self._devices.update({(item.pool, item.device): item for item in devices})
        self.revision += 1

    def list(self) -> tuple[DeviceHealth, ...]:
        """Every device reported so far, by pool and name."""
        return tuple(self._devices[key] for key in sorted(self._devices))

    def repeat_seconds(self) -> float | None:
        """How soon the list must be sent again; None when there is nothing to repeat."""
        shortest = min((item.timeout_seconds for item in self._devices.values()), default=None)
        return None if shortest is None else max(shortest / REPEATS, REPEAT_SECONDS_MIN)
