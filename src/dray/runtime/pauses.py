"""Waiting for a time or for being woken, whichever comes first."""

from __future__ import annotations

import asyncio
from typing import Any

from dray.lib.clock import Clock


async def pause(clock: Clock, wake: asyncio.Event, seconds: float | None) -> None:
    """Return when `wake` is set or the seconds are over; None waits for `wake` alone."""
    waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(wake.wait())]
    if seconds is not None:
        waits.append(asyncio.ensure_future(_sleep(clock, seconds)))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def _sleep(clock: Clock, seconds: float) -> None:
    await clock.sleep(max(seconds, 0.0))
