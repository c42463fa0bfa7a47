"""The recent history is what a plain list bounded by number and size keeps."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dray.store.interface import Entry, Event, EventType
from dray.store.watch_hub import EventHistory, batch_size

EVENTS_MAX, BYTES_MAX = 5, 40
# The sizes of the value and of the previous value, if there is one.
sizes = st.tuples(st.integers(0, 20), st.none() | st.integers(0, 20))
batches = st.lists(st.tuples(st.lists(sizes, min_size=1, max_size=4), st.booleans()), max_size=12)


class PlainHistory:
    """Adds up the sizes of all events each time."""

    def __init__(self) -> None:
        self.floor = 1
        self.events: list[Event] = []

    def extend(self, events: Sequence[Event]) -> None:
        self.events += events
        while len(self.events) > EVENTS_MAX or sum(event.size for event in self.events) > BYTES_MAX:
            self.floor = self.events.pop(0).revision

    def trim(self, revision: int) -> None:
        self.events = [event for event in self.events if event.revision > revision]
        self.floor = max(self.floor, revision)


@given(batches)
def test_a_history_keeps_what_a_plain_list_keeps(
    written: list[tuple[list[tuple[int, int | None]], bool]],
) -> None:
    history, plain = EventHistory(1, events_max=EVENTS_MAX, bytes_max=BYTES_MAX), PlainHistory()
    revision = 1
    for batch, is_trimmed in written:
        events = []
        for size, previous in batch:
            revision += 1
            before = None if previous is None else Entry("/a", bytes(previous), revision - 1, 1)
            events.append(Event(EventType.PUT, Entry("/a", bytes(size), revision, 1), before))
        assert batch_size(events) == sum(event.size for event in events)
        history.extend(events, batch_size(events))
        plain.extend(events)
        if is_trimmed:
            history.trim(revision - 1)
            plain.trim(revision - 1)
        assert (history.floor, history.after(history.floor)) == (plain.floor, plain.events)
