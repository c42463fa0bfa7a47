"""How often a driver's health stream is opened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from dray.lib.clock import VirtualClock
from dray.node.dra.driver_client import DriverClient
from dray.node.dra.health.watcher import HealthWatcher


class Endings:
    """A client whose streams end with the codes, one after the other, and then stay open."""

    driver, endpoint, health_service = "d", "/dra.sock", "v1.DRAResourceHealth"

    def __init__(self, clock: VirtualClock, *codes: grpc.StatusCode) -> None:
        self._clock = clock
        self._codes = list(codes)
        self.calls: list[float] = []
        self.is_open = asyncio.Event()

    async def watch_health(self) -> AsyncIterator[Sequence[Any]]:
        self.calls.append(self._clock.monotonic())
        identifier = SimpleNamespace(pool_name="p", device_name="x")
        yield [SimpleNamespace(device=identifier, health=1, message="", health_check_timeout_seconds=0)]
        if self._codes:
            raise grpc.aio.AioRpcError(self._codes.pop(0), grpc.aio.Metadata(), grpc.aio.Metadata(), "ended", "")
        self.is_open.set()
        await asyncio.Event().wait()


async def follow(tmp_path: Path, *codes: grpc.StatusCode) -> tuple[list[float], bool]:
    """Return the times of the calls, and whether the watcher still follows."""
    clock = VirtualClock(asyncio.get_running_loop().create_future)
    client = Endings(clock, *codes)
    start = clock.monotonic()
    watcher = HealthWatcher(str(tmp_path / "state"), clock, lambda _keys: None)
    task = asyncio.ensure_future(watcher.follow(cast("DriverClient", client)))
    is_open = asyncio.ensure_future(client.is_open.wait())
    while not (task.done() or is_open.done()):
        await asyncio.sleep(0)
        clock.advance(0.5)
    for each in (task, is_open):
        each.cancel()
    await asyncio.gather(task, is_open, return_exceptions=True)
    return [round(time - start, 1) for time in client.calls], task.cancelled()


@pytest.mark.behaviour("N-18")
async def test_a_stream_that_ends_is_opened_again_after_5_seconds(tmp_path: Path) -> None:
    calls, follows = await follow(tmp_path, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE)
    assert follows
    assert len(calls) == 3
    assert all(5.0 <= later - earlier <= 6.0 for earlier, later in pairwise(calls))


@pytest.mark.behaviour("N-18")
async def test_unimplemented_ends_the_asking(tmp_path: Path) -> None:
    calls, follows = await follow(tmp_path, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNIMPLEMENTED)
    assert not follows
    assert len(calls) == 2
