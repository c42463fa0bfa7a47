"""The store in memory: nothing survives the process."""

from __future__ import annotations

from collections.abc import Mapping

from dray.store.buffered_watch import BufferedWatch
from dray.store.interface import NO_GUARDS, Entry, Event, Page, StoreUnavailableError
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

# History beyond these bounds is compacted at once: memory is bounded even without `maintain`.
HISTORY_EVENTS_MAX = 100_000
HISTORY_BYTES_MAX = 256 * 1024 * 1024

REPLAY_EVENTS_MAX = 1_000


class MemoryStore:
    """Implements `dray.store.interface.Store`."""

    shared = False

    def __init__(self, policy: CompactionPolicy | None = None) -> None:
        history = EventHistory(REVISION_OF_EMPTY, events_max=HISTORY_EVENTS_MAX, bytes_max=HISTORY_BYTES_MAX)
        self._state = StoreState({}, revision=REVISION_OF_EMPTY, compacted=0, history=history)
        self._history = history
        self._schedule = CompactionSchedule(policy or CompactionPolicy())
        self._closed = False

    def with_asynchronous_commit(self) -> None:
        """Return None: a write is visible when it is planned."""

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
        state = self._open_state()
        return self._commit(plan_create(key, value, state.index.get(key), state.revision + 1))

    async def update(
        self, key: str, value: bytes, *, expected_revision: int, guards: Mapping[str, int] = NO_GUARDS
    ) -> Entry:
        """Replace the value if the key is still at `expected_revision`."""
        state = self._open_state()
        return self._commit(plan_update(key, value, expected_revision, state.index.get(key), state.revision + 1))

    async def delete(self, key: str, *, expected_revision: int) -> Entry:
        """Remove the key if it is still at `expected_revision`."""
        state = self._open_state()
        return self._commit(plan_delete(key, expected_revision, state.index.get(key), state.revision + 1))

    async def list_page(self, prefix: str, *, limit: int = 0, start_after: str = "", revision: int = 0) -> Page:
        """Return entries under the prefix in key order."""
        state = self._open_state()
        if revision in (0, state.revision):
            return state.page(prefix, limit=limit, start_after=start_after)
        state.check_readable(revision)
        overlay = self._history.undo(max(revision, REVISION_OF_EMPTY))
        return state.page_at(prefix, limit=limit, start_after=start_after, revision=revision, overlay=overlay)

    async def count(self, prefix: str) -> int:
        """Return the number of keys that begin with the prefix."""
        return self._open_state().index.count(prefix)

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
        self._history.trim(revision)
        state.compacted = max(revision, state.compacted)

    async def maintain(self, now_seconds: float) -> None:
        """Compact what has grown too old or too long."""
        state = self._open_state()
        due = self._schedule.due(now_seconds, revision=state.revision, compacted=state.compacted)
        if due:
            await self.compact(due)

    async def check_health(self, timeout_seconds: float) -> None:
        """Raise if the store is closed."""
        self._open_state()

    async def check_ready(self, timeout_seconds: float) -> None:
        """Raise if the store is closed."""
        self._open_state()

    async def close(self) -> None:
        """End all watches."""
        self._closed = True
        self._state.hub.close()

    def _open_state(self) -> StoreState:
        if self._closed:
            raise StoreUnavailableError("the store is closed")
        return self._state

    def _commit(self, event: Event) -> Entry:
        self._state.apply((event,))
        if self._history.floor > REVISION_OF_EMPTY:
            self._state.compacted = max(self._state.compacted, self._history.floor)
        return event.entry

    async def _read_past(self, prefix: str, after_revision: int) -> tuple[tuple[Event, ...], int]:
        self._open_state().check_readable(after_revision)
        events = self._history.after(after_revision, limit=REPLAY_EVENTS_MAX)
        return tuple(event for event in events if covers(prefix, event.entry.key)), events[-1].revision
