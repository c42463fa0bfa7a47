"""A bounded set of the most recently used members."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

M = TypeVar("M", bound=Hashable)


class LRUSet(Generic[M]):
    """A set that evicts the least recently used member when it exceeds `count_max`."""

    def __init__(self, count_max: int) -> None:
        assert count_max > 0, "a set that can hold nothing"
        self._count_max = count_max
        # Oldest first. Finding the first entry of a plain dict is slow after many deletions.
        self._members: OrderedDict[M, None] = OrderedDict()

    def add(self, member: M) -> None:
        """Add the member as the most recently used."""
        self._members[member] = None
        self._members.move_to_end(member)
        if len(self._members) > self._count_max:
            self._members.popitem(last=False)

    def discard(self, member: M) -> None:
        """Remove the member."""
        self._members.pop(member, None)

    def __contains__(self, member: M) -> bool:
        """Report membership, which counts as a use."""
        if member not in self._members:
            return False
        self._members.move_to_end(member)
        return True

    def __len__(self) -> int:
        return len(self._members)
