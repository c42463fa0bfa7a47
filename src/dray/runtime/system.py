"""The clock and the random source of the machine."""

from __future__ import annotations

import os
import random
import time
from datetime import UTC, datetime
from functools import partial
from typing import Final


class SystemClock:
    """Implements `dray.lib.clock.Clock` with the machine's time."""

    # Called so often that the cost of wrapping methods would be measurable.
    now = staticmethod(partial(datetime.now, UTC))  # noqa: TID251 - the only source of time
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        """Wait; zero or less yields to other tasks once."""
        # Commands without an event loop do not pay for the import.
        import asyncio

        await asyncio.sleep(max(seconds, 0.0))


# Bytes per system call, instead of seven.
_POOL_BYTES: Final = 4096


class PooledRandom(random.SystemRandom):
    """`SystemRandom` with a buffer: several times faster for small requests. Must not be used across a fork."""

    def __init__(self) -> None:
        super().__init__()
        self._pool = b""
        self._used = 0

    def random(self) -> float:
        """Return a number in [0.0, 1.0)."""
        return self.getrandbits(53) * 2.0**-53

    def getrandbits(self, k: int) -> int:
        """Return an integer with k random bits."""
        size = (k + 7) // 8
        if size > _POOL_BYTES:
            return int.from_bytes(os.urandom(size)) >> (size * 8 - k)
        end = self._used + size
        if end > len(self._pool):
            self._pool, self._used, end = os.urandom(_POOL_BYTES), 0, size
        taken = self._pool[self._used : end]
        self._used = end
        return int.from_bytes(taken) >> (size * 8 - k)
