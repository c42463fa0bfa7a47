"""Task groups and signals."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import pytest

from dray.runtime.metrics import Metrics, exposition
from dray.runtime.signals import ignore_signals, stop_on_signals
from dray.runtime.tasks import TaskGroup


async def forever(cancelled: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.append("yes")
        raise


async def crash() -> None:
    raise ValueError("boom")


async def test_leaving_cancels_what_still_runs() -> None:
    cancelled: list[str] = []
    async with TaskGroup("test") as group:
        group.spawn(forever(cancelled), "one")
        group.spawn(forever(cancelled), "two")
        await asyncio.sleep(0)
    assert cancelled == ["yes", "yes"]


async def test_a_crash_is_logged_reaches_the_owner_and_stops_the_others(caplog: pytest.LogCaptureFixture) -> None:
    cancelled: list[str] = []

    async def own() -> None:
        async with TaskGroup("test") as group:
            group.spawn(forever(cancelled), "one")
            group.spawn(crash(), "two")
            await group.wait(asyncio.Event())

    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="boom"):
        await asyncio.wait_for(own(), 5)
    assert cancelled == ["yes"]
    assert any(record.message == "task crashed" for record in caplog.records)


async def test_a_crash_nobody_waited_for_is_raised_when_leaving() -> None:
    group = TaskGroup("test")
    with pytest.raises(ValueError, match="boom"):
        async with group:
            await asyncio.wait({group.spawn(crash(), "one")})


async def test_wait_returns_when_stopped_or_when_all_have_ended() -> None:
    stop = asyncio.Event()
    stop.set()
    async with TaskGroup("test") as group:
        group.spawn(forever([]), "one")
        await asyncio.wait_for(group.wait(stop), 5)
    async with TaskGroup("test") as group:
        group.spawn(asyncio.sleep(0), "one")
        await asyncio.wait_for(group.wait(), 5)


async def test_a_signal_sets_the_event() -> None:
    stop = asyncio.Event()
    stop_on_signals(stop)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), 5)
    finally:
        ignore_signals()


def test_metrics_are_made_once_and_rendered_without_creation_times() -> None:
    metrics = Metrics()
    metrics.counter("things_total", "Things", ("kind",)).labels("a").inc()
    metrics.counter("things_total", "Things", ("kind",)).labels("a").inc()
    assert metrics.value("things_total", {"kind": "a"}) == 2
    other = Metrics()
    other.gauge("depth", "Depth").set(3)
    page = exposition(metrics, other).decode()
    assert 'things_total{kind="a"} 2.0' in page
    assert "depth 3.0" in page
    assert "_created" not in page
