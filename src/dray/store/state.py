"""The committed state of a store, the rules of writes, and the compaction schedule. Pure; shared by all back ends.

A write is planned against the key's current entry and becomes an `Event`. Once the event is durable it is applied:
reads and watches see it at the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dray.store.index import EntryIndex
from dray.store.interface import (
    Entry,
    Event,
    EventType,
    FutureRevisionError,
    KeyExistsError,
    KeyNotFoundError,
    Page,
    RevisionCompactedError,
    RevisionConflictError,
    StoreError,
)
from dray.store.watch_hub import EventHistory, WatchHub

REVISION_OF_EMPTY = 1


# The plans of writes: what is written first, then the current entry of the key and the revision of the write.


def plan_create(key: str, value: bytes, current: Entry | None, revision: int) -> Event:
    """Return the event that creates a key; raise KeyExistsError if it exists."""
    if current is not None:
        raise KeyExistsError(key)
    return Event(EventType.PUT, Entry(key, value, revision, revision), None)


def plan_update(key: str, value: bytes, expected_revision: int, current: Entry | None, revision: int) -> Event:
    """Return the event that replaces an entry's value; raise if it does not have the expected revision."""
    if current is None or current.revision != expected_revision:
        raise _refusal(key, current)
    return Event(EventType.PUT, Entry(current.key, value, revision, current.create_revision), current)


def plan_delete(key: str, expected_revision: int, current: Entry | None, revision: int) -> Event:
    """Return the event that removes an entry; raise if it does not have the expected revision."""
    if current is None or current.revision != expected_revision:
        raise _refusal(key, current)
    return Event(EventType.DELETE, Entry(current.key, current.value, revision, current.create_revision), current)


def _refusal(key: str, current: Entry | None) -> StoreError:
    return KeyNotFoundError(key) if current is None else RevisionConflictError(current)


class StoreState:
    """The committed entries, the recent events, the watches and the compacted revision."""

    def __init__(self, entries: Mapping[str, Entry], *, revision: int, compacted: int, history: EventHistory) -> None:
        self.index = EntryIndex(entries)
        self.hub = WatchHub(revision, history)
        self.revision = revision
        self.compacted = compacted

    def apply(self, events: Sequence[Event]) -> None:
        """Make committed events, in revision order, visible to reads and watches."""
        index = self.index
        for event in events:
            if event.type is EventType.PUT:
                index.put(event.entry)
            else:
                index.remove(event.entry.key)
        self.revision = events[-1].revision
        self.hub.publish(events, self.revision)

    def check_readable(self, revision: int) -> None:
        """Raise for a revision that is compacted or does not exist yet."""
        if revision > self.revision:
            raise FutureRevisionError(revision, self.revision)
        if revision < self.compacted:
            raise RevisionCompactedError(self.compacted, self.revision)

    def page(self, prefix: str, *, limit: int, start_after: str) -> Page:
        """Return a page of the newest state."""
        entries, remaining = self.index.page(prefix, limit=limit, start_after=start_after)
        return Page(tuple(entries), self.revision, remaining)

    def page_at(
        self, prefix: str, *, limit: int, start_after: str, revision: int, overlay: Mapping[str, Entry | None]
    ) -> Page:
        """Return a page of an earlier state; the overlay undoes all changes since."""
        entries, remaining = self.index.page_before(prefix, limit=limit, start_after=start_after, overlay=overlay)
        return Page(tuple(entries), revision, remaining)


# kube-apiserver compacts every five minutes (its flag --etcd-compaction-interval).
AGE_SECONDS = 300.0
# Bounds the disk that superseded values take: 100,000 values of 1 KB are 100 MB.
REVISIONS_KEPT_MAX = 100_000
# Distance between recorded times; there are at most AGE_SECONDS / MARK_SECONDS of them.
MARK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """How much history is kept: for a time and up to a number of revisions, whichever is less."""

    age_seconds: float = AGE_SECONDS
    revisions_kept_max: int = REVISIONS_KEPT_MAX


class CompactionSchedule:
    """Records the newest revision over time, to find the one that is old enough to compact to."""

    def __init__(self, policy: CompactionPolicy) -> None:
        self._policy = policy
        self._marks: deque[tuple[float, int]] = deque()

    def due(self, now_seconds: float, *, revision: int, compacted: int) -> int:
        """Return the revision to compact to; 0 for none."""
        if not self._marks or now_seconds - self._marks[-1][0] >= MARK_SECONDS:
            self._marks.append((now_seconds, revision))
        target = revision - self._policy.revisions_kept_max
        while self._marks and now_seconds - self._marks[0][0] >= self._policy.age_seconds:
            target = max(target, self._marks.popleft()[1])
        return target if target > compacted else 0
