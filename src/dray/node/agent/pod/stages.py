"""How far a Pod has come, and when something of it is tried again."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime, timedelta


class Stage(enum.IntEnum):
    """How far the Pod has come; it never goes back."""

    ADMITTING = 1
    PREPARING = 2
    RUNNING = 3
    STOPPING = 4
    RELEASING = 5
    ENDED = 6
    FORGOTTEN = 7


@dataclass(slots=True)
class Retry:
    """When to try again something of the whole Pod."""

    at: datetime | None = None
    seconds: float = 0.0

    def failed(self, now: datetime, first: float, most: float) -> None:
        """Try later, and later still the next time."""
        self.seconds = min(self.seconds * 2, most) if self.seconds else first
        self.at = now + timedelta(seconds=self.seconds)

    def hasten(self, now: datetime) -> None:
        """Do not wait any longer, if that is what is being done."""
        if self.at is not None:
            self.at = now

    def due(self, now: datetime) -> bool:
        """Whether the time has come."""
        return self.at is not None and self.at <= now


def duration_text(seconds: float) -> str:
    """As Go writes it: 10s, 1m20s, 5m0s."""
    minutes, rest = divmod(seconds, 60)
    text = f"{rest:g}s"
    return f"{int(minutes)}m{text}" if minutes else text
