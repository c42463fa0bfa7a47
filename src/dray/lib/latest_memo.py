"""What is made of the newest of a row of things, once for all who ask for it one after the other."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

S = TypeVar("S")
P = TypeVar("P", bound=Hashable)
M = TypeVar("M")


class LatestMemo(Generic[S, P, M]):
    """Makes something of a source for a purpose, and keeps it until another source comes.

    Sources are told apart by their identity: neither they nor what is made of them may be changed.
    """

    def __init__(self, make: Callable[[S, P], M]) -> None:
        self._make = make
        self._source: S | None = None
        self._made: dict[P, M] = {}

    def get(self, source: S, purpose: P) -> M:
        """What is made of the source for the purpose."""
        if source is not self._source:
            self._source, self._made = source, {}
        made = self._made.get(purpose)
        if made is None:
            made = self._made[purpose] = self._make(source, purpose)
        return made
