"""Delivers committed events to watches: the recent history, bounded watch buffers, and the hub that fills them.

Pure. A watch passes a callback that is called when its buffer has events. The hub finds the watches of an event by
looking up each prefix of its key that ends with "/", so publishing costs the depth of the key plus the number of
matching watches. Watches of one prefix get the identical batch object, so that its encoding can be shared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from operator import attrgetter

from dray.store.interface import Entry, Event, StoreError, WatchOverflowError

# A watch may lag 10,000 writes behind, or fewer of large objects: a buffer alone keeps events that others have taken.
WATCH_BUFFER_EVENTS_MAX = 10_000
WATCH_BUFFER_BYTES_MAX = 64 * 1024 * 1024
# Events per batch, so that a consumer does not block the event loop for long.
WATCH_BATCH_EVENTS_MAX = 1_000
# A watch that is further behind reads older events before it subscribes, so that its buffer has space for new
# events until it takes the first batch.
JOIN_EVENTS_MAX = WATCH_BUFFER_EVENTS_MAX // 2
# Folders of keys, one for each resource and namespace, whose watched prefixes are remembered.
FOLDERS_KNOWN_MAX = 4_096

_revision_of = attrgetter("revision")


class EventHistory:
    """The newest events in order, bounded by number and size; contains every event after `floor`."""

    def __init__(self, floor: int, *, events_max: int, bytes_max: int) -> None:
        self.floor = floor
        self._events: deque[Event] = deque()
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._bytes = 0

    def extend(self, events: Sequence[Event], size: int) -> None:
        """Append events, which keep `size` bytes, and drop the oldest beyond the bounds."""
        kept, total = self._events, self._bytes + size
        kept.extend(events)
        while len(kept) > self._events_max or total > self._bytes_max:
            oldest = kept.popleft()
            self.floor = oldest.entry.revision
            # As `Event.size`, which would be a call for every event.
            total -= len(oldest.entry.value)
            if oldest.previous is not None:
                total -= len(oldest.previous.value)
        self._bytes = total

    def trim(self, revision: int) -> None:
        """Drop the events up to a revision."""
        while self._events and self._events[0].revision <= revision:
            self._bytes -= self._events.popleft().size
        self.floor = max(self.floor, revision)

    def count_after(self, revision: int) -> int:
        """Return the number of events after a revision that is not below the floor."""
        assert revision >= self.floor
        return len(self._events) - self._position(revision)

    def after(self, revision: int, *, limit: int | None = None) -> list[Event]:
        """Return events after a revision that is not below the floor, oldest first."""
        assert revision >= self.floor
        start = self._position(revision)
        return list(islice(self._events, start, None if limit is None else start + limit))

    def undo(self, revision: int) -> dict[str, Entry | None]:
        """Return the entries that the keys changed since a revision had at that revision."""
        return {event.entry.key: event.previous for event in reversed(self.after(revision))}

    def _position(self, revision: int) -> int:
        return bisect_right(self._events, revision, key=_revision_of)


class WatchBuffer:
    """The events that one watch has not taken yet; filled by the hub."""

    def __init__(self, prefix: str, after_revision: int, wake: Callable[[], None]) -> None:
        self.prefix = prefix
        # Events up to this revision are skipped: the watcher has seen them in a list.
        self.after_revision = after_revision
        self.error: StoreError | None = None
        self.ended = False
        self._wake = wake
        # Batches as they were published, and the number and size of their events.
        self._pending: deque[tuple[Event, ...]] = deque()
        self._count = 0
        self._bytes = 0

    def offer(self, batch: tuple[Event, ...], size: int) -> bool:
        """Add events, which keep `size` bytes; return False when the buffer was full and the watch has ended."""
        if batch[0].entry.revision <= self.after_revision:
            batch = tuple(event for event in batch if event.entry.revision > self.after_revision)
            if not batch:
                return True
            size = batch_size(batch)
        count = self._count + len(batch)
        if count > WATCH_BUFFER_EVENTS_MAX:
            return self._overflow(f"{WATCH_BUFFER_EVENTS_MAX} events")
        # A single batch is always taken: it is as large as a commit, or as the history that others share.
        if self._pending and self._bytes + size > WATCH_BUFFER_BYTES_MAX:
            return self._overflow(f"{WATCH_BUFFER_BYTES_MAX} bytes")
        self._count = count
        self._bytes += size
        self._pending.append(batch)
        self._wake()
        return True

    def take(self) -> tuple[Event, ...]:
        """Return the next batch, empty when there is none."""
        if not self._pending:
            return ()
        batch = self._pending.popleft()
        if self._pending or len(batch) > WATCH_BATCH_EVENTS_MAX:
            batch = self._joined(batch)
        self._count -= len(batch)
        self._bytes = self._bytes - batch_size(batch) if self._pending else 0
        self.after_revision = batch[-1].entry.revision
        return batch

    def _joined(self, batch: tuple[Event, ...]) -> tuple[Event, ...]:
        """Return the batch joined with pending ones, up to the maximum; the rest stays pending."""
        events = list(batch)
        while self._pending and len(events) < WATCH_BATCH_EVENTS_MAX:
            events += self._pending.popleft()
        if len(events) > WATCH_BATCH_EVENTS_MAX:
            self._pending.appendleft(tuple(events[WATCH_BATCH_EVENTS_MAX:]))
        return tuple(events[:WATCH_BATCH_EVENTS_MAX])

    def progress(self, published: int) -> int:
        """Return the revision up to which the watcher has all events, given the revision published by the hub."""
        if self.ended or self._pending:
            return self.after_revision
        return max(self.after_revision, published)

    def end(self, error: StoreError | None) -> None:
        """End the watch; after an error pending events are dropped, since a gap follows them."""
        if self.ended:
            return
        self.ended, self.error = True, error
        if error is not None:
            self._pending.clear()
            self._count = self._bytes = 0
        self._wake()

    def _overflow(self, behind: str) -> bool:
        self.end(WatchOverflowError(f"watch of {self.prefix} is more than {behind} behind"))
        return False


class WatchHub:
    """Delivers committed events to the watches whose prefix covers their key."""

    def __init__(self, revision: int, history: EventHistory) -> None:
        self.history = history
        # All events up to this revision have been published.
        self.revision = revision
        self.ended = False
        # Why it has ended; None if it was closed.
        self._error: StoreError | None = None
        self._topics: dict[str, dict[WatchBuffer, None]] = {}
        # The watched prefixes that cover a folder; forgotten when the set of watched prefixes changes.
        self._covering: dict[str, list[str]] = {}

    def can_join(self, after_revision: int) -> bool:
        """Whether the history reaches back far enough for a watch from a revision to subscribe."""
        if self.ended or after_revision >= self.revision:
            return True
        return after_revision >= self.history.floor and self.history.count_after(after_revision) <= JOIN_EVENTS_MAX

    def subscribe(self, prefix: str, *, after_revision: int, wake: Callable[[], None]) -> WatchBuffer:
        """Return a buffer that receives the events after the revision; requires `can_join`."""
        buffer = WatchBuffer(prefix, after_revision, wake)
        if self.ended:
            buffer.end(self._error)
            return buffer
        events = self.history.after(max(after_revision, self.history.floor))
        missed = tuple(event for event in events if covers(prefix, event.entry.key))
        if missed:
            buffer.offer(missed, batch_size(missed))
        if not buffer.ended:
            if prefix not in self._topics:
                self._topics[prefix] = {}
                self._covering.clear()
            self._topics[prefix][buffer] = None
        return buffer

    def unsubscribe(self, buffer: WatchBuffer) -> None:
        """Remove a watch; may be called twice."""
        topic = self._topics.get(buffer.prefix)
        if topic is not None:
            topic.pop(buffer, None)
            if not topic:
                del self._topics[buffer.prefix]
                self._covering.clear()

    def publish(self, events: Sequence[Event], revision: int) -> None:
        """Record events and hand them out; `revision` says up to where this is everything."""
        size = batch_size(events)
        self.history.extend(events, size)
        for prefix, batch in self._by_prefix(events).items():
            self._deliver(self._topics[prefix], tuple(batch), size if len(batch) == len(events) else batch_size(batch))
        self.revision = max(self.revision, revision)

    def end_all(self, error: StoreError | None) -> None:
        """End every current watch."""
        for topic in list(self._topics.values()):
            for buffer in topic:
                buffer.end(error)
        self._topics.clear()
        self._covering.clear()

    def close(self, error: StoreError | None = None) -> None:
        """End every watch, including those that subscribe later."""
        self.ended, self._error = True, error
        self.end_all(error)

    @property
    def watchers(self) -> int:
        """The number of watches."""
        return sum(map(len, self._topics.values()))

    def _deliver(self, topic: dict[WatchBuffer, None], batch: tuple[Event, ...], size: int) -> None:
        slow = [buffer for buffer in topic if not buffer.ended and not buffer.offer(batch, size)]
        for buffer in slow:
            self.unsubscribe(buffer)

    def _by_prefix(self, events: Sequence[Event]) -> dict[str, list[Event]]:
        """Return the events by watched prefix."""
        found: dict[str, list[Event]] = {}
        for event in events:
            key = event.entry.key
            folder = key[: key.rfind("/") + 1]
            prefixes = self._covering.get(folder)
            if prefixes is None:
                prefixes = self._find_covering(folder)
            for prefix in (key, *prefixes) if key in self._topics else prefixes:
                found.setdefault(prefix, []).append(event)
        return found

    def _find_covering(self, folder: str) -> list[str]:
        """Return the watched prefixes that cover a folder, and remember them."""
        found: list[str] = []
        end = folder.find("/") + 1
        while end:
            prefix = folder[:end]
            if prefix in self._topics:
                found.append(prefix)
            end = folder.find("/", end) + 1
        if len(self._covering) >= FOLDERS_KNOWN_MAX:
            self._covering.clear()
        self._covering[folder] = found
        return found


def batch_size(batch: Sequence[Event]) -> int:
    """Return the bytes that events keep; the sum of `Event.size` without a call for every event."""
    size = 0
    for event in batch:
        size += len(event.entry.value)
        if event.previous is not None:
            size += len(event.previous.value)
    return size


def covers(prefix: str, key: str) -> bool:
    """Whether a watch of the prefix includes the key."""
    return key.startswith(prefix) if prefix.endswith("/") else key == prefix
