"""The size of the SQLite file: it shrinks again after many deletions, and keeps a stated bound."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dray.store import sqlite_file
from dray.store.sqlite import SQLiteStore
from dray.store.sqlite_file import FREE_PAGES_KEPT, surplus_pages

KEY = "/registry/core/events/default/{}"


def auto_vacuum(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA auto_vacuum").fetchone()[0])


async def fill(store: SQLiteStore, count: int) -> None:
    await asyncio.gather(*(store.create(KEY.format(number), b"x" * 2000) for number in range(count)))


async def clear(store: SQLiteStore) -> None:
    page = await store.list_page("/")
    await asyncio.gather(*(store.delete(entry.key, expected_revision=entry.revision) for entry in page.entries))
    await store.compact(await store.revision())


@pytest.mark.parametrize(
    ("free", "total", "surplus"),
    [
        (0, 1, 0),
        (FREE_PAGES_KEPT, FREE_PAGES_KEPT + 1, 0),
        (FREE_PAGES_KEPT + 5, FREE_PAGES_KEPT + 5, 5),
        # A quarter of 40,000 pages in use may be free as well.
        (10_000, 50_000, 0),
        (12_000, 52_000, 12_000 - FREE_PAGES_KEPT - 10_000),
    ],
)
def test_how_many_pages_are_returned(free: int, total: int, surplus: int) -> None:
    assert surplus_pages(free, total) == surplus


async def test_the_file_shrinks_after_many_deletions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "FREE_PAGES_KEPT", 16)
    monkeypatch.setattr(sqlite_file, "SHRINK_PAGES_MAX", 100)
    path = tmp_path / "state.db"
    store = await SQLiteStore.open(path)
    await fill(store, 1000)
    await store.maintain(0.0)
    await store._writer.run(lambda connection: connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall())
    full = path.stat().st_size
    await clear(store)
    await store.maintain(0.0)
    assert full > 2_000_000
    assert path.stat().st_size < 200_000
    # It grows again, with everything in place.
    await fill(store, 100)
    await store.close()
    store = await SQLiteStore.open(path)
    assert await store.count("/") == 100
    await store.close()


async def test_a_file_of_an_older_version_is_rewritten_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "state.db"
    store = await SQLiteStore.open(path)
    await fill(store, 10)
    await store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA auto_vacuum = NONE")
        connection.execute("VACUUM")
        connection.execute("PRAGMA journal_mode = WAL")
    assert auto_vacuum(path) == 0
    with caplog.at_level("INFO"):
        for _ in range(2):
            store = await SQLiteStore.open(path)
            assert await store.count("/") == 10
            await store.close()
    assert auto_vacuum(path) == 2
    assert caplog.text.count("rewriting") == 1
