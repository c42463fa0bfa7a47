"""The embedded store: one SQLite file, group commits, and all current entries in memory.

Reads, watches and callers see a write after its commit; `PendingWrites` has those that are on their way to disk.
Reads of the newest state never touch the disk; earlier states are the newest one with the changes since undone, their
values read from the file.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from dray.store.asynchronous_commit import AsynchronousCommitView
from dray.store.buffered_watch import BufferedWatch
from dray.store.interface import (
    NO_GUARDS,
    AsynchronousCommit,
    Entry,
    Event,
    Page,
    RevisionCompactedError,
    StoreDamagedError,
    StoreUnavailableError,
)
from dray.store.pending_writes import PendingWrites, UncommittedView
from dray.store.revision_mark import RevisionMark
from dray.store.sqlite_file import connect_reader, find_problem, inodes, lock, open_database, shrink, sweep
from dray.store.sqlite_rows import (
    SELECT_AFTER,
    SELECT_CHANGES,
    TOUCH_STATE,
    UNMARKED_VERSION,
    Loaded,
    entry_of,
    event_of,
    select_statement,
)
from dray.store.state import (
    REVISION_OF_EMPTY,
    CompactionPolicy,
    CompactionSchedule,
    StoreState,
    plan_create,
    plan_delete,
    plan_update,
)
from dray.store.watch_hub import EventHistory, covers

# Recent events in memory, for watches that start from a recent revision; older ones are read from the file.
RECENT_EVENTS_MAX = 4096
RECENT_BYTES_MAX = 8 * 1024 * 1024
# Rows per read of older events and per step of a compaction: a few milliseconds each.
REPLAY_ROWS_MAX = 500
SWEEP_REVISIONS_MAX = 2_000
SELECT_ROWS_MAX = 500
# Steps in which the file shrinks, each time that it is maintained: up to 100 MiB.
SHRINK_STEPS_MAX = 50

T = TypeVar("T")


class SQLiteStore:
    """Implements `dray.store.interface.Store`; made by `open`."""

    # The file is locked by this process.
    shared = False

    def __init__(
        self, path: Path, held: IO[bytes], connection: sqlite3.Connection, loaded: Loaded, policy: CompactionPolicy
    ) -> None:
        self._held = held
        self._mark = RevisionMark(path, loaded.revision)
        self._inodes = inodes(path)
        self._connection = connection
        self._reading = connect_reader(path)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="store-reader")
        self._loop = asyncio.get_running_loop()
        self._history = _recent_history(loaded.revision)
        self._state = StoreState(
            loaded.entries, revision=loaded.revision, compacted=loaded.compacted, history=self._history
        )
        self._schedule = CompactionSchedule(policy)
        # Compacted rows are deleted up to this revision; it is behind `compacted` after a crash in between.
        self._swept = loaded.swept
        self._sweeping = asyncio.Lock()
        self._writes = PendingWrites(self._state, connection, self._mark.write)
        self._writer = self._writes.writer
        self._closed = False
        # A question to the writer that it has not answered; there is at most one.
        self._probe: asyncio.Future[Any] | None = None

    @classmethod
    async def open(
        cls, path: Path | str, *, policy: CompactionPolicy | None = None, for_new_fields: bool = False
    ) -> SQLiteStore:
        """Open or create the file; raise for one that is damaged or in use.

        With `for_new_fields` the file is marked, so that releases refuse it that would lose the newest fields.
        """
        path, version = Path(path), None if for_new_fields else UNMARKED_VERSION
        held = lock(path)
        try:
            connection, loaded = await asyncio.to_thread(open_database, path, version=version)
            try:
                return cls(path, held, connection, loaded, policy or CompactionPolicy())
            except BaseException:
                connection.close()
                raise
        except BaseException:
            held.close()
            raise

    def with_asynchronous_commit(self) -> AsynchronousCommit:
        """Return a view in which writes are visible and acknowledged before they are on disk."""
        if self._writes.view is None:
            self._writes.view = UncommittedView(self._writes, self._state, _recent_history)
        return AsynchronousCommitView(self, self._writes, self._writes.view, self._state, self._read_past)

    async def revision(self) -> int:
        """Return the newest committed revision."""
        return self._open_state().revision

    async def compacted_revision(self) -> int:
        """Return the oldest revision that can be listed or watched from; 0 at first."""
        return self._open_state().compacted

    async def get(self, key: str) -> Entry | None:
        """Return the newest entry of the key, or None."""
        return self._open_state().index.get(key)

    async def create(self, key: str, value: bytes) -> Entry:
        """Write a key that must not exist."""
        return await self._writes.commit(key, partial(plan_create, key, value))

    async def update(
        self, key: str, value: bytes, *, expected_revision: int, guards: Mapping[str, int] = NO_GUARDS
    ) -> Entry:
        """Replace the value if the key is still at `expected_revision`."""
        return await self._writes.commit(key, partial(plan_update, key, value, expected_revision))

    async def delete(self, key: str, *, expected_revision: int) -> Entry:
        """Remove the key if it is still at `expected_revision`."""
        return await self._writes.commit(key, partial(plan_delete, key, expected_revision))

    async def count(self, prefix: str) -> int:
        """Return the number of keys that begin with the prefix."""
        return self._open_state().index.count(prefix)

    async def list_page(self, prefix: str, *, limit: int = 0, start_after: str = "", revision: int = 0) -> Page:
        """Return entries under the prefix in key order."""
        state = self._open_state()
        if revision in (0, state.revision):
            return state.page(prefix, limit=limit, start_after=start_after)
        state.check_readable(revision)
        overlay = await self._undo(max(revision, REVISION_OF_EMPTY))
        page = state.page_at(prefix, limit=limit, start_after=start_after, revision=revision, overlay=overlay)
        return await self._filled(page)

    async def watch(self, prefix: str, *, after_revision: int) -> BufferedWatch:
        """Watch the keys under `prefix` for events with revision > `after_revision`."""
        state = self._open_state()
        state.check_readable(after_revision)
        start = max(after_revision, REVISION_OF_EMPTY)
        return BufferedWatch(state.hub, prefix, after_revision=start, read_past=self._read_past)

    async def compact(self, revision: int) -> None:
        """Forget history before `revision`."""
        state = self._open_state()
        state.check_readable(max(revision, state.compacted))
        async with self._sweeping:
            # Set first: readers must be refused before the first row is deleted.
            state.compacted = max(revision, state.compacted)
            while self._swept < state.compacted:
                self._open_state()
                end = min(state.compacted, self._swept + SWEEP_REVISIONS_MAX)
                await self._writer.run(_sweep(self._swept, end, compacted=state.compacted))
                self._swept = end

    async def maintain(self, now_seconds: float) -> None:
        """Compact as the policy demands, finish an interrupted compaction, shrink the file, and sync the mark."""
        state = self._open_state()
        await self._sync_mark()
        due = self._schedule.due(now_seconds, revision=state.revision, compacted=state.compacted)
        if due or self._swept < state.compacted:
            await self.compact(max(due, state.compacted))
        for _ in range(SHRINK_STEPS_MAX):
            if not await self._writer.run(shrink):
                break

    async def check_health(self, timeout_seconds: float) -> None:
        """Wait for the writer thread, which a disk that does not answer blocks."""
        await self._ask_writer(_read_version)

    async def check_ready(self, timeout_seconds: float) -> None:
        """Wait for the writer thread, and check its files and their disk; after a write that failed, try another."""
        problem = await self._ask_writer(lambda _: find_problem(self._inodes))
        if problem is not None:
            raise problem
        if self._writes.failure is None:
            return
        try:
            await self._ask_writer(_write_nothing)
        except StoreUnavailableError as error:
            raise StoreUnavailableError(f"{self._writes.failure}; another try: {error}") from error
        self._writes.failure = None

    async def close(self) -> None:
        """Finish pending writes, end all watches and release the file."""
        if self._closed:
            return
        self._writes.close()
        self._closed = True
        await self._writer.stop()
        self._state.hub.close()
        if self._writes.view is not None:
            self._writes.view.hub.close()
        await self._loop.run_in_executor(self._reader, self._reading.close)
        self._reader.shutdown()
        # Closing the last connection checkpoints the write-ahead log.
        self._connection.close()
        self._mark.close()
        self._held.close()

    async def _sync_mark(self) -> None:
        try:
            await self._loop.run_in_executor(self._reader, self._mark.sync)
        except OSError as error:
            raise StoreUnavailableError(f"the revision mark cannot be synced: {error.strerror}") from error

    async def _ask_writer(self, task: Callable[[sqlite3.Connection], T]) -> T:
        """Run a task on the writer, after an earlier one that still waits; the caller may give up waiting."""
        self._open_state()
        while self._probe is not None and not self._probe.done():
            await asyncio.wait((self._probe,))
        self._probe = probe = self._writer.submit_task(task)
        return await asyncio.shield(probe)

    def _open_state(self) -> StoreState:
        if self._closed:
            raise StoreUnavailableError("the store is closed")
        return self._state

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        self._open_state()
        try:
            return await self._loop.run_in_executor(self._reader, query, self._reading)
        except sqlite3.Error as error:
            raise StoreUnavailableError(f"history could not be read: {error}") from error

    async def _undo(self, revision: int) -> dict[str, Entry | None]:
        """Return the entries at a revision of the keys changed since; those from the file still lack their value."""
        overlay: dict[str, Entry | None] = {}
        while revision < self._history.floor:
            target = self._state.revision
            for key, previous in await self._read(_changes(revision, target)):
                # The oldest of several changes has the entry of that revision.
                overlay.setdefault(key, Entry(key, b"", previous, 0) if previous else None)
            revision = target
        return self._history.undo(revision) | overlay

    async def _filled(self, page: Page) -> Page:
        """Return the page with the values that `_undo` left out."""
        wanted = [entry.revision for entry in page.entries if entry.create_revision == 0]
        if not wanted:
            return page
        found = await self._read(_entries(wanted))
        state = self._open_state()
        if page.revision < state.compacted:
            raise RevisionCompactedError(state.compacted, state.revision)
        if len(found) != len(wanted):
            raise StoreDamagedError(f"{len(wanted) - len(found)} values of revision {page.revision} are missing")
        return replace(page, entries=tuple(found.get(entry.revision, entry) for entry in page.entries))

    async def _read_past(self, prefix: str, after_revision: int) -> tuple[tuple[Event, ...], int]:
        events = await self._read(_events_after(after_revision))
        state = self._open_state()
        if after_revision < state.compacted:
            raise RevisionCompactedError(state.compacted, state.revision)
        # Rows may be durable before the event loop knows; those come through the hub.
        known = [event for event in events if event.revision <= state.revision]
        return tuple(event for event in known if covers(prefix, event.entry.key)), known[-1].revision


def _recent_history(floor: int) -> EventHistory:
    return EventHistory(floor, events_max=RECENT_EVENTS_MAX, bytes_max=RECENT_BYTES_MAX)


def _changes(after: int, until: int) -> Callable[[sqlite3.Connection], list[tuple[str, int]]]:
    return lambda connection: connection.execute(SELECT_CHANGES, (after, until)).fetchall()


def _entries(revisions: Sequence[int]) -> Callable[[sqlite3.Connection], dict[int, Entry]]:
    def query(connection: sqlite3.Connection) -> dict[int, Entry]:
        found: dict[int, Entry] = {}
        for start in range(0, len(revisions), SELECT_ROWS_MAX):
            some = revisions[start : start + SELECT_ROWS_MAX]
            found |= {row[0]: entry_of(row) for row in connection.execute(select_statement(len(some)), some)}
        return found

    return query


def _events_after(revision: int) -> Callable[[sqlite3.Connection], list[Event]]:
    def query(connection: sqlite3.Connection) -> list[Event]:
        # One read transaction, so that a concurrent compaction cannot remove the previous rows.
        connection.execute("BEGIN")
        try:
            rows = connection.execute(SELECT_AFTER, (revision, REPLAY_ROWS_MAX)).fetchall()
            previous = _entries([row[4] for row in rows if row[4]])(connection)
        finally:
            connection.execute("COMMIT")
        return [event_of(row, previous.get(row[4])) for row in rows if row[4] == 0 or row[4] in previous]

    return query


def _read_version(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA data_version").fetchone()


def _write_nothing(connection: sqlite3.Connection) -> None:
    connection.execute(TOUCH_STATE)


def _sweep(after: int, until: int, *, compacted: int) -> Callable[[sqlite3.Connection], None]:
    """Return one step of a compaction, which also records its target."""
    return lambda connection: sweep(connection, after, until, compacted=compacted)
