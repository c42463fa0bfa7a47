"""The store in memory: nothing survives the process. Also the watch that all stores hand out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self

from dray.store.compaction import CompactionPolicy, CompactionSchedule
from dray.store.interface import Entry, Event, Page, StoreError, StoreUnavailableError
from dray.store.ledger import REVISION_OF_EMPTY, Ledger, guard, plan_create, plan_delete, plan_update
from dray.store.log import History, Hub, WatchBuffer, covers

# History beyond these bounds is compacted at once, so that memory stays bounded without `maintain`.
HISTORY_EVENTS_MAX = 100_000
HISTORY_BYTES_MAX = 256 * 1024 * 1024

REPLAY_EVENTS_MAX = 1_000

# Reads events of a prefix after a revision too old for the hub; returns them with the revision up to which
# they are complete, which is always greater than the one passed.
ReadPast = Callable[[str, int], Awaitable[tuple[tuple[Event, ...], int]]]


class BufferedWatch:
    """A watch that first reads what the hub has forgotten and then takes what the hub passes on."""

    def __init__(self, hub: Hub, prefix: str, *, after_revision: int, read_past: ReadPast) -> None:
        self._hub = hub
        self._prefix = prefix
        self._read_past = read_past
        self._cursor = after_revision
        self._buffer: WatchBuffer | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        # Events read by `prepare`, not delivered yet.
        self._early: tuple[Event, ...] = ()
        # Somebody asked for a batch even if it is empty.
        self._nudged = False
        self._join_hub()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[tuple[Event, ...]]:
        return self

    async def __anext__(self) -> tuple[Event, ...]:
        while not self._closed:
            buffer = self._buffer
            batch = await self._past() if buffer is None or self._early else self._take(buffer)
            if batch or self._nudged:
                self._nudged = False
                return batch
            # Joining the hub just now may have filled the buffer before anyone waited to be woken.
            if buffer is not None and not self._closed:
                await self._woken()
        raise StopAsyncIteration

    @property
    def progress(self) -> int:
        """All events up to this revision have been delivered or are not for this watch."""
        if self._early:
            return self._early[0].revision - 1
        return self._cursor if self._buffer is None else self._buffer.progress(self._hub.revision)

    def wake(self) -> None:
        """Make the iteration yield now, an empty batch if there is nothing."""
        self._nudged = True
        self._wake()

    async def prepare(self) -> None:
        """Begin to read the past, so that a starting revision that is gone is noticed now."""
        if self._buffer is None:
            self._early = await self._catch_up()

    async def aclose(self) -> None:
        """End the watch; iteration stops."""
        self._closed = True
        if self._buffer is not None:
            self._hub.unsubscribe(self._buffer)
        self._wake()

    def _join_hub(self) -> None:
        if self._hub.can_join(self._cursor):
            self._buffer = self._hub.subscribe(self._prefix, after_revision=self._cursor, wake=self._wake)

    async def _past(self) -> tuple[Event, ...]:
        if self._early:
            batch, self._early = self._early, ()
            return batch
        return await self._catch_up()

    async def _catch_up(self) -> tuple[Event, ...]:
        try:
            batch, self._cursor = await self._read_past(self._prefix, self._cursor)
        except StoreError:
            # The store closed meanwhile: that is an end, not a failure.
            batch = ()
            if not (self._hub.ended or self._closed):
                self._closed = True
                raise
        self._join_hub()
        return batch

    def _take(self, buffer: WatchBuffer) -> tuple[Event, ...]:
        batch = buffer.take()
        if not batch and buffer.ended:
            self._closed = True
            if buffer.error is not None:
                raise buffer.error
        return batch

    def _woken(self) -> asyncio.Future[None]:
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class MemoryStore:
    """Implements `dray.store.interface.Store`."""

    def __init__(self, policy: CompactionPolicy | None = None) -> None:
        history = History(REVISION_OF_EMPTY, events_max=HISTORY_EVENTS_MAX, bytes_max=HISTORY_BYTES_MAX)
        self._ledger = Ledger({}, revision=REVISION_OF_EMPTY, compacted=0, history=history)
        self._history = history
        self._schedule = CompactionSchedule(policy or CompactionPolicy())
        self._closed = False

    async def revision(self) -> int:
        """The newest committed revision."""
        return self._open_ledger().revision

    async def compacted_revision(self) -> int:
        """The oldest revision that can be listed or watched from; 0 at first."""
        return self._open_ledger().compacted

    async def get(self, key: str) -> Entry | None:
        """The newest entry of the key."""
        return self._open_ledger().index.get(key)

    async def create(self, key: str, value: bytes) -> Entry:
        """Write a key that must not exist."""
        ledger = self._open_ledger()
        return self._commit(plan_create(ledger.index.get(key), key, value, revision=ledger.revision + 1))

    async def update(self, key: str, value: bytes, *, expected_revision: int) -> Entry:
        """Replace the value if the key is still at `expected_revision`."""
        ledger = self._open_ledger()
        current = guard(ledger.index.get(key), key, expected_revision)
        return self._commit(plan_update(current, value, revision=ledger.revision + 1))

    async def delete(self, key: str, *, expected_revision: int) -> Entry:
        """Remove the key if it is still at `expected_revision`."""
        ledger = self._open_ledger()
        current = guard(ledger.index.get(key), key, expected_revision)
        return self._commit(plan_delete(current, revision=ledger.revision + 1))

    async def list_page(self, prefix: str, *, limit: int = 0, start_after: str = "", revision: int = 0) -> Page:
        """Entries under the prefix in key order."""
        ledger = self._open_ledger()
        if revision in (0, ledger.revision):
            return ledger.page(prefix, limit=limit, start_after=start_after)
        ledger.check_readable(revision)
        overlay = self._history.undo(max(revision, REVISION_OF_EMPTY))
        return ledger.page_at(prefix, limit=limit, start_after=start_after, revision=revision, overlay=overlay)

    async def count(self, prefix: str) -> int:
        """How many keys begin with the prefix now."""
        return self._open_ledger().index.count(prefix)

    async def watch(self, prefix: str, *, after_revision: int) -> BufferedWatch:
        """Events of keys under `prefix` with revision > `after_revision`."""
        ledger = self._open_ledger()
        ledger.check_readable(after_revision)
        start = max(after_revision, REVISION_OF_EMPTY)
        return BufferedWatch(ledger.hub, prefix, after_revision=start, read_past=self._read_past)

    async def compact(self, revision: int) -> None:
        """Forget history before `revision`."""
        ledger = self._open_ledger()
        ledger.check_readable(max(revision, ledger.compacted))
        self._history.trim(revision)
        ledger.compacted = max(revision, ledger.compacted)

    async def maintain(self, now_seconds: float) -> None:
        """Compact what has grown too old or too long."""
        ledger = self._open_ledger()
        due = self._schedule.due(now_seconds, revision=ledger.revision, compacted=ledger.compacted)
        if due:
            await self.compact(due)

    async def close(self) -> None:
        """End all watches."""
        self._closed = True
        self._ledger.hub.close()

    def _open_ledger(self) -> Ledger:
        if self._closed:
            raise StoreUnavailableError("the store is closed")
        return self._ledger

    def _commit(self, event: Event) -> Entry:
        self._ledger.apply((event,))
        if self._history.floor > REVISION_OF_EMPTY:
            self._ledger.compacted = max(self._ledger.compacted, self._history.floor)
        return event.entry

    async def _read_past(self, prefix: str, after_revision: int) -> tuple[tuple[Event, ...], int]:
        self._open_ledger().check_readable(after_revision)
        events = self._history.after(after_revision, limit=REPLAY_EVENTS_MAX)
        return tuple(event for event in events if covers(prefix, event.entry.key)), events[-1].revision
