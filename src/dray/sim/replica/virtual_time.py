"""An event loop in virtual time: it jumps to the next timer instead of waiting, and is deterministic."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")

START = datetime(2026, 1, 1, tzinfo=UTC)


class _VirtualSelector(selectors.SelectSelector):
    """There is no I/O in a simulation, so waiting only advances the time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "deadlock: every task waits and no timer is set"
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Single-threaded and without I/O: coroutines always run in the same order."""

    def __init__(self) -> None:
        self._selector_clock = _VirtualSelector()
        super().__init__(self._selector_clock)

    def time(self) -> float:
        """Seconds since the loop began."""
        return self._selector_clock.now


class LoopClock:
    """Implements `dray.lib.clock.Clock` with the loop's own time, counted from `start`."""

    def __init__(self, start: datetime = START) -> None:
        self._start = start

    def now(self) -> datetime:
        """The time of day."""
        return self._start + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        """Seconds since the loop began."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Sleep in virtual time."""
        await asyncio.sleep(max(seconds, 0.0))


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
