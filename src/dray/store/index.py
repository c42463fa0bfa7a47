"""Entries in key order, in memory; pages are read without sorting. Pure.

Keys are in a list of short sorted lists, so an insertion moves at most the tail of one short list, and counting a
range adds list lengths. An overlay describes an earlier state: it maps each key changed since to its entry then.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

from dray.store.interface import Entry

# A full list is split in two; 512 keeps both the tail move and the outer list short at 500,000 keys.
CHUNK_KEYS_MAX = 512


def prefix_end(prefix: str) -> str:
    """Return the smallest string greater than all strings that begin with `prefix`, or an empty string."""
    stripped = prefix.rstrip("\U0010ffff")
    return stripped[:-1] + chr(ord(stripped[-1]) + 1) if stripped else ""


class OrderedKeys:
    """A sorted set of strings with cheap insertion, removal and range counts."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        ordered = sorted(keys)
        half = CHUNK_KEYS_MAX // 2
        # None of the chunks is empty; `_last` holds each chunk's greatest key.
        self._chunks = [ordered[at : at + half] for at in range(0, len(ordered), half)]
        self._last = [chunk[-1] for chunk in self._chunks]

    def add(self, key: str) -> None:
        """Insert a new key."""
        if not self._chunks:
            self._chunks, self._last = [[key]], [key]
            return
        at = min(bisect_left(self._last, key), len(self._chunks) - 1)
        chunk = self._chunks[at]
        insort(chunk, key)
        if len(chunk) > CHUNK_KEYS_MAX:
            half = len(chunk) // 2
            self._chunks[at : at + 1] = [chunk[:half], chunk[half:]]
            self._last[at : at + 1] = [chunk[half - 1], chunk[-1]]
        else:
            self._last[at] = chunk[-1]

    def remove(self, key: str) -> None:
        """Remove a key that exists."""
        at = bisect_left(self._last, key)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, key)]
        if chunk:
            self._last[at] = chunk[-1]
        else:
            del self._chunks[at], self._last[at]

    def between(self, start: tuple[int, int], end: tuple[int, int]) -> Iterator[list[str]]:
        """Yield the keys between two positions in slices."""
        for at in range(start[0], min(end[0] + 1, len(self._chunks))):
            low = start[1] if at == start[0] else 0
            high = end[1] if at == end[0] else len(self._chunks[at])
            if low < high:
                yield self._chunks[at][low:high]

    def count(self, start: tuple[int, int], end: tuple[int, int]) -> int:
        """Return the number of keys between two positions."""
        if end <= start:
            return 0
        return sum(map(len, self._chunks[start[0] : end[0]])) - start[1] + end[1]

    def position(self, key: str) -> tuple[int, int]:
        """Return the position of the first key not less than `key`."""
        at = bisect_left(self._last, key)
        return (at, bisect_left(self._chunks[at], key)) if at < len(self._chunks) else (at, 0)

    def position_after(self, key: str) -> tuple[int, int]:
        """Return the position of the first key greater than `key`."""
        at = bisect_right(self._last, key)
        return (at, bisect_right(self._chunks[at], key)) if at < len(self._chunks) else (at, 0)

    def end(self) -> tuple[int, int]:
        """Return the position after the last key."""
        return len(self._chunks), 0


class EntryIndex:
    """Entries by key, and in key order."""

    def __init__(self, entries: Mapping[str, Entry] | None = None) -> None:
        self._entries: dict[str, Entry] = dict(entries or {})
        self._keys = OrderedKeys(self._entries)
        # Returns the entry of a key, or None; the method of the dict, since each write and read calls it.
        self.get: Final[Callable[[str], Entry | None]] = self._entries.get

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: Entry) -> None:
        """Set the entry of its key."""
        if entry.key not in self._entries:
            self._keys.add(entry.key)
        self._entries[entry.key] = entry

    def remove(self, key: str) -> None:
        """Remove a key that exists."""
        del self._entries[key]
        self._keys.remove(key)

    def count(self, prefix: str) -> int:
        """Return the number of keys that begin with the prefix."""
        return self._keys.count(*self._range(prefix, ""))

    def page(self, prefix: str, *, limit: int, start_after: str) -> tuple[list[Entry], int]:
        """Return the first `limit` entries (0: all) and the number of entries after them."""
        start, end = self._range(prefix, start_after)
        entries: list[Entry] = []
        for keys in self._keys.between(start, end):
            wanted = keys[: limit - len(entries)] if limit else keys
            entries.extend(map(self._entries.__getitem__, wanted))
            if limit and len(entries) == limit:
                break
        return entries, self._keys.count(start, end) - len(entries)

    def page_before(
        self, prefix: str, *, limit: int, start_after: str, overlay: Mapping[str, Entry | None]
    ) -> tuple[list[Entry], int]:
        """Return a page of the earlier state that the overlay describes; the cost grows with the overlay."""
        start, end = self._range(prefix, start_after)
        inside = {key: then for key, then in overlay.items() if key.startswith(prefix) and key > start_after}
        gone = sorted(key for key, then in inside.items() if then is not None and key not in self._entries)
        newer = sum(1 for key, then in inside.items() if then is None and key in self._entries)
        total = self._keys.count(start, end) + len(gone) - newer
        entries: list[Entry] = []
        for key in heapq.merge(chain.from_iterable(self._keys.between(start, end)), gone):
            then = inside[key] if key in inside else self._entries[key]
            if then is None:
                continue
            if limit and len(entries) == limit:
                break
            entries.append(then)
        return entries, total - len(entries)

    def _range(self, prefix: str, start_after: str) -> tuple[tuple[int, int], tuple[int, int]]:
        keys = self._keys
        start = keys.position_after(start_after) if start_after >= prefix and start_after else keys.position(prefix)
        limit = prefix_end(prefix)
        end = keys.position(limit) if limit else keys.end()
        return start, end
