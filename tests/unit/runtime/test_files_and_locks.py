"""Files that survive a crash, and locks by key."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dray.runtime.files import remove_file, replace_file
from dray.runtime.tasks import KeyedLocks


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    replace_file(str(path), b"old", 0o640)
    assert path.stat().st_mode & 0o777 == 0o640

    def full(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        replace_file(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["f"]


def test_removing_twice_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.touch()
    remove_file(str(path))
    remove_file(str(path))
    assert not path.exists()


async def test_locks_exclude_those_who_want_the_same_key() -> None:
    locks, order = KeyedLocks(), []

    async def work(name: str, keys: list[str], gate: asyncio.Event) -> None:
        async with locks.held(keys):
            order.append(name)
            await gate.wait()

    first, others = asyncio.Event(), asyncio.Event()
    others.set()
    tasks = [
        asyncio.create_task(work("ab", ["b", "a"], first)),
        asyncio.create_task(work("bc", ["c", "b"], others)),
        asyncio.create_task(work("d", ["d"], others)),
    ]
    await tasks[2]
    assert order == ["ab", "d"]
    first.set()
    await asyncio.gather(*tasks)
    assert order == ["ab", "d", "bc"]
    assert locks._locks == {}
