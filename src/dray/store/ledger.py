"""What has been committed, and what may be written next: the rules that every back end shares.

A write is planned against the key's current entry and becomes an `Event`; once the event is durable it
is applied, which changes what reads show and what watchers hear in one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
)
from dray.store.log import History, Hub

REVISION_OF_EMPTY = 1


def plan_create(current: Entry | None, key: str, value: bytes, *, revision: int) -> Event:
    """The event that creates a key, if it is free."""
    if current is not None:
        raise KeyExistsError(key)
    return Event(EventType.PUT, Entry(key, value, revision, revision), None)


def plan_update(current: Entry, value: bytes, *, revision: int) -> Event:
    """The event that replaces an entry's value."""
    return Event(EventType.PUT, Entry(current.key, value, revision, current.create_revision), current)


def plan_delete(current: Entry, *, revision: int) -> Event:
    """The event that removes an entry."""
    return Event(EventType.DELETE, Entry(current.key, current.value, revision, current.create_revision), current)


def guard(current: Entry | None, key: str, expected_revision: int) -> Entry:
    """The current entry, if it is the expected one."""
    if current is None:
        raise KeyNotFoundError(key)
    if current.revision != expected_revision:
        raise RevisionConflictError(current)
    return current


class Ledger:
    """The committed state: entries, recent events, watchers and how far history has been compacted."""

    def __init__(self, entries: Mapping[str, Entry], *, revision: int, compacted: int, history: History) -> None:
        self.index = EntryIndex(entries)
        self.hub = Hub(revision, history)
        self.revision = revision
        self.compacted = compacted

    def apply(self, events: Sequence[Event]) -> None:
        """Make committed events, in revision order, visible to reads and watchers."""
        index = self.index
        for event in events:
            if event.type is EventType.PUT:
                index.put(event.entry)
            else:
                index.remove(event.entry.key)
        self.revision = events[-1].revision
        self.hub.publish(events, self.revision)

    def check_readable(self, revision: int) -> None:
        """Refuse a revision that is compacted or has not happened."""
        if revision > self.revision:
            raise FutureRevisionError(revision, self.revision)
        if revision < self.compacted:
            raise RevisionCompactedError(self.compacted, self.revision)

    def page(self, prefix: str, *, limit: int, start_after: str) -> Page:
        """A page of the newest state."""
        entries, remaining = self.index.page(prefix, limit=limit, start_after=start_after)
        return Page(tuple(entries), self.revision, remaining)

    def page_at(
        self, prefix: str, *, limit: int, start_after: str, revision: int, overlay: Mapping[str, Entry | None]
    ) -> Page:
        """A page of an earlier state; the overlay undoes everything since."""
        entries, remaining = self.index.page_before(prefix, limit=limit, start_after=start_after, overlay=overlay)
        return Page(tuple(entries), revision, remaining)
