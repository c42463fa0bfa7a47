"""A sorted set of indices into a list whose items change, updated from the list's own change log.

Reading it costs what has changed since the last read, not the length of the list.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

# Names kept in a set that may never be read; beyond that every index is a member again.
PENDING_MAX: Final = 10_000
# More indices than these are sorted at once instead of being inserted one by one.
_INSERTED_MAX: Final = 32


class IndexedItems(Protocol):
    """A list of named items that logs its changes."""

    # Grows with each change.
    version: int

    def __len__(self) -> int:
        """Return the number of items."""

    def index_of(self, name: str) -> int | None:
        """Return the index of an item; None if there is no such item."""

    def changed_since(self, version: int) -> Iterable[str] | None:
        """Return the names of items changed after the version; None if indices changed, or the log is too short."""


class IndexSet:
    """A superset of the indices with some property.

    An item that changes is a member again. The reader discards the indices of items that lack the property; they stay
    out until the item changes or `add` names it. A new `epoch`, the reader's own version, makes all indices members.
    """

    __slots__ = ("_epoch", "_indices", "_items_version", "_pending")

    def __init__(self) -> None:
        # Sorted.
        self._indices: list[int] = []
        # Names added since the last read.
        self._pending: dict[str, None] = {}
        # The versions that `_indices` was computed for. No list and no epoch has version -1.
        self._items_version = -1
        self._epoch = -1

    def add(self, name: str) -> None:
        """Make an item's index a member."""
        if self._epoch < 0:
            # The next reader finds all indices: a set that nobody reads takes no memory.
            return
        if len(self._pending) >= PENDING_MAX:
            self.add_all()
        self._pending[name] = None

    def add_all(self) -> None:
        """Make all indices members."""
        self._epoch = -1
        self._pending.clear()

    def starting_at(self, first: int, items: IndexedItems, epoch: int) -> list[int]:
        """Return all members in order, beginning at `first` and wrapping around."""
        self._refresh(items, epoch)
        indices = self._indices
        middle = bisect_left(indices, first)
        return indices[middle:] + indices[:middle]

    def within(self, bounds: range, items: IndexedItems, epoch: int) -> list[int]:
        """Return the members within the bounds, in order."""
        self._refresh(items, epoch)
        indices = self._indices
        return indices[bisect_left(indices, bounds.start) : bisect_left(indices, bounds.stop)]

    def replace_within(self, bounds: range, members: Sequence[int]) -> None:
        """Replace the members within the bounds by a subset of them; nothing may have changed since `within`."""
        indices = self._indices
        first, last = bisect_left(indices, bounds.start), bisect_left(indices, bounds.stop)
        if last - first != len(members):
            indices[first:last] = members

    def discard(self, index: int) -> None:
        """Remove an index."""
        at = bisect_left(self._indices, index)
        if at < len(self._indices) and self._indices[at] == index:
            del self._indices[at]

    def _refresh(self, items: IndexedItems, epoch: int) -> None:
        changed = items.changed_since(self._items_version)
        if changed is None or epoch != self._epoch:
            self._indices = list(range(len(items)))
        else:
            self._insert(items, changed)
            self._insert(items, self._pending)
        self._pending.clear()
        self._items_version, self._epoch = items.version, epoch

    def _insert(self, items: IndexedItems, names: Iterable[str]) -> None:
        added = {index for name in set(names) if (index := items.index_of(name)) is not None}
        if len(added) > _INSERTED_MAX:
            self._indices = sorted(added.union(self._indices))
            return
        indices = self._indices
        for index in added:
            at = bisect_left(indices, index)
            if at == len(indices) or indices[at] != index:
                indices.insert(at, index)
