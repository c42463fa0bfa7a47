"""Garbage collections that hold up nobody: short ones while the process works, full ones while it is idle.

Reference counting frees nearly all garbage here. What is left are cycles, of which requests make none.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from typing import Final

# Allocations between collections, and collections of new objects between those of objects that have survived one.
# Measured with requests of 45,000 variables: the first take 5 ms at most, the second 29 ms, and both together 0.25 s of
# 3.1 s, as with 200,000, where the first take 27 ms and the second up to 0.3 s. Full ones are made here alone.
THRESHOLDS: Final = (20_000, 20, 1_000_000_000)
PERIOD_SECONDS: Final = 10.0
# A full collection waits until the process has used less than this share of a period, or for so many periods. Of the
# objects of 50,000 Pods it takes 57 ms.
_IDLE_SHARE: Final = 0.05
_PERIODS_MAX: Final = 360


async def run(
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    processor_seconds: Callable[[], float] = time.process_time,
) -> None:
    """Make full collections while the process is idle, if many objects have survived since the last one."""
    waited = 0
    while True:
        before = processor_seconds()
        await sleep(PERIOD_SECONDS)
        waited += 1
        _, _, survived = gc.get_count()
        is_idle = processor_seconds() - before < PERIOD_SECONDS * _IDLE_SHARE
        if survived and (is_idle or waited > _PERIODS_MAX):
            # Objects that were made at start-up are frozen.
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            waited = 0
