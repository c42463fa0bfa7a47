"""The writer thread: the only writer of the database. It commits all waiting writes in one transaction.

A batch is one SQL statement and so one implicit transaction: the thread takes the interpreter lock a few times per
commit, not for every row, which matters when the event loop is busy. The event loop is woken once per commit.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeVar

import msgspec

from dray.store.interface import Entry, Event, StoreFullError, StoreUnavailableError
from dray.store.sqlite_file import is_full
from dray.store.sqlite_rows import BATCH_ROWS_MAX, insertion

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Write(msgspec.Struct, frozen=True):
    """A planned event and the future of its caller; events of one epoch depend on each other."""

    event: Event
    done: asyncio.Future[Entry]
    epoch: int
    # Whether the caller waits for the commit.
    waits: bool = True


@dataclass(frozen=True, slots=True)
class _Task:
    run: Callable[[sqlite3.Connection], object]
    done: asyncio.Future[object]


class WriterThread:
    """Commits writes in the order given and reports each commit, or its failure, to the event loop."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        record: Callable[[int], None],
        committed: Callable[[list[Write]], None],
        failed: Callable[[list[Write], StoreUnavailableError], None],
    ) -> None:
        self._connection = connection
        # Called in the thread with the revision of each commit before the commit is reported.
        self._record = record
        self._loop = asyncio.get_running_loop()
        self._committed = committed
        self._failed = failed
        self._inbox: SimpleQueue[list[Write] | _Task | None] = SimpleQueue()
        # Later writes of an epoch with a failure depend on what was rolled back. Used by the thread only.
        self._broken_epoch = -1
        self._broken: Exception = sqlite3.Error()
        # The thread takes nothing out of the inbox any more after what is in it now.
        self._stopping = False
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._work, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, writes: list[Write]) -> None:
        """Queue writes, to be committed in one transaction with others that wait."""
        self._inbox.put(writes)

    async def run(self, task: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function on the connection, between commits."""
        return await self.submit_task(task)

    def submit_task(self, task: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Queue a function, to be run on the connection between commits."""
        done: asyncio.Future[T] = self._loop.create_future()
        if self._stopping:
            done.set_exception(StoreUnavailableError("the store is closed"))
            return done
        self._inbox.put(_Task(task, done))  # type: ignore[arg-type]
        return done

    async def stop(self) -> None:
        """Commit the queued writes and end the thread."""
        self._stopping = True
        self._inbox.put(None)
        await asyncio.shield(self._stopped)
        self._thread.join()

    def _work(self) -> None:
        while self._work_once():
            pass

    def _work_once(self) -> bool:
        """Wait for work and perform all of it that can be committed together; return False after the last time."""
        writes: list[Write] = []
        task: _Task | None = None
        running = True
        for item in self._waiting():
            if item is None:
                running = False
            elif isinstance(item, _Task):
                task = item
            else:
                writes += item
        for start in range(0, len(writes), BATCH_ROWS_MAX):
            self._commit(writes[start : start + BATCH_ROWS_MAX])
        if task is not None:
            self._perform(task)
        if not running:
            self._report(_resolve, self._stopped, None)
        return running

    def _waiting(self) -> list[list[Write] | _Task | None]:
        """Return everything in the inbox up to the first item that is not a write."""
        items = [self._inbox.get()]
        while isinstance(items[-1], list):
            try:
                items.append(self._inbox.get_nowait())
            except Empty:
                break
        return items

    def _commit(self, writes: list[Write]) -> None:
        if writes[0].epoch == self._broken_epoch:
            broken = [write for write in writes if write.epoch == self._broken_epoch]
            self._report(self._failed, broken, _failure(self._broken, "an earlier write could not be stored"))
            writes = writes[len(broken) :]
        if writes:
            self._insert(writes)

    def _insert(self, writes: list[Write]) -> None:
        # All of one epoch: the event loop starts the next one only after a failure was reported.
        try:
            self._undo()
            self._connection.execute(*insertion([write.event for write in writes]))
        except Exception as error:  # noqa: BLE001 - the thread must go on, and the caller gets the error
            self._broken_epoch, self._broken = writes[0].epoch, error
            self._report(self._failed, writes, _failure(error, "the write could not be stored"))
        else:
            self._record(writes[-1].event.entry.revision)
            self._report(self._committed, writes)

    def _perform(self, task: _Task) -> None:
        try:
            self._undo()
            result = task.run(self._connection)
        except Exception as error:  # noqa: BLE001 - the thread must go on, and the caller gets the error
            self._report(_reject, task.done, _failure(error, "the database could not be changed"))
        else:
            self._report(_resolve, task.done, result)

    def _undo(self) -> None:
        """Roll back what failed before: SQLite usually does so by itself, but some errors leave the transaction open.

        Done before the next work and not after the failure, since it can fail, too. What is written in that transaction
        would be lost with it.
        """
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _report(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # The event loop was closed without closing the store; the result is not awaited.
            return


def _failure(error: Exception, what: str) -> StoreUnavailableError:
    if is_full(error):
        return StoreFullError(f"{what}: no space is left on the disk")
    if not isinstance(error, sqlite3.Error):
        _log.error("%s because of a bug", what, exc_info=error)
    return StoreUnavailableError(f"{what}: {error}")


def _resolve(future: asyncio.Future[object], result: object) -> None:
    if not future.done():
        future.set_result(result)


def _reject(future: asyncio.Future[object], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
