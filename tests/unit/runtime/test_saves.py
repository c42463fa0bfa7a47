"""Saves that are shared by those who wait."""

from __future__ import annotations

import asyncio

import pytest

from dray.runtime.saves import SharedSave


class Disk:
    """Has what was last saved; a save takes until it is let through."""

    def __init__(self) -> None:
        self.state = 0
        self.saved: list[int] = []
        self.gate = asyncio.Semaphore(0)
        self.fails = False
        self.save = SharedSave(self._write)

    async def _write(self) -> None:
        sample = self.state
        await self.gate.acquire()
        if self.fails:
            raise OSError("disk full")
        self.saved.append(sample)

    async def change_and_save(self) -> int:
        """What was on the disk, at least, when the change was."""
        self.state += 1
        mine = self.state
        await self.save()
        assert self.saved[-1] >= mine
        return mine


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_those_who_wait_share_the_next() -> None:
    disk = Disk()
    first = asyncio.create_task(disk.change_and_save())
    await settle()
    others = [asyncio.create_task(disk.change_and_save()) for _ in range(5)]
    await settle()
    disk.gate.release()
    await first
    assert not any(task.done() for task in others)
    disk.gate.release()
    assert await asyncio.gather(*others) == [2, 3, 4, 5, 6]
    assert disk.saved == [1, 6]


async def test_a_failure_is_everybodys_and_the_next_save_is_tried() -> None:
    disk = Disk()
    disk.fails = True
    tasks = [asyncio.create_task(disk.change_and_save()) for _ in range(2)]
    disk.gate.release()
    for task in tasks:
        with pytest.raises(OSError, match="disk full"):
            await task
    disk.fails = False
    disk.gate.release()
    assert await disk.change_and_save() == 3


async def test_one_who_gives_up_takes_it_from_nobody() -> None:
    disk = Disk()
    one, other = (asyncio.create_task(disk.change_and_save()) for _ in range(2))
    await settle()
    one.cancel()
    await settle()
    disk.gate.release()
    assert await other == 2
    assert one.cancelled()
