"""The view of an embedded store in which writes are visible and acknowledged before they are on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from dray.store.buffered_watch import BufferedWatch, ReadPast
from dray.store.interface import (
    NO_GUARDS,
    Entry,
    Event,
    FutureRevisionError,
    Page,
    RevisionCompactedError,
    Store,
    StoreUnavailableError,
)
from dray.store.pending_writes import PendingWrites, Plan, UncommittedView
from dray.store.state import REVISION_OF_EMPTY, StoreState, plan_create, plan_delete, plan_update
from dray.store.watch_hub import WatchHub


class AsynchronousCommitView:
    """Implements `dray.store.interface.AsynchronousCommit`."""

    # The file is locked by this process.
    shared = False

    def __init__(
        self, store: Store, writes: PendingWrites, view: UncommittedView, state: StoreState, read_past: ReadPast
    ) -> None:
        self._store = store
        self._writes = writes
        self._view = view
        self._state = state
        self._read_committed_past = read_past

    def with_asynchronous_commit(self) -> AsynchronousCommitView:
        """Return this view."""
        return self

    def on_roll_back(self, listener: Callable[[int], None]) -> None:
        """Call the listener after each rollback."""
        self._view.on_roll_back.append(listener)

    def committed(self, key: str) -> Entry | None:
        """Return the newest durable entry of the key, or None."""
        return self._state.index.get(key)

    def committed_under(self, prefix: str) -> Sequence[Entry]:
        """Return the newest durable entries whose keys begin with the prefix, in key order."""
        return self._state.page(prefix, limit=0, start_after="").entries

    async def revision(self) -> int:
        """Return the newest revision that is shown."""
        await self._store.revision()
        return self._view.hub.revision

    async def compacted_revision(self) -> int:
        """Return the oldest revision that can be listed or watched from; 0 at first."""
        return await self._store.compacted_revision()

    async def get(self, key: str) -> Entry | None:
        """Return the newest entry of the key, or None."""
        return self._view.get(key)

    async def create(self, key: str, value: bytes) -> Entry:
        """Write a key that must not exist."""
        return await self._write(key, partial(plan_create, key, value))

    async def update(
        self, key: str, value: bytes, *, expected_revision: int, guards: Mapping[str, int] = NO_GUARDS
    ) -> Entry:
        """Replace the value if the key is still at `expected_revision`."""
        return await self._write(key, partial(plan_update, key, value, expected_revision))

    async def delete(self, key: str, *, expected_revision: int) -> Entry:
        """Remove the key if it is still at `expected_revision`."""
        return await self._write(key, partial(plan_delete, key, expected_revision))

    async def list_page(self, prefix: str, *, limit: int = 0, start_after: str = "", revision: int = 0) -> Page:
        """Return durable entries under the prefix in key order; all earlier writes are among them."""
        await self._writes.settle()
        return await self._store.list_page(prefix, limit=limit, start_after=start_after, revision=revision)

    async def count(self, prefix: str) -> int:
        """Return the number of durable keys that begin with the prefix; all earlier writes are counted."""
        await self._writes.settle()
        return await self._store.count(prefix)

    async def watch(self, prefix: str, *, after_revision: int) -> BufferedWatch:
        """Watch the keys under `prefix` for events with revision > `after_revision`."""
        compacted, hub = await self._store.compacted_revision(), self._view.hub
        if after_revision > hub.revision:
            raise FutureRevisionError(after_revision, hub.revision)
        if after_revision < compacted:
            raise RevisionCompactedError(compacted, hub.revision)
        start = max(after_revision, REVISION_OF_EMPTY)
        return BufferedWatch(hub, prefix, after_revision=start, read_past=partial(self._read_past, hub))

    async def compact(self, revision: int) -> None:
        """Forget history before `revision`."""
        await self._writes.settle()
        await self._store.compact(revision)

    async def maintain(self, now_seconds: float) -> None:
        """Compact as the policy demands."""
        await self._writes.settle()
        await self._store.maintain(now_seconds)

    async def check_health(self, timeout_seconds: float) -> None:
        """Check the store."""
        await self._store.check_health(timeout_seconds)

    async def check_ready(self, timeout_seconds: float) -> None:
        """Check the store."""
        await self._store.check_ready(timeout_seconds)

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()

    async def _write(self, key: str, plan: Plan) -> Entry:
        writes = self._writes
        if writes.failure is not None:
            return await writes.commit(key, plan)
        epoch = writes.epoch
        entry = await writes.queue(plan(writes.current(key), writes.planned + 1), waits=False)
        if writes.epoch != epoch and entry.revision > self._state.revision:
            # Another write has failed after this one was shown and before its caller continues, who would build on it.
            # No other write has its revision yet: what is planned after the failure is committed after this.
            raise StoreUnavailableError("the write was dropped, because another one could not be stored")
        return entry

    async def _read_past(self, hub: WatchHub, prefix: str, after_revision: int) -> tuple[tuple[Event, ...], int]:
        """Read older events from the store, as soon as it has any after the revision."""
        while not hub.ended and self._state.revision <= after_revision:
            await self._writes.next_outcome()
        if hub.ended:
            # What the watch has seen or waits for was rolled back; other writes may have its revisions.
            raise StoreUnavailableError("the watch has ended")
        return await self._read_committed_past(prefix, after_revision)
