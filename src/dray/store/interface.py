"""The store's contract: revisioned keys with compare-and-swap, consistent pages, and gapless watches.

Every implementation passes the same suite (`tests/conformance/store`). Promises:

* One revision counter for the whole store; each committed write takes the next number. Revisions start
  at 1 (an empty store), so the first write is 2 or later.
* A call that returned has been made durable (memory excepted).
* `list_page` at a revision shows the store exactly as it was then; pages of one revision are consistent.
* A watch delivers each event after its starting revision once, in revision order, or raises
  `RevisionCompactedError`; it never skips silently. A watcher too slow for its buffer is ended with
  `WatchOverflowError`, after which the caller re-lists.
* History can be compacted up to a revision: that revision can still be listed and watched from, older
  ones cannot. So the newest revision is always usable, whatever was compacted.
* Keys begin with "/" and are valid text; key order is the order of their characters.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol, Self

import msgspec


class StoreError(Exception):
    """Base of everything the store raises."""


class KeyExistsError(StoreError):
    """`create` found the key taken."""


class KeyNotFoundError(StoreError):
    """A guarded write found no such key."""


class RevisionConflictError(StoreError):
    """A guarded write found the key at another revision; `current` is what is there now."""

    def __init__(self, current: Entry) -> None:
        super().__init__(f"{current.key} is at revision {current.revision}")
        self.current = current


class RevisionCompactedError(StoreError):
    """The revision asked for is older than what is kept; `compacted` is the oldest that is kept."""

    def __init__(self, compacted: int, current: int) -> None:
        super().__init__(f"required revision has been compacted (compacted {compacted}, current {current})")
        self.compacted = compacted
        self.current = current


class FutureRevisionError(StoreError):
    """The revision asked for has not happened yet."""

    def __init__(self, requested: int, current: int) -> None:
        super().__init__(f"revision {requested} is in the future (current {current})")
        self.requested = requested
        self.current = current


class WatchOverflowError(StoreError):
    """The watcher did not keep up and was ended."""


class StoreDamagedError(StoreError):
    """The stored data cannot be trusted; the message says what was found and how to recover."""


class StoreUnavailableError(StoreError):
    """The back end does not answer (etcd down, disk full, store closed); a write may or may not have happened."""


class StoreLockedError(StoreError):
    """Another process has the stored data open."""


# Entries and events cannot be part of a cycle, and there are very many: without a header for the collector of cycles
# each is a quarter smaller.


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One key's value; `revision` is that of its last write."""

    key: str
    value: bytes
    revision: int
    create_revision: int


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a listing, in key order; `remaining` counts the keys after it under the same prefix."""

    entries: tuple[Entry, ...]
    revision: int
    remaining: int


class EventType(enum.StrEnum):
    """What happened to a key."""

    PUT = "PUT"
    DELETE = "DELETE"


class Event(msgspec.Struct, frozen=True, gc=False):
    """One committed write. `previous` is the entry before it (None for a creation).

    For a PUT, `entry` is the new entry. For a DELETE, `entry` has the last value with the revision of
    the deletion, so that watchers can show the object as it went.
    """

    type: EventType
    entry: Entry
    previous: Entry | None

    @property
    def revision(self) -> int:
        """The revision of the write."""
        return self.entry.revision


class Watch(Protocol):
    """A running watch; closing it (or leaving `async with`) frees its buffer."""

    async def __aenter__(self) -> Self:
        """The watch itself."""

    async def __aexit__(self, *exc_info: object) -> None:
        """Close."""

    def __aiter__(self) -> AsyncIterator[tuple[Event, ...]]:
        """Batches of events in revision order."""

    @property
    def progress(self) -> int:
        """All events up to this revision have been delivered or are not for this watch."""

    def wake(self) -> None:
        """Make the iteration yield now, an empty batch if there is nothing: how timers reach a waiting watcher."""

    async def aclose(self) -> None:
        """End the watch; iteration stops."""


class Store(Protocol):
    """See the module's promises. All calls may be made concurrently from one event loop."""

    async def revision(self) -> int:
        """The newest committed revision."""

    async def compacted_revision(self) -> int:
        """The oldest revision that can be listed or watched from; 0 at first."""

    async def get(self, key: str) -> Entry | None:
        """The newest entry of the key."""

    async def create(self, key: str, value: bytes) -> Entry:
        """Write a key that must not exist."""

    async def update(self, key: str, value: bytes, *, expected_revision: int) -> Entry:
        """Replace the value if the key is still at `expected_revision`."""

    async def delete(self, key: str, *, expected_revision: int) -> Entry:
        """Remove the key if it is still at `expected_revision`; the result has the deletion's revision."""

    async def list_page(self, prefix: str, *, limit: int = 0, start_after: str = "", revision: int = 0) -> Page:
        """Entries whose keys begin with `prefix`, in key order, after `start_after`; limit 0 means all.

        `revision` 0 means the newest; the page's `revision` says which it was.
        """

    async def count(self, prefix: str) -> int:
        """How many keys begin with the prefix now."""

    async def watch(self, prefix: str, *, after_revision: int) -> Watch:
        """Events of keys under `prefix` with revision > `after_revision`.

        Registered when it returns: no later event is missed. Prefixes end with "/" or name a whole key.
        """

    async def compact(self, revision: int) -> None:
        """Forget history before `revision`; newest values always stay. Compacting less than before does nothing."""

    async def maintain(self, now_seconds: float) -> None:
        """Compact what has grown too old or too long; the owner calls it every few seconds of a monotonic clock."""

    async def close(self) -> None:
        """Finish pending writes, end all watches, release files and connections; safe to call twice."""
