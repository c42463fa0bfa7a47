"""The `Clock` protocol, and a virtual clock for tests and simulations."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol


class Clock(Protocol):
    """The time source of a component."""

    def now(self) -> datetime:
        """Return the wall-clock time, aware, in UTC."""

    def monotonic(self) -> float:
        """Return monotonic seconds; only differences are meaningful."""

    async def sleep(self, seconds: float) -> None:
        """Wait; zero or less yields to other tasks once."""


class Waiter(Protocol):
    """What a sleeper waits on, for example a future."""

    def done(self) -> bool:
        """Report whether it was woken or cancelled."""

    def set_result(self, result: None, /) -> None:
        """Wake the sleeper."""

    def __await__(self) -> Generator[Any, None, None]:
        """Wait for `set_result`."""


class VirtualClock:
    """A clock that `advance` moves; it wakes the sleepers that are due, in order of their times."""

    def __init__(self, new_waiter: Callable[[], Waiter], start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._new_waiter = new_waiter
        self._start = start
        self._elapsed = 0.0
        self._count = 0
        # (time, sequence number, sleeper); the sequence number orders equal times.
        self._sleepers: list[tuple[float, int, Waiter]] = []

    def now(self) -> datetime:
        """Return the start time plus the elapsed time."""
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Return the elapsed seconds."""
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        """Wait until `advance` has moved this far; zero or less wakes at the next `advance`."""
        waiter = self._new_waiter()
        self._count += 1
        heapq.heappush(self._sleepers, (self._elapsed + max(seconds, 0.0), self._count, waiter))
        await waiter

    def advance(self, seconds: float) -> None:
        """Move time forward and wake the sleepers that are due."""
        assert seconds >= 0, "time does not go back"
        self._elapsed += seconds
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            waiter = heapq.heappop(self._sleepers)[2]
            if not waiter.done():
                waiter.set_result(None)

    @property
    def next_wakeup(self) -> float | None:
        """Return the monotonic time of the next sleeper, None when there is none."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None
