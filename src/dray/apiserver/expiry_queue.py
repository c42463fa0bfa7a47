"""The order in which Events expire: a fixed time after their last write. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

from dray.api.document import Document
from dray.api.timestamps import TimeFormatError, parse_time


class Written(NamedTuple):
    """The last write of a key: its revision, and its time in monotonic seconds."""

    revision: int
    seconds: float


class ExpiryQueue:
    """The keys that are to expire, those written first in front. All have the same time to live."""

    def __init__(self, ttl_seconds: float) -> None:
        self._ttl_seconds: Final = ttl_seconds
        self._written: OrderedDict[str, Written] = OrderedDict()

    def __len__(self) -> int:
        return len(self._written)

    def put(self, key: str, revision: int, now_seconds: float) -> None:
        """Record a write, which starts the time to live again. Times never go back."""
        self._written[key] = Written(revision, now_seconds)
        self._written.move_to_end(key)

    def remove(self, key: str) -> None:
        """Drop a key that was deleted."""
        self._written.pop(key, None)

    def replace(self, listed: Iterable[tuple[str, Written]]) -> None:
        """Start over with a list of all keys, in any order. A write that is known already keeps its time."""
        known, merged = self._written, {}
        for key, written in listed:
            before = known.get(key)
            merged[key] = before if before is not None and before.revision == written.revision else written
        self._written = OrderedDict(sorted(merged.items(), key=lambda item: (item[1].seconds, item[0])))

    def due(self, now_seconds: float, *, limit: int) -> list[tuple[str, int]]:
        """Take up to so many keys that have expired, with the revisions to delete."""
        expired: list[tuple[str, int]] = []
        while self._written and len(expired) < limit:
            key, written = next(iter(self._written.items()))
            if now_seconds - written.seconds < self._ttl_seconds:
                break
            del self._written[key]
            expired.append((key, written.revision))
        return expired

    def put_back(self, expired: Iterable[tuple[str, int]], now_seconds: float) -> None:
        """Return keys that could not be deleted, to be due at once; one that was written meanwhile stays as it is."""
        for key, revision in expired:
            if key not in self._written:
                self._written[key] = Written(revision, now_seconds - self._ttl_seconds)
                self._written.move_to_end(key, last=False)


def last_written(event: Document, now: datetime) -> datetime:
    """Return when a stored Event, or what is in its place, was last written, as far as it shows that.

    Never in the future.
    """
    times = []
    for text in _times(event):
        try:
            times.append(min(parse_time(text), now))
        except (TimeFormatError, TypeError):
            continue
    return max(times, default=now)


def _times(event: Document) -> Iterator[Any]:
    """Yield the times that the server or the reporter has set at a write."""
    event = _mapping(event)
    metadata = _mapping(event.get("metadata"))
    yield metadata.get("creationTimestamp")
    managed = metadata.get("managedFields")
    for entry in managed if isinstance(managed, list) else ():
        yield _mapping(entry).get("time")
    yield event.get("lastTimestamp")
    yield event.get("eventTime")
    yield _mapping(event.get("series")).get("lastObservedTime")


def _mapping(value: Any) -> Document:
    return value if isinstance(value, dict) else {}
