"""What loaded rows cost: an entry that was never changed has one number for both of its revisions."""

from __future__ import annotations

import struct
import sys

import pytest

from dray.store.interface import Entry, Event, EventType
from dray.store.sqlite_rows import _row, event_of, load

# Beyond the numbers that Python shares by itself.
CREATED, CHANGED = 100_001, 100_002
POINTER_BYTES = struct.calcsize("P")


def rows(*events: Event) -> list[tuple[object, ...]]:
    # Made anew, as a database would: equal numbers are not the same object.
    return [tuple(int(str(item)) if isinstance(item, int) else item for item in _row(event)) for event in events]


def created() -> Event:
    return Event(EventType.PUT, Entry("/a", b"1", CREATED, CREATED), None)


def changed() -> Event:
    return Event(EventType.PUT, Entry("/a", b"2", CHANGED, CREATED), created().entry)


STATE = {"compacted_revision": CREATED - 1, "swept_revision": CREATED - 1}


def test_unchanged_entry_has_one_number() -> None:
    (entry,) = load(rows(created()), state=STATE, revision_of_empty=1).entries.values()
    assert entry == created().entry
    assert entry.revision is entry.create_revision


def test_changed_entry_has_two() -> None:
    (entry,) = load(rows(created(), changed()), state=STATE, revision_of_empty=1).entries.values()
    assert (entry.revision, entry.create_revision) == (CHANGED, CREATED)


@pytest.mark.parametrize("event", [created(), changed()])
def test_events_are_read_as_written(event: Event) -> None:
    (row,) = rows(event)
    assert event_of(row, event.previous) == event


def test_an_entry_has_no_header_for_the_collector_of_cycles() -> None:
    words = 2 + len(Entry.__struct_fields__)
    assert sys.getsizeof(created().entry) == words * POINTER_BYTES
