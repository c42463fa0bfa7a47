"""Events and who hears of them: recent history, bounded watch buffers, and the hub that joins the two.

Pure data structures: no coroutine and no I/O. A watcher passes a callback that is called when it has
something to take. The hub finds the watchers of an event by looking up each "/"-ended beginning of its
key, so publishing costs the depth of the key plus the watchers concerned, however many others there are.
Watchers of one prefix are handed the very same batch, so that what is made of it can be made once for all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from operator import attrgetter

from dray.store.interface import Entry, Event, StoreError, WatchOverflowError

# Enough for a watcher that pauses while 10,000 writes happen; the events are shared, so a full buffer
# costs references only.
WATCH_BUFFER_EVENTS_MAX = 10_000
# One delivery; keeps the consumer from holding the event loop for long.
WATCH_BATCH_EVENTS_MAX = 1_000
# A watcher further behind than this reads its way up before it joins, so that joining leaves room for what
# happens until it takes its first batch.
JOIN_EVENTS_MAX = WATCH_BUFFER_EVENTS_MAX // 2

_revision_of = attrgetter("revision")


class History:
    """The newest events in order, bounded by number and size; every event after `floor` is in it."""

    def __init__(self, floor: int, *, events_max: int, bytes_max: int) -> None:
        self.floor = floor
        self._events: deque[Event] = deque()
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._bytes = 0

    def extend(self, events: Sequence[Event]) -> None:
        """Add the newest events, dropping the oldest beyond the bounds."""
        self._events.extend(events)
        self._bytes += sum(map(_size, events))
        while len(self._events) > self._events_max or self._bytes > self._bytes_max:
            self._drop_oldest()

    def trim(self, revision: int) -> None:
        """Drop the events up to a revision."""
        while self._events and self._events[0].revision <= revision:
            self._drop_oldest()
        self.floor = max(self.floor, revision)

    def count_after(self, revision: int) -> int:
        """How many events are newer than a revision that is not below the floor."""
        assert revision >= self.floor
        return len(self._events) - self._position(revision)

    def after(self, revision: int, *, limit: int | None = None) -> list[Event]:
        """The first events newer than a revision that is not below the floor, oldest first."""
        assert revision >= self.floor
        start = self._position(revision)
        return list(islice(self._events, start, None if limit is None else start + limit))

    def undo(self, revision: int) -> dict[str, Entry | None]:
        """What each key changed since a revision was at that revision."""
        return {event.entry.key: event.previous for event in reversed(self.after(revision))}

    def _position(self, revision: int) -> int:
        return bisect_right(self._events, revision, key=_revision_of)

    def _drop_oldest(self) -> None:
        event = self._events.popleft()
        self._bytes -= _size(event)
        self.floor = event.entry.revision


def _size(event: Event) -> int:
    return len(event.entry.value) + (len(event.previous.value) if event.previous else 0)


class WatchBuffer:
    """What one watcher has not taken yet; the hub fills it, the watcher empties it."""

    def __init__(self, prefix: str, after_revision: int, wake: Callable[[], None]) -> None:
        self.prefix = prefix
        # Events up to here are not for this watcher: it has seen them in a list.
        self.after_revision = after_revision
        self.error: StoreError | None = None
        self.ended = False
        self._wake = wake
        # Batches as they were offered, and how many events they are together.
        self._pending: deque[tuple[Event, ...]] = deque()
        self._count = 0

    def offer(self, batch: tuple[Event, ...]) -> bool:
        """Add events; False when there was no room and the watch has been ended."""
        if batch[0].entry.revision <= self.after_revision:
            batch = tuple(event for event in batch if event.entry.revision > self.after_revision)
            if not batch:
                return True
        count = self._count + len(batch)
        if count > WATCH_BUFFER_EVENTS_MAX:
            behind = f"watch of {self.prefix} is more than {WATCH_BUFFER_EVENTS_MAX} events behind"
            self.end(WatchOverflowError(behind))
            return False
        self._count = count
        self._pending.append(batch)
        self._wake()
        return True

    def take(self) -> tuple[Event, ...]:
        """The next batch, empty when there is nothing."""
        if not self._pending:
            return ()
        batch = self._pending.popleft()
        if self._pending or len(batch) > WATCH_BATCH_EVENTS_MAX:
            batch = self._joined(batch)
        self._count -= len(batch)
        self.after_revision = batch[-1].entry.revision
        return batch

    def _joined(self, batch: tuple[Event, ...]) -> tuple[Event, ...]:
        """As much as may be delivered at once, beginning with a batch; the rest stays."""
        events = list(batch)
        while self._pending and len(events) < WATCH_BATCH_EVENTS_MAX:
            events += self._pending.popleft()
        if len(events) > WATCH_BATCH_EVENTS_MAX:
            self._pending.appendleft(tuple(events[WATCH_BATCH_EVENTS_MAX:]))
        return tuple(events[:WATCH_BATCH_EVENTS_MAX])

    def progress(self, published: int) -> int:
        """Up to where the watcher has everything, given that the hub has published so far."""
        if self.ended or self._pending:
            return self.after_revision
        return max(self.after_revision, published)

    def end(self, error: StoreError | None) -> None:
        """Let the watcher find the end; after an error what was pending is dropped, since a gap follows it."""
        if self.ended:
            return
        self.ended, self.error = True, error
        if error is not None:
            self._pending.clear()
            self._count = 0
        self._wake()


class Hub:
    """Passes committed events to the watchers whose prefix covers their key."""

    def __init__(self, revision: int, history: History) -> None:
        self.history = history
        # Everything up to here has been published.
        self.revision = revision
        self.ended = False
        self._topics: dict[str, dict[WatchBuffer, None]] = {}

    def can_join(self, after_revision: int) -> bool:
        """Whether a watcher that has everything up to a revision is near enough to subscribe."""
        if self.ended or after_revision >= self.revision:
            return True
        return after_revision >= self.history.floor and self.history.count_after(after_revision) <= JOIN_EVENTS_MAX

    def subscribe(self, prefix: str, *, after_revision: int, wake: Callable[[], None]) -> WatchBuffer:
        """A buffer that holds the events after the revision; only if it `can_join`."""
        buffer = WatchBuffer(prefix, after_revision, wake)
        if self.ended:
            buffer.end(None)
            return buffer
        events = self.history.after(max(after_revision, self.history.floor))
        missed = tuple(event for event in events if covers(prefix, event.entry.key))
        if missed:
            buffer.offer(missed)
        if not buffer.ended:
            self._topics.setdefault(prefix, {})[buffer] = None
        return buffer

    def unsubscribe(self, buffer: WatchBuffer) -> None:
        """Forget a watcher; safe to call twice."""
        topic = self._topics.get(buffer.prefix)
        if topic is not None:
            topic.pop(buffer, None)
            if not topic:
                del self._topics[buffer.prefix]

    def publish(self, events: Sequence[Event], revision: int) -> None:
        """Record events and hand them out; `revision` says up to where this is everything."""
        self.history.extend(events)
        for prefix, batch in self._by_prefix(events).items():
            self._hand_out(self._topics[prefix], tuple(batch))
        self.revision = max(self.revision, revision)

    def end_all(self, error: StoreError | None) -> None:
        """End every watch there is."""
        for topic in list(self._topics.values()):
            for buffer in topic:
                buffer.end(error)
        self._topics.clear()

    def close(self) -> None:
        """End every watch; later ones end at once."""
        self.ended = True
        self.end_all(None)

    @property
    def watchers(self) -> int:
        """How many watches are registered."""
        return sum(map(len, self._topics.values()))

    def _hand_out(self, topic: dict[WatchBuffer, None], batch: tuple[Event, ...]) -> None:
        slow = [buffer for buffer in topic if not buffer.ended and not buffer.offer(batch)]
        for buffer in slow:
            self.unsubscribe(buffer)

    def _by_prefix(self, events: Sequence[Event]) -> dict[str, list[Event]]:
        """The events of each prefix that is watched."""
        found: dict[str, list[Event]] = {}
        # What is committed together is mostly of few folders.
        covering: dict[str, list[str]] = {}
        for event in events:
            key = event.entry.key
            folder = key[: key.rfind("/") + 1]
            prefixes = covering.get(folder)
            if prefixes is None:
                prefixes = covering[folder] = self._covering(folder)
            for prefix in (key, *prefixes) if key in self._topics else prefixes:
                found.setdefault(prefix, []).append(event)
        return found

    def _covering(self, folder: str) -> list[str]:
        """The watched prefixes that cover everything in a folder."""
        found = []
        end = folder.find("/") + 1
        while end:
            prefix = folder[:end]
            if prefix in self._topics:
                found.append(prefix)
            end = folder.find("/", end) + 1
        return found


def covers(prefix: str, key: str) -> bool:
    """Whether a watch of the prefix hears of the key."""
    return key.startswith(prefix) if prefix.endswith("/") else key == prefix
