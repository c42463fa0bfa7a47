"""Time as an argument: the `Clock` protocol, and a virtual clock that moves only when told to."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol


class Clock(Protocol):
    """What a component may ask of time."""

    def now(self) -> datetime:
        """The wall-clock time, aware, in UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean anything."""

    async def sleep(self, seconds: float) -> None:
        """Wait; zero or less lets others run once."""


class Waiter(Protocol):
    """What a sleeper waits on; an event loop's future is one."""

    def done(self) -> bool:
        """Report whether it was woken or cancelled."""

    def set_result(self, result: None, /) -> None:
        """Wake the sleeper."""

    def __await__(self) -> Generator[Any, None, None]:
        """Wait for `set_result`."""


class VirtualClock:
    """A clock for tests and simulations; sleepers wake, in order of their time, when `advance` passes it."""

    def __init__(self, new_waiter: Callable[[], Waiter], start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._new_waiter = new_waiter
        self._start = start
        self._elapsed = 0.0
        self._count = 0
        # (time, order of arrival, sleeper); the second keeps equal times first come first served.
        self._sleepers: list[tuple[float, int, Waiter]] = []

    def now(self) -> datetime:
        """The start plus what was advanced."""
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Seconds advanced so far."""
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        """Wait until `advance` has moved this far; zero or less wakes at the next `advance`."""
        waiter = self._new_waiter()
        self._count += 1
        heapq.heappush(self._sleepers, (self._elapsed + max(seconds, 0.0), self._count, waiter))
        await waiter

    def advance(self, seconds: float) -> None:
        """Move time forward and wake whoever is due."""
        assert seconds >= 0, "time does not go back"
        self._elapsed += seconds
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            waiter = heapq.heappop(self._sleepers)[2]
            if not waiter.done():
                waiter.set_result(None)

    @property
    def next_wakeup(self) -> float | None:
        """When the next sleeper is due, as `monotonic` counts; None when nobody sleeps."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None
