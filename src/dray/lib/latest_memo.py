"""A memo of results for the latest source only."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

S = TypeVar("S")
P = TypeVar("P", bound=Hashable)
M = TypeVar("M")


class LatestMemo(Generic[S, P, M]):
    """Computes a value from a source and a key, and keeps the values of the latest source.

    Sources are compared by identity; neither they nor the values may be changed.
    """

    def __init__(self, compute: Callable[[S, P], M]) -> None:
        self._compute = compute
        self._source: S | None = None
        self._values: dict[P, M] = {}

    def get(self, source: S, key: P) -> M:
        """Return the value for the source and the key, computed at most once while the source is the latest."""
        if source is not self._source:
            self._source, self._values = source, {}
        # Those of another source may take their place while the value is computed.
        values = self._values
        value = values.get(key)
        if value is None:
            value = values[key] = self._compute(source, key)
        return value
