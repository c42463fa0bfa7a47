from __future__ import annotations

import pytest

from dray.store.interface import Entry, Event, EventType, StoreError, WatchOverflowError
from dray.store.watch_hub import (
    FOLDERS_KNOWN_MAX,
    WATCH_BATCH_EVENTS_MAX,
    WATCH_BUFFER_BYTES_MAX,
    WATCH_BUFFER_EVENTS_MAX,
    EventHistory,
    WatchBuffer,
    WatchHub,
    batch_size,
    covers,
)


def put(key: str, revision: int, previous: Entry | None = None) -> Event:
    return Event(EventType.PUT, Entry(key, b"%d" % revision, revision, revision), previous)


def nothing() -> None:
    """A watcher that need not be woken."""


def hub_with(events_max: int = 100) -> WatchHub:
    return WatchHub(1, EventHistory(1, events_max=events_max, bytes_max=1_000_000))


def extend(history: EventHistory, event: Event) -> None:
    history.extend([event], event.size)


def drain(buffer: WatchBuffer) -> list[int]:
    return [event.revision for event in buffer.take()]


@pytest.mark.parametrize(
    ("prefix", "key", "expected"),
    [
        ("/", "/a/b", True),
        ("/a/", "/a/b", True),
        ("/a/", "/ab/c", False),
        ("/a/b", "/a/b", True),
        ("/a/b", "/a/bc", False),
        ("/a/b/", "/a/b", False),
    ],
)
def test_what_a_prefix_covers_is_what_the_hub_delivers(prefix: str, key: str, expected: bool) -> None:
    assert covers(prefix, key) is expected
    hub = hub_with()
    buffer = hub.subscribe(prefix, after_revision=1, wake=nothing)
    hub.publish([put(key, 2)], 2)
    assert drain(buffer) == ([2] if expected else [])
    replayed = hub.subscribe(prefix, after_revision=1, wake=nothing)
    assert drain(replayed) == ([2] if expected else [])


def test_history_keeps_the_newest_within_its_bounds() -> None:
    history = EventHistory(1, events_max=3, bytes_max=1_000)
    for revision in range(2, 8):
        extend(history, put("/a", revision))
    assert history.floor == 4
    assert [event.revision for event in history.after(4)] == [5, 6, 7]
    assert [event.revision for event in history.after(5, limit=1)] == [6]
    assert history.count_after(6) == 1
    history.trim(6)
    assert (history.floor, [event.revision for event in history.after(6)]) == (6, [7])


def test_history_is_bounded_in_bytes() -> None:
    history = EventHistory(1, events_max=100, bytes_max=50)
    for revision in range(2, 10):
        extend(history, Event(EventType.PUT, Entry("/a", b"x" * 20, revision, revision), None))
    assert [event.revision for event in history.after(history.floor)] == [8, 9]


def test_undo_tells_what_was_before_the_oldest_change() -> None:
    history = EventHistory(1, events_max=100, bytes_max=1_000)
    first, second = put("/a", 2), put("/b", 3)
    extend(history, first)
    extend(history, second)
    extend(history, put("/a", 4, first.entry))
    extend(history, put("/a", 5, Entry("/a", b"4", 4, 2)))
    assert history.undo(3) == {"/a": first.entry}
    assert history.undo(1) == {"/a": None, "/b": None}
    assert history.undo(5) == {}


def test_a_watcher_is_woken_when_something_comes() -> None:
    woken: list[str] = []
    hub = hub_with()
    hub.subscribe("/a/", after_revision=1, wake=lambda: woken.append("a"))
    hub.publish([put("/b/x", 2)], 2)
    assert woken == []
    hub.publish([put("/a/x", 3)], 3)
    assert woken == ["a"]


def test_events_a_watcher_has_seen_in_its_list_are_left_out() -> None:
    """On etcd a list may be ahead of the hub."""
    hub = hub_with()
    buffer = hub.subscribe("/a/", after_revision=3, wake=nothing)
    hub.publish([put("/a/x", 2), put("/a/x", 3), put("/a/x", 4)], 4)
    assert drain(buffer) == [4]


def test_a_full_buffer_ends_the_watch_and_no_other() -> None:
    hub = hub_with()
    slow = hub.subscribe("/a/", after_revision=1, wake=nothing)
    quick = hub.subscribe("/a/", after_revision=1, wake=nothing)
    for revision in range(2, WATCH_BUFFER_EVENTS_MAX + 3):
        hub.publish([put("/a/x", revision)], revision)
        drain(quick)
    assert isinstance(slow.error, WatchOverflowError)
    assert drain(slow) == []
    assert (quick.error, hub.watchers) == (None, 1)
    assert slow.progress(hub.revision) == 1


def large_put(revision: int) -> Event:
    return Event(EventType.PUT, Entry("/a/x", bytes(WATCH_BUFFER_BYTES_MAX // 4), revision, revision), None)


def test_a_buffer_is_bounded_by_the_size_of_its_events() -> None:
    hub = hub_with()
    slow = hub.subscribe("/a/", after_revision=1, wake=nothing)
    quick = hub.subscribe("/a/", after_revision=1, wake=nothing)
    for revision in range(2, 6):
        hub.publish([large_put(revision)], revision)
        drain(quick)
    assert slow.error is None
    hub.publish([large_put(6)], 6)
    assert isinstance(slow.error, WatchOverflowError)
    assert f"{WATCH_BUFFER_BYTES_MAX} bytes" in str(slow.error)
    assert drain(slow) == []
    assert (drain(quick), quick.error, hub.watchers) == ([6], None, 1)


def test_a_buffer_counts_the_bytes_that_are_left_after_a_read() -> None:
    buffer = WatchBuffer("/", 1, nothing)

    def offer(revision: int, count: int, share: float) -> bool:
        value = b"x" * int(WATCH_BUFFER_BYTES_MAX * share / count)
        batch = tuple(Event(EventType.PUT, Entry("/a", value, revision, revision), None) for _ in range(count))
        return buffer.offer(batch, batch_size(batch))

    assert offer(2, WATCH_BATCH_EVENTS_MAX, 0.3)
    assert offer(3, 1, 0.5)
    assert len(buffer.take()) == WATCH_BATCH_EVENTS_MAX
    assert offer(4, 1, 0.3)
    assert not offer(5, 1, 0.3)


def test_a_reader_that_keeps_up_takes_any_amount() -> None:
    hub = hub_with()
    buffer = hub.subscribe("/a/", after_revision=1, wake=nothing)
    for revision in range(2, 20, 3):
        hub.publish([large_put(revision)], revision)
        hub.publish([large_put(revision + 1), large_put(revision + 2)], revision + 2)
        assert drain(buffer) == [revision, revision + 1, revision + 2]


def test_one_batch_is_taken_whatever_its_size() -> None:
    hub = hub_with()
    buffer = hub.subscribe("/a/", after_revision=1, wake=nothing)
    hub.publish([large_put(revision) for revision in range(2, 8)], 7)
    assert drain(buffer) == [2, 3, 4, 5, 6, 7]


def test_batches_are_bounded() -> None:
    hub = hub_with(events_max=5_000)
    hub.publish([put("/a/x", revision) for revision in range(2, 2_502)], 2_501)
    buffer = hub.subscribe("/a/", after_revision=1, wake=nothing)
    sizes = []
    while batch := buffer.take():
        sizes.append(len(batch))
        assert buffer.progress(hub.revision) == (2_501 if sum(sizes) == 2_500 else batch[-1].revision)
    assert sizes == [WATCH_BATCH_EVENTS_MAX, WATCH_BATCH_EVENTS_MAX, 500]


def test_unsubscribing_leaves_nothing_behind() -> None:
    hub = hub_with()
    buffers = [hub.subscribe("/a/", after_revision=1, wake=nothing) for _ in range(3)]
    for buffer in buffers * 2:
        hub.unsubscribe(buffer)
    assert hub.watchers == 0
    hub.publish([put("/a/x", 2)], 2)
    assert [drain(buffer) for buffer in buffers] == [[], [], []]


def test_a_closed_hub_ends_watches_now_and_later() -> None:
    hub = hub_with()
    before = hub.subscribe("/a/", after_revision=1, wake=nothing)
    hub.publish([put("/a/x", 2)], 2)
    hub.close()
    after = hub.subscribe("/a/", after_revision=2, wake=nothing)
    assert drain(before) == [2]
    assert (before.ended, after.ended, before.error) == (True, True, None)


def test_an_error_ends_every_watch() -> None:
    hub = hub_with()
    buffer = hub.subscribe("/a/", after_revision=1, wake=nothing)
    hub.publish([put("/a/x", 2)], 2)
    hub.end_all(StoreError("gap"))
    assert (drain(buffer), str(buffer.error), hub.watchers) == ([], "gap", 0)


def test_publishing_touches_only_the_watchers_concerned() -> None:
    """Ten thousand watchers of other prefixes are not looked at: their dictionary is never walked."""
    hub = hub_with()
    for number in range(10_000):
        hub.subscribe(f"/registry/core/pods/ns-{number}/", after_revision=1, wake=nothing)
    assert hub._find_covering("/registry/core/pods/ns-77/") == ["/registry/core/pods/ns-77/"]


def test_watchers_of_one_prefix_get_the_very_same_batch() -> None:
    hub = hub_with()
    one, other, narrow = (hub.subscribe(prefix, after_revision=1, wake=nothing) for prefix in ("/a/", "/a/", "/a/b/"))
    hub.publish([put("/a/x", 2), put("/a/b/y", 3), put("/c/z", 4), put("/a/x", 5)], 5)
    batch = one.take()
    assert [event.revision for event in batch] == [2, 3, 5]
    assert other.take() is batch
    assert drain(narrow) == [3]


def test_a_watcher_that_is_behind_gets_several_commits_at_once() -> None:
    hub = hub_with()
    buffer = hub.subscribe("/a/", after_revision=1, wake=nothing)
    for revision in range(2, 5):
        hub.publish([put("/a/x", revision)], revision)
    assert [event.revision for event in buffer.take()] == [2, 3, 4]
    assert buffer.take() == ()


def test_watches_that_come_and_go_are_found_in_known_folders() -> None:
    hub = hub_with()
    whole = hub.subscribe("/a/", after_revision=1, wake=nothing)
    hub.publish([put("/a/b/x", 2)], 2)
    part = hub.subscribe("/a/b/", after_revision=2, wake=nothing)
    hub.publish([put("/a/b/y", 3)], 3)
    hub.unsubscribe(whole)
    hub.publish([put("/a/b/z", 4)], 4)
    assert [event.entry.key for event in whole.take()] == ["/a/b/x", "/a/b/y"]
    assert [event.entry.key for event in part.take()] == ["/a/b/y", "/a/b/z"]


def test_folders_are_remembered_up_to_a_bound() -> None:
    hub = hub_with(events_max=10)
    buffer = hub.subscribe("/a/", after_revision=1, wake=nothing)
    for number in range(FOLDERS_KNOWN_MAX + 2):
        hub.publish([put(f"/a/{number}/x", number + 2)], number + 2)
        assert [event.entry.key for event in buffer.take()] == [f"/a/{number}/x"]
    assert len(hub._covering) == 2
