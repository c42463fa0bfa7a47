"""When to delete which driver's slices of this node.

Pure; time is an argument. All slices go when the node agent starts; those of a driver 30 s after its last connected
instance is gone, unless one comes back. A failed deletion is tried again after 1 s, doubling up to 5 min.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
