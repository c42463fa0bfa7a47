"""The writes of a store that are planned and not committed yet.

A write is decided at once against what is committed plus what is on its way to disk. Writes are committed in the order
of their revisions, many at a time: if one fails, all that were planned after it fail too.

Readers see only what is committed. Components of the same process may see more (`UncommittedView`): what was planned in
earlier iterations of the event loop, unless many writes are on their way. A crash takes them along with the writes that
it loses, and what they write in turn is committed later. They do not wait for the disk, so their writes are submitted
when there is a pause.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence

from dray.store.interface import (
    Entry,
    Event,
    EventType,
    KeyExistsError,
    KeyNotFoundError,
    RevisionConflictError,
    RolledBackError,
    StoreUnavailableError,
)
from dray.store.state import StoreState
from dray.store.watch_hub import EventHistory, WatchHub
from dray.store.writer import Write, WriterThread

# Planned writes that are not committed; with more the disk is too slow and callers are refused.
WRITES_PENDING_MAX = 65_536
# Writes that nobody waits for are submitted after so many iterations of the event loop without another one: a component
# reacts to a write of another one within so many. A commit costs as much as some fifty empty iterations.
QUIET_ITERATIONS = 4
# They are submitted in any case after this time: for so much longer, other processes do not see them.
DELAY_SECONDS_MAX = 0.01
# While more writes than these are not committed, components see further ones together after the next commit: watching
# many batches of few events takes more processor time than few batches of many, and no component is idle meanwhile.
SHOWN_AT_ONCE_MAX = 16

# Returns the event of a write, given the entry that it builds on and its revision; raises what the caller gets if it is
# refused. See `dray.store.state`.
Plan = Callable[[Entry | None, int], Event]


class PendingWrites:
    """Plans writes, submits them to the writer and applies its reports; all in the thread of the event loop."""

    def __init__(self, state: StoreState, connection: sqlite3.Connection, record: Callable[[int], None]) -> None:
        self._state = state
        self.writer = WriterThread(connection, record=record, committed=self._on_committed, failed=self._on_failed)
        self._loop = asyncio.get_running_loop()
        # The newest uncommitted write of each key.
        self._newest: dict[str, Write] = {}
        self._count = 0
        # The last revision that was assigned.
        self.planned = state.revision
        # Grows when planned writes are dropped because one has failed.
        self.epoch = 0
        # Planned in this iteration of the event loop.
        self._gathered: list[Write] = []
        # Planned in earlier iterations and not submitted to the writer; nobody waits for their commit.
        self._unsubmitted: list[Write] = []
        # Planned in earlier iterations and not visible to components of this process.
        self._unshown: list[Write] = []
        self._quiet_iterations = 0
        # Whether `_end_iteration` will be called; once for each iteration, since it counts them.
        self._is_end_scheduled = False
        self._submit_at = 0.0
        self._outcome: asyncio.Future[None] | None = None
        # Why the last write failed; None after one that succeeded. Only while it is None, planned writes are shown and
        # acknowledged before they are committed.
        self.failure: str | None = None
        # None until a component of this process needs it.
        self.view: UncommittedView | None = None
        self._closed = False

    def current(self, key: str) -> Entry | None:
        """Return the entry that a write builds on: the newest, committed or not."""
        if self._closed:
            raise StoreUnavailableError("the store is closed")
        write = self._newest.get(key)
        if write is None:
            return self._state.index.get(key)
        return write.event.entry if write.event.type is EventType.PUT else None

    async def commit(self, key: str, plan: Plan) -> Entry:
        """Plan a write; return when it is committed."""
        while True:
            try:
                event = plan(self.current(key), self.planned + 1)
            except (KeyExistsError, KeyNotFoundError, RevisionConflictError):
                # A refusal must describe a committed state: wait for pending writes of the key first.
                if key not in self._newest:
                    raise
                await self.next_outcome()
            else:
                return await self.queue(event)

    def queue(self, event: Event, *, waits: bool = True) -> asyncio.Future[Entry]:
        """Add a planned write; the future is done when it is committed or, if nobody waits for that, visible."""
        if self._count >= WRITES_PENDING_MAX:
            raise StoreUnavailableError(f"{WRITES_PENDING_MAX} writes are waiting for the disk")
        if not self._is_end_scheduled:
            self._schedule_end()
        write = Write(event, self._loop.create_future(), self.epoch, waits)
        self._gathered.append(write)
        self._newest[event.entry.key] = write
        self._count += 1
        self.planned = event.entry.revision
        return write.done

    def show(self) -> None:
        """Make the writes that were planned until now visible to components of this process."""
        self._take_gathered()
        if self.view is None:
            return
        writes, self._unshown = self._unshown, []
        self.view.planned([write.event for write in writes])
        for write in writes:
            if not write.waits and not write.done.done():
                write.done.set_result(write.event.entry)

    def submit(self) -> None:
        """Give all planned writes to the writer."""
        self._take_gathered()
        if self._unsubmitted:
            self.writer.submit(self._unsubmitted)
            self._unsubmitted = []

    def is_shown(self, key: str) -> bool:
        """Return whether components of this process see the newest write of a key."""
        write = self._newest.get(key)
        return write is None or self.view is None or write.event.entry.revision <= self.view.hub.revision

    def _take_gathered(self) -> None:
        writes = self._gathered
        if not writes:
            return
        self._gathered = []
        if not self._unsubmitted:
            self._submit_at = self._loop.time() + DELAY_SECONDS_MAX
        self._unsubmitted += writes
        self._quiet_iterations = 0
        if self.view is not None:
            self._unshown += writes
        for write in writes:
            if write.waits:
                self._submit_at = 0.0
                break

    def _schedule_end(self) -> None:
        self._is_end_scheduled = True
        self._loop.call_soon(self._end_iteration)

    def _end_iteration(self) -> None:
        """Submit the writes if somebody waits for them, if there was a pause, or if they have waited long enough."""
        self._is_end_scheduled = False
        if self._count > SHOWN_AT_ONCE_MAX:
            self._take_gathered()
        elif self._gathered or self._unshown:
            self.show()
        if not self._unsubmitted:
            return
        self._quiet_iterations += 1
        if self._quiet_iterations > QUIET_ITERATIONS or self._loop.time() >= self._submit_at:
            self.submit()
        else:
            self._schedule_end()

    def _on_committed(self, writes: list[Write]) -> None:
        """Apply what the writer has committed, and acknowledge it."""
        self.failure = None
        newest = self._newest
        self._count -= len(writes)
        for write in writes:
            if newest.get(write.event.entry.key) is write:
                del newest[write.event.entry.key]
        self._state.apply([write.event for write in writes])
        if self.view is not None:
            self.show()
        for write in writes:
            if not write.done.done():
                write.done.set_result(write.event.entry)
        self._announce_outcome()

    def _on_failed(self, writes: list[Write], failure: StoreUnavailableError) -> None:
        """Refuse what the writer could not commit, and everything that was planned after it."""
        self.failure = str(failure)
        if writes[0].epoch == self.epoch:
            # All planned writes depend on the failed ones: drop them and restart from the committed state.
            self.epoch += 1
            self._newest.clear()
            self.planned = self._state.revision
            writes = writes + self._unsubmitted + self._gathered
            self._unsubmitted, self._gathered, self._unshown = [], [], []
            if self.view is not None:
                self.view.roll_back()
        self._count -= len(writes)
        for write in writes:
            if not write.done.done():
                write.done.set_exception(type(failure)(*failure.args))
        self._announce_outcome()

    def close(self) -> None:
        """Submit what was planned, and refuse further writes."""
        self.submit()
        self._closed = True

    async def next_outcome(self) -> None:
        """Wait for the next report of the writer; not for the future of a write, which its caller may cancel."""
        self.submit()
        if self._outcome is None:
            self._outcome = self._loop.create_future()
        await asyncio.shield(self._outcome)

    async def settle(self) -> None:
        """Return when everything that is planned now was committed or has failed."""
        epoch, target = self.epoch, self.planned
        while self.epoch == epoch and self._state.revision < target:
            await self.next_outcome()

    def _announce_outcome(self) -> None:
        if self._outcome is not None:
            self._outcome.set_result(None)
            self._outcome = None


class UncommittedView:
    """What components of this process see: all planned writes, in the order of their revisions.

    After a write that failed, and until one succeeds, nothing is shown before it is committed.
    """

    def __init__(self, writes: PendingWrites, state: StoreState, new_history: Callable[[int], EventHistory]) -> None:
        self._writes = writes
        self._state = state
        self._new_history = new_history
        # Publishes the events of planned writes; replaced after a rollback. Those that are planned already are read
        # from the file by watches that need them.
        writes.show()
        self.hub = WatchHub(writes.planned, new_history(writes.planned))
        # Events that are not published, because an earlier write has failed.
        self._held_back: list[Event] = []
        # Called with the committed revision after writes that were shown have failed.
        self.on_roll_back: list[Callable[[int], None]] = []

    def get(self, key: str) -> Entry | None:
        """Return the newest entry of a key that is shown."""
        writes = self._writes
        if writes.failure is not None:
            return self._state.index.get(key)
        # Usually everything is shown that was planned.
        if self.hub.revision < writes.planned and not writes.is_shown(key):
            writes.show()
        return writes.current(key)

    def planned(self, events: Sequence[Event]) -> None:
        """Show the events of planned writes, with those held back before them; after a failure, hold all of them back.

        Also called after a commit, with which the failure is over: what was held back is shown even if nothing is new.
        """
        self._held_back += events
        if self._held_back and self._writes.failure is None:
            events, self._held_back = self._held_back, []
            self.hub.publish(events, events[-1].revision)

    def roll_back(self) -> None:
        """Return to the committed state; watches that were ahead of it end."""
        self._held_back.clear()
        if self.hub.revision <= self._state.revision:
            return
        hub, self.hub = self.hub, WatchHub(self._state.revision, self._new_history(self._state.revision))
        hub.close(RolledBackError(f"writes after revision {self._state.revision} could not be stored"))
        for listener in self.on_roll_back:
            listener(self._state.revision)
