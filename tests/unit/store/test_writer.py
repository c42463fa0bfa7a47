"""The writer thread: what follows a failed write fails with it, and nothing else does."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from dray.store.interface import Entry, Event, EventType, StoreUnavailableError
from dray.store.sqlite_file import open_database
from dray.store.writer import Write, WriterThread

WAIT_SECONDS = 20.0


class Reports:
    """The writer's reports, by key."""

    def __init__(self) -> None:
        self.committed: list[str] = []
        self.failed: dict[str, str] = {}
        self.revisions: list[int] = []

    def writer(self, connection: sqlite3.Connection) -> WriterThread:
        """Return a writer that reports here."""
        return WriterThread(
            connection, record=self.revisions.append, committed=self.on_committed, failed=self.on_failed
        )

    def on_committed(self, writes: list[Write]) -> None:
        self.committed += [write.event.entry.key for write in writes]

    def on_failed(self, writes: list[Write], error: StoreUnavailableError) -> None:
        self.failed |= {write.event.entry.key: str(error) for write in writes}


def write(key: str, revision: int, epoch: int) -> Write:
    event = Event(EventType.PUT, Entry(key, b"{}", revision, revision), None)
    return Write(event, asyncio.get_running_loop().create_future(), epoch)


async def test_writes_after_a_failed_one_fail_until_the_next_epoch(tmp_path: Path) -> None:
    connection, _ = open_database(tmp_path / "state.db")
    reports = Reports()
    writer = reports.writer(connection)
    held = threading.Event()
    async with asyncio.timeout(WAIT_SECONDS):
        writer.submit([write("first", 10, 0)])
        await writer.run(lambda _: None)
        # The revision is taken.
        writer.submit([write("cause", 10, 0)])
        await writer.run(lambda _: None)
        # Both wait while the thread is busy, and are committed together.
        task = writer.submit_task(lambda _: held.wait(WAIT_SECONDS))
        writer.submit([write("dependent", 11, 0), write("also dependent", 12, 0)])
        writer.submit([write("independent", 11, 1)])
        held.set()
        await task
        await writer.stop()
    assert reports.committed == ["first", "independent"]
    assert reports.revisions == [10, 11]
    assert reports.failed.keys() == {"cause", "dependent", "also dependent"}
    assert reports.failed["cause"].startswith("the write could not be stored: ")
    assert reports.failed["dependent"].startswith("an earlier write could not be stored: ")
    connection.close()


async def test_a_failed_task_leaves_no_transaction_open(tmp_path: Path) -> None:
    connection, _ = open_database(tmp_path / "state.db")
    reports = Reports()
    writer = reports.writer(connection)

    def fail(inside: sqlite3.Connection) -> None:
        inside.execute("BEGIN")
        inside.execute("INSERT INTO state VALUES ('left', 1)")
        raise sqlite3.OperationalError("disk I/O error")

    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(StoreUnavailableError, match=r"^the database could not be changed: disk I/O error$"):
            await writer.run(fail)
        writer.submit([write("later", 10, 0)])
        await writer.stop()
    assert reports.committed == ["later"]
    assert connection.execute("SELECT count(*) FROM state WHERE name = 'left'").fetchone() == (0,)
    connection.close()


class NoRollback(sqlite3.Connection):
    """A connection that cannot roll back, as long as that is so."""

    broken = True

    def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        if statement == "ROLLBACK" and self.broken:
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(statement, *arguments)


async def test_nothing_is_acknowledged_in_a_transaction_that_cannot_be_rolled_back(tmp_path: Path) -> None:
    """It would be lost with the transaction."""
    open_database(tmp_path / "state.db")[0].close()
    connection = sqlite3.connect(
        tmp_path / "state.db", isolation_level=None, check_same_thread=False, factory=NoRollback
    )
    reports = Reports()
    writer = reports.writer(connection)

    def fail(inside: sqlite3.Connection) -> None:
        inside.execute("BEGIN")
        raise sqlite3.OperationalError("disk I/O error")

    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(StoreUnavailableError):
            await writer.run(fail)
        writer.submit([write("refused", 2, 0)])
        with pytest.raises(StoreUnavailableError):
            await writer.run(lambda _: None)
        assert (reports.committed, list(reports.failed)) == ([], ["refused"])
        connection.broken = False
        writer.submit([write("later", 2, 1)])
        await writer.stop()
    connection.close()
    reopened, loaded = open_database(tmp_path / "state.db")
    assert reports.committed == list(loaded.entries) == ["later"]
    reopened.close()


async def test_a_write_that_sqlite_cannot_take_fails_like_any_other(tmp_path: Path) -> None:
    connection, _ = open_database(tmp_path / "state.db")
    reports = Reports()
    writer = reports.writer(connection)

    def fail(_: sqlite3.Connection) -> None:
        raise ValueError("a bug")

    async with asyncio.timeout(WAIT_SECONDS):
        writer.submit([write("not valid \udcff", 10, 0)])
        with pytest.raises(StoreUnavailableError, match="a bug"):
            await writer.run(fail)
        writer.submit([write("later", 10, 1)])
        await writer.stop()
    assert list(reports.failed) == ["not valid \udcff"]
    assert reports.committed == ["later"]
    connection.close()


async def test_a_task_after_the_end_is_refused(tmp_path: Path) -> None:
    connection, _ = open_database(tmp_path / "state.db")
    writer = Reports().writer(connection)
    async with asyncio.timeout(WAIT_SECONDS):
        await writer.stop()
        with pytest.raises(StoreUnavailableError, match="the store is closed"):
            await writer.run(lambda _: None)
    connection.close()


def test_reports_after_the_loop_is_closed_are_dropped(tmp_path: Path) -> None:
    connection, _ = open_database(tmp_path / "state.db")
    reports = Reports()

    async def main() -> WriterThread:
        writer = reports.writer(connection)
        await writer.run(lambda _: None)
        return writer

    writer = asyncio.run(main())
    writer._inbox.put(None)
    # The thread ends without an error, which pytest would report.
    writer._thread.join(WAIT_SECONDS)
    assert not writer._thread.is_alive()
    connection.close()
