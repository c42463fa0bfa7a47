"""What only the SQLite store does: group commits, failing disks, migrations, reading the past from the file."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dray.store import pending_writes, sqlite_file
from dray.store import sqlite as sqlite_module
from dray.store.interface import (
    Entry,
    KeyExistsError,
    RevisionCompactedError,
    RevisionConflictError,
    StoreError,
    StoreLockedError,
    StoreUnavailableError,
)
from dray.store.sqlite import SQLiteStore
from dray.store.sqlite_file import lock, migrate, open_database
from dray.store.sqlite_rows import BATCH_ROWS_MAX, MIGRATIONS, UNMARKED_VERSION
from dray.store.state import CompactionPolicy
from tests.disk_faults import full_disk

PODS = "/registry/core/pods/ns/"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    opened = await SQLiteStore.open(path)
    yield opened
    await opened.close()


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


async def test_waiting_writes_share_a_commit(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []
    original = store._writes._on_committed

    def committed(writes: Any) -> None:
        batches.append(len(writes))
        original(writes)

    monkeypatch.setattr(store._writer, "_committed", committed)
    await asyncio.gather(*(store.create(f"{PODS}{number}", b"") for number in range(BATCH_ROWS_MAX + 100)))
    assert batches == [BATCH_ROWS_MAX, 100]


async def test_a_write_is_invisible_until_it_is_durable(store: SQLiteStore, path: Path) -> None:
    writing = asyncio.create_task(store.create(PODS + "a", b"1"))
    await asyncio.sleep(0)
    assert await store.get(PODS + "a") is None
    assert await store.count(PODS) == 0
    entry = await writing
    assert rows(path, "SELECT key, revision FROM log") == [(entry.key, entry.revision)]
    assert await store.get(PODS + "a") == entry


async def test_a_refusal_waits_for_the_write_it_is_due_to(store: SQLiteStore) -> None:
    writing = asyncio.create_task(store.create(PODS + "a", b"1"))
    await asyncio.sleep(0)
    with pytest.raises(KeyExistsError):
        await store.create(PODS + "a", b"2")
    assert writing.done()
    first = await writing
    updating = asyncio.create_task(store.update(PODS + "a", b"2", expected_revision=first.revision))
    await asyncio.sleep(0)
    with pytest.raises(RevisionConflictError) as conflict:
        await store.delete(PODS + "a", expected_revision=first.revision)
    assert conflict.value.current == await updating == await store.get(PODS + "a")


async def test_a_cancelled_caller_does_not_undo_its_write(store: SQLiteStore) -> None:
    writing = asyncio.create_task(store.create(PODS + "a", b"1"))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(KeyExistsError):
        await store.create(PODS + "a", b"2")
    entry = await store.get(PODS + "a")
    assert entry is not None
    assert entry.value == b"1"


async def test_a_full_disk_fails_the_writes_and_nothing_else(store: SQLiteStore) -> None:
    kept = await store.create(PODS + "kept", b"1")
    with full_disk():
        outcomes = await asyncio.gather(
            *(store.create(f"{PODS}{number}", b"x" * 4000) for number in range(20)),
            store.update(PODS + "kept", b"2", expected_revision=kept.revision),
            return_exceptions=True,
        )
        assert {type(outcome) for outcome in outcomes} == {StoreUnavailableError}
        assert (await store.list_page("/")).entries == (kept,)
        assert await store.revision() == kept.revision
    # With room again, writing goes on where it was.
    updated = await store.update(PODS + "kept", b"3", expected_revision=kept.revision)
    assert updated.revision == kept.revision + 1
    assert (await store.list_page("/")).entries == (updated,)


async def test_writes_after_a_failed_one_in_the_queue_fail_with_it(store: SQLiteStore, path: Path) -> None:
    """They were planned on top of what did not happen, though alone they would fit on the disk."""
    gate = threading.Event()
    queued = [
        store._writer.run(lambda _: gate.wait()),
        store.create(PODS + "a", b"x" * 9000),
        # Keeps the two writes from sharing a commit.
        store._writer.run(lambda _: None),
        store.create(PODS + "b", b"small"),
    ]
    tasks = []
    for each in queued:
        tasks.append(asyncio.ensure_future(each))
        # One turn to start it, one for what it gathered to reach the thread.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    with full_disk():
        gate.set()
        _, first, _, second = await asyncio.gather(*tasks, return_exceptions=True)
    outcomes = [first, second]
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailableError, StoreUnavailableError]
    entry = await store.create(PODS + "b", b"again")
    await store.close()
    again = await SQLiteStore.open(path)
    assert (await again.list_page("/")).entries == (entry,)
    await again.close()


async def test_too_many_waiting_writes_are_turned_away(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_writes, "WRITES_PENDING_MAX", 10)
    outcomes = await asyncio.gather(*(store.create(f"{PODS}{n}", b"") for n in range(15)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Entry] * 10 + [StoreUnavailableError] * 5


async def test_everything_is_there_after_reopening(store: SQLiteStore, path: Path) -> None:
    first = await store.create(PODS + "a", b"1")
    second = await store.update(PODS + "a", b"2", expected_revision=first.revision)
    gone = await store.create(PODS + "b", b"")
    last = await store.delete(PODS + "b", expected_revision=gone.revision)
    await store.close()
    again = await SQLiteStore.open(path)
    assert (await again.list_page("/")).entries == (second,)
    assert await again.revision() == last.revision
    page = await again.list_page("/", revision=gone.revision)
    assert page.entries == (second, gone)
    async with await again.watch(PODS, after_revision=first.revision) as watch:
        batch = await asyncio.wait_for(anext(aiter(watch)), 10)
        assert [event.entry for event in batch] == [second, gone, last]
        assert [event.previous for event in batch] == [first, None, gone]
    await again.close()


async def test_a_watch_that_joins_after_reading_nothing_of_its_own_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the past held was for others; what joining the hub brought must not wait for the next event."""
    monkeypatch.setattr(sqlite_module, "RECENT_EVENTS_MAX", 2)
    monkeypatch.setattr(sqlite_module, "REPLAY_ROWS_MAX", 3)
    store = await SQLiteStore.open(path)
    start = await store.revision()
    for number in range(3):
        await store.create(f"/registry/other/{number}", b"")
    mine = await store.create(PODS + "a", b"")
    async with await store.watch(PODS, after_revision=start) as watch:
        assert [event.entry for event in await asyncio.wait_for(anext(aiter(watch)), 10)] == [mine]
    await store.close()


async def test_the_revision_does_not_go_back_when_all_rows_are_compacted(store: SQLiteStore, path: Path) -> None:
    entry = await store.create(PODS + "a", b"")
    last = await store.delete(PODS + "a", expected_revision=entry.revision)
    await store.compact(last.revision)
    await store.close()
    assert rows(path, "SELECT count(*) FROM log") == [(0,)]
    again = await SQLiteStore.open(path)
    assert await again.revision() == last.revision
    assert (await again.create(PODS + "a", b"")).revision == last.revision + 1
    await again.close()


async def test_compaction_keeps_one_row_for_each_live_key(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "SWEEP_REVISIONS_MAX", 7)
    entries = [await store.create(f"{PODS}{number}", b"0") for number in range(10)]
    for value in range(1, 6):
        entries = [await store.update(entry.key, b"%d" % value, expected_revision=entry.revision) for entry in entries]
    await store.delete(entries[0].key, expected_revision=entries[0].revision)
    await store.compact(await store.revision())
    assert rows(path, "SELECT count(*) FROM log") == [(9,)]
    assert (await store.list_page("/")).entries == tuple(entries[1:])


async def test_a_compaction_cut_short_is_finished_later(store: SQLiteStore, path: Path) -> None:
    entry = await store.create(PODS + "a", b"1")
    entry = await store.update(PODS + "a", b"2", expected_revision=entry.revision)
    await store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE state SET value = ? WHERE name = 'compacted_revision'", (entry.revision,))
    again = await SQLiteStore.open(path)
    assert await again.compacted_revision() == entry.revision
    with pytest.raises(RevisionCompactedError):
        await again.list_page("/", revision=entry.revision - 1)
    await again.maintain(0.0)
    assert rows(path, "SELECT revision FROM log") == [(entry.revision,)]
    await again.close()


async def test_maintenance_compacts_by_count(path: Path) -> None:
    store = await SQLiteStore.open(path, policy=CompactionPolicy(revisions_kept_max=5))
    entry = await store.create(PODS + "a", b"")
    for _ in range(20):
        entry = await store.update(entry.key, b"", expected_revision=entry.revision)
    await store.maintain(0.0)
    assert await store.compacted_revision() == entry.revision - 5
    await store.close()


def test_a_file_is_migrated_step_by_step(path: Path) -> None:
    connection, _ = open_database(path, MIGRATIONS)
    connection.close()
    more = (*MIGRATIONS, ("ALTER TABLE state ADD COLUMN note TEXT",), ("UPDATE state SET note = 'third'",))
    connection, loaded = open_database(path, more)
    with closing(connection):
        assert connection.execute("PRAGMA user_version").fetchone() == (len(more),)
        assert connection.execute("SELECT DISTINCT note FROM state").fetchall() == [("third",)]
    assert loaded.revision == 1


def test_a_migration_that_fails_leaves_the_version_before_it(path: Path) -> None:
    connection, _ = open_database(path, MIGRATIONS)
    broken = (*MIGRATIONS, ("CREATE TABLE half (x)", "no such statement"))
    with closing(connection):
        with pytest.raises(sqlite3.OperationalError):
            migrate(connection, broken)
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half'").fetchone() == (0,)


async def test_an_unwritable_place_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError):
        await SQLiteStore.open(tmp_path / "no such directory" / "store.db")


async def test_the_file_is_durable_and_marked(store: SQLiteStore, path: Path) -> None:
    settings = await store._writer.run(
        lambda connection: [
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "application_id", "user_version")
        ]
    )
    assert settings == ["wal", 2, 0x44726179, UNMARKED_VERSION]


async def test_a_file_has_one_user_until_it_is_closed(store: SQLiteStore, path: Path) -> None:
    with pytest.raises(StoreLockedError, match="in use by another process"):
        await SQLiteStore.open(path)
    await store.close()
    await (await SQLiteStore.open(path)).close()


@pytest.fixture
def damaged(path: Path) -> Path:
    path.write_bytes(b"not a database" * 1000)
    return path


async def test_a_failed_open_releases_the_lock(damaged: Path) -> None:
    with pytest.raises(StoreError) as raised:
        await SQLiteStore.open(damaged)
    # The error still refers to the frame that took the lock.
    lock(damaged).close()
    assert raised.value is not None


async def test_a_failed_open_closes_the_file(damaged: Path) -> None:
    with pytest.raises(StoreError) as raised:
        await SQLiteStore.open(damaged)
    # The error still refers to the frame that opened the file.
    assert damaged not in open_files()
    assert raised.value is not None


def open_files() -> set[Path]:
    """Return the files that this process has open."""
    return {link.resolve() for link in Path("/proc/self/fd").iterdir()}


async def test_a_file_without_a_log_gets_one(path: Path) -> None:
    """SQLite does not report that it could not switch to the log, for example because the disk was full."""
    store = await SQLiteStore.open(path)
    await store.create(PODS + "a", b"")
    await store.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    store = await SQLiteStore.open(path)
    assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    await store.create(PODS + "b", b"")
    await store.close()


def test_a_file_that_cannot_have_a_log_is_refused() -> None:
    """A database in memory, for example."""
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(sqlite3.OperationalError):
        sqlite_file._use_write_ahead_log(connection)


async def test_a_creation_cut_short_is_repeated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.with_name(path.name + ".new").write_bytes(b"unfinished")
    synced: list[bool] = []
    monkeypatch.setattr(sqlite_file, "sync_folder", lambda folder: synced.append((Path(folder) / path.name).exists()))
    store = await SQLiteStore.open(path)
    await store.create(PODS + "a", b"")
    await store.close()
    # The directory is synced after the rename: a crash leaves the whole file or none.
    assert synced == [True]
    assert not path.with_name(path.name + ".new").exists()
