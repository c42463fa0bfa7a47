"""The contract of a store: revisioned keys with compare-and-swap, consistent pages, and watches without gaps.

Every implementation passes the same suite (`tests/conformance/store`). Guarantees:

* There is one revision counter for the whole store; each committed write takes the next number. Revisions start
  at 1 (an empty store), so the first write is 2 or later.
* A write is durable when its call returns (memory excepted).
* `list_page` at a revision shows the store exactly as it was then; pages of one revision are consistent.
* A watch delivers each event after its starting revision once, in revision order, or raises
  `RevisionCompactedError`; it never skips silently. A watch that is too slow for its buffer ends with
  `WatchOverflowError`, after which the caller relists.
* History can be compacted up to a revision: that revision can still be listed and watched from, older
  ones cannot. The newest revision is always available.
* Guards order the writes of several processes that share a store, each of which decides with what it has observed: a
  write that names a guard is refused if another write has named it since the revision that the writer has observed.
* Keys begin with "/" and are valid text; key order is the order of their characters.
* With asynchronous commit, components of this process see and acknowledge writes before they are durable, in the order
  of their revisions; everyone else sees what is durable. See `AsynchronousCommit`.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol, Self

import msgspec


class StoreError(Exception):
    """Base of all errors of the store."""


class KeyExistsError(StoreError):
    """`create` found an existing key."""


class KeyNotFoundError(StoreError):
    """`update` or `delete` found no such key."""


class RevisionConflictError(StoreError):
    """`update` or `delete` found the key at another revision; `current` is its entry."""

    def __init__(self, current: Entry) -> None:
        super().__init__(f"{current.key} is at revision {current.revision}")
        self.current = current


class GuardConflictError(StoreError):
    """`update` found guards that were written since; `revisions` says when each of them was."""

    def __init__(self, revisions: Mapping[str, int]) -> None:
        super().__init__(f"written meanwhile: {', '.join(f'{name} at {at}' for name, at in revisions.items())}")
        self.revisions = revisions


class RevisionCompactedError(StoreError):
    """The requested revision is older than `compacted`, the oldest that is available."""

    def __init__(self, compacted: int, current: int) -> None:
        super().__init__(f"required revision has been compacted (compacted {compacted}, current {current})")
        self.compacted = compacted
        self.current = current


class FutureRevisionError(StoreError):
    """The requested revision does not exist yet."""

    def __init__(self, requested: int, current: int) -> None:
        super().__init__(f"revision {requested} is in the future (current {current})")
        self.requested = requested
        self.current = current


class WatchOverflowError(StoreError):
    """The watch was too slow and has ended."""


class RolledBackError(WatchOverflowError):
    """The watch has delivered writes that could not be stored after all; only an asynchronous commit has such."""


class StoreDamagedError(StoreError):
    """The stored data is damaged; the message says what was found and how to recover."""


class NewerStoreError(StoreDamagedError):
    """The stored data is that of a newer release, and has what this one would lose."""


class WritesLostError(StoreDamagedError):
    """The stored data is sound, but misses writes that were acknowledged."""


class StoreUnavailableError(StoreError):
    """The back end is unavailable (etcd down, disk fails, store closed); a write may or may not have been committed.

    An embedded store has rolled the write back: nobody sees it while this process runs.
    """


class StoreFullError(StoreUnavailableError):
    """The back end has no space left: the write was not stored, and reads go on."""


class ValueTooLargeError(StoreError):
    """The back end takes no value of this size: the write was not stored."""


class StoreLockedError(StoreError):
    """Another process has the stored data open."""


# Entries and events are never part of a reference cycle. Without the header of the garbage collector each of them,
# and there are many, is a quarter smaller.


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
    """The type of a write."""

    PUT = "PUT"
    DELETE = "DELETE"


class Event(msgspec.Struct, frozen=True, gc=False):
    """One committed write. `previous` is the entry before it (None for a creation).

    For a PUT, `entry` is the new entry. For a DELETE, `entry` has the last value with the revision of
    the deletion, so that watchers see the final state of the object.
    """

    type: EventType
    entry: Entry
    previous: Entry | None

    @property
    def revision(self) -> int:
        """The revision of the write."""
        return self.entry.revision

    @property
    def size(self) -> int:
        """The bytes that the event keeps in memory."""
        previous = self.previous
        return len(self.entry.value) + (len(previous.value) if previous is not None else 0)


class Watch(Protocol):
    """A running watch; `aclose` or leaving `async with` releases its buffer."""

    async def __aenter__(self) -> Self:
        """Return the watch."""

    async def __aexit__(self, *exc_info: object) -> None:
        """Close the watch."""

    def __aiter__(self) -> AsyncIterator[tuple[Event, ...]]:
        """Iterate over batches of events in revision order."""

    @property
    def progress(self) -> int:
        """The revision up to which all events of this watch have been delivered."""

    def wake(self) -> None:
        """Make the iteration yield at once, with an empty batch if there is no event; for timers of the watcher."""

    async def aclose(self) -> None:
        """End the watch; iteration stops."""


NO_GUARDS: Final[Mapping[str, int]] = MappingProxyType({})


class Store(Protocol):
    """A store with the guarantees of this module. Calls may be made concurrently from one event loop."""

    @property
    def shared(self) -> bool:
        """Whether other processes may write to it at the same time; only then are guards needed and kept."""

    def with_asynchronous_commit(self) -> AsynchronousCommit | None:
        """Return a view of the store for components of this process; None if it would differ in nothing."""

    async def revision(self) -> int:
        """Return the newest committed revision."""

    async def compacted_revision(self) -> int:
        """Return the oldest revision that can be listed or watched from; 0 at first."""

    async def get(self, key: str) -> Entry | None:
        """Return the newest entry of the key, or None."""

    async def create(self, key: str, value: bytes) -> Entry:
        """Write a key that must not exist."""

    async def update(
        self, key: str, value: bytes, *, expected_revision: int, guards: Mapping[str, int] = NO_GUARDS
    ) -> Entry:
        """Replace the value if the key is still at `expected_revision`.

        In the same step every guard must not have been written after the revision given with it, or
        `GuardConflictError` is raised, and is then written. Guards are not keys: no list and no watch shows them.
        """

    async def delete(self, key: str, *, expected_revision: int) -> Entry:
        """Remove the key if it is still at `expected_revision`; the result has the deletion's revision."""

    async def list_page(self, prefix: str, *, limit: int = 0, start_after: str = "", revision: int = 0) -> Page:
        """Return entries whose keys begin with `prefix`, in key order, after `start_after`; limit 0 means all.

        `revision` 0 means the newest; the page has the actual revision.
        """

    async def count(self, prefix: str) -> int:
        """Return the number of keys that begin with the prefix."""

    async def watch(self, prefix: str, *, after_revision: int) -> Watch:
        """Watch the keys under `prefix` for events with revision > `after_revision`.

        No event is missed once the call has returned. A prefix ends with "/" or is a whole key.
        """

    async def compact(self, revision: int) -> None:
        """Remove the history before `revision`; newest values stay. Compacting less than before does nothing."""

    async def maintain(self, now_seconds: float) -> None:
        """Compact as the policy demands; the owner calls this every few seconds with the time of a monotonic clock."""

    async def check_health(self, timeout_seconds: float) -> None:
        """Return when the back end has answered; raise `StoreUnavailableError` if it cannot.

        The caller stops waiting after the timeout, which an implementation may divide among several members.
        """

    async def check_ready(self, timeout_seconds: float) -> None:
        """Like `check_health`; raise also while writes fail or the writes of other processes are not received."""

    async def close(self) -> None:
        """Finish pending writes, end all watches and release files and connections; may be called twice."""


class AsynchronousCommit(Store, Protocol):
    """A view of a store, for components that end with its process and act on nothing but the store.

    A write returns before it is durable, and gets and watches of the view show it at once. What such a component has
    observed is durable before anything that it writes in turn, because writes are committed in the order of their
    revisions. A crash loses the last writes together with everyone who has seen them. Lists show what is durable, the
    view's earlier writes included. If the disk refuses writes that were shown, the watches of the view end with
    `RolledBackError`, and until a write succeeds, the view is no different from the store.
    """

    def on_roll_back(self, listener: Callable[[int], None]) -> None:
        """Call the listener after each rollback, with the newest durable revision.

        Whoever has used the view must then forget what it has observed since that revision.
        """

    def committed(self, key: str) -> Entry | None:
        """Return the newest durable entry of the key, or None."""

    def committed_under(self, prefix: str) -> Sequence[Entry]:
        """Return the newest durable entries whose keys begin with the prefix, in key order."""
