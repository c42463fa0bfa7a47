"""A watch with a selector gets the same frames as if each were made for it alone."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from dray.api.document import Document
from dray.apiserver.call import WatchFrame
from dray.apiserver.document_cache import DocumentCache
from dray.apiserver.handlers.watch import selected_frames, whole_frames
from dray.store.interface import Entry, Event, EventType

KEYS = ("/registry/core/pods/default/a", "/registry/core/pods/default/b")
# A key, and whether its object matches from now on; None deletes it.
changes = st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from((True, True, False, None))), max_size=8)


def is_selected(document: Document) -> bool:
    return bool(document["selected"])


def events_of(written: list[tuple[str, bool | None]]) -> tuple[Event, ...]:
    current: dict[str, Entry] = {}
    events: list[Event] = []
    for revision, (key, selected) in enumerate(written, 2):
        previous = current.get(key)
        if selected is not None:
            value = orjson.dumps({"metadata": {}, "selected": selected})
            current[key] = Entry(key, value, revision, previous.create_revision if previous else revision)
            events.append(Event(EventType.PUT, current[key], previous))
        elif previous is not None:
            gone = Entry(key, previous.value, revision, previous.create_revision)
            events.append(Event(EventType.DELETE, gone, current.pop(key)))
    return tuple(events)


def plain_frame(event: Event) -> WatchFrame | None:
    deleted = event.type is EventType.DELETE
    before = event.previous is not None and is_selected(orjson.loads(event.previous.value))
    if not deleted and is_selected(orjson.loads(event.entry.value)):
        return WatchFrame("MODIFIED" if before else "ADDED", event.entry)
    if not before:
        return None
    assert event.previous is not None
    # The object as it last matched, at the revision of the change.
    last = Entry(event.entry.key, event.previous.value, event.revision, event.entry.create_revision)
    return WatchFrame("DELETED", last)


@given(changes)
def test_selected_frames_are_those_of_each_event_alone(written: list[tuple[str, bool | None]]) -> None:
    batch = events_of(written)
    unselected = whole_frames(batch, None)
    frames = selected_frames(batch, unselected, is_selected, DocumentCache())
    assert list(frames) == [frame for event in batch if (frame := plain_frame(event)) is not None]
    # Shared exactly if the selector makes no difference.
    assert (frames is unselected) == (list(frames) == list(unselected))
    assert selected_frames(batch, unselected, lambda _: True, DocumentCache()) is unselected
