"""A bounded cache whose entries expire."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ExpiringCache(Generic[K, V]):
    """Keeps values until a time; the oldest entry is evicted when there are more than `count_max`."""

    def __init__(self, count_max: int) -> None:
        assert count_max > 0, "a cache that can hold nothing"
        self._count_max = count_max
        # Values with the time at which they expire, oldest first.
        self._entries: OrderedDict[K, tuple[V, float]] = OrderedDict()

    def get(self, key: K, now: float) -> V | None:
        """Return the value of a key; None if there is none or it has expired."""
        found = self._entries.get(key)
        if found is None:
            return None
        value, expires = found
        if now >= expires:
            del self._entries[key]
            return None
        return value

    def put(self, key: K, value: V, expires: float) -> None:
        """Keep a value until a time."""
        self._entries.pop(key, None)
        self._entries[key] = (value, expires)
        if len(self._entries) > self._count_max:
            self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)
