"""A set that remembers its most recently used members, up to a bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

M = TypeVar("M", bound=Hashable)


class LRUSet(Generic[M]):
    """Forgets the member unused for longest when there are more than `count_max`."""

    def __init__(self, count_max: int) -> None:
        assert count_max > 0, "a set that can hold nothing"
        self._count_max = count_max
        # Oldest first. A plain dict finds its first entry by passing over all that were there before it.
        self._members: OrderedDict[M, None] = OrderedDict()

    def add(self, member: M) -> None:
        """Remember the member as the newest."""
        self._members[member] = None
        self._members.move_to_end(member)
        if len(self._members) > self._count_max:
            self._members.popitem(last=False)

    def discard(self, member: M) -> None:
        """Forget the member."""
        self._members.pop(member, None)

    def __contains__(self, member: M) -> bool:
        """Report whether it is remembered; asking counts as use."""
        if member not in self._members:
            return False
        self.add(member)
        return True

    def __len__(self) -> int:
        return len(self._members)
