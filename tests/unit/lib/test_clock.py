"""The virtual clock and the bounded set."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from dray.lib.clock import VirtualClock
from dray.lib.lru import LRUSet
from dray.runtime.system import SystemClock


async def test_sleepers_wake_in_the_order_of_their_time() -> None:
    clock = VirtualClock(asyncio.get_running_loop().create_future)
    woken: list[str] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    tasks = [asyncio.create_task(sleeper(name, seconds)) for name, seconds in (("b", 2), ("a", 1), ("c", 2))]
    await asyncio.sleep(0)
    assert clock.next_wakeup == 1
    clock.advance(0.5)
    await asyncio.sleep(0)
    assert woken == []
    clock.advance(1.5)
    await asyncio.gather(*tasks)
    assert woken == ["a", "b", "c"]
    assert clock.now() == datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC)
    assert clock.next_wakeup is None


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = VirtualClock(asyncio.get_running_loop().create_future)
    task = asyncio.create_task(clock.sleep(5))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert clock.next_wakeup is None
    clock.advance(10)


async def test_the_system_clock_is_aware_and_moves() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0.001)
    assert clock.monotonic() > before
    assert clock.now().tzinfo is UTC


def test_the_member_unused_for_longest_is_forgotten() -> None:
    members: LRUSet[str] = LRUSet(2)
    members.add("a")
    members.add("b")
    assert "a" in members
    members.add("c")
    assert [name for name in "abc" if name in members] == ["a", "c"]
    members.discard("a")
    assert len(members) == 1
