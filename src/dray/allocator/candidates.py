"""The nodes that may have what is asked for, or may not, in the order in which nodes are tried.

Asking costs what has changed since the last time, and not the number of nodes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

# News kept for who may never ask; beyond that every node is news.
NEWS_MAX: Final = 10_000
# More places than these are sooner sorted together than inserted one by one.
_INSERTED_MAX: Final = 32


class OrderedNodes(Protocol):
    """The nodes of a cluster, each at its place."""

    # Grows with each change.
    version: int

    def __len__(self) -> int:
        """How many there are."""

    def place_of(self, name: str) -> int | None:
        """A node's place; None when there is no such node."""

    def changed_since(self, version: int) -> Iterable[str] | None:
        """The nodes that changed after the version; None when places did, or it is too long ago to tell."""


class Candidates:
    """Every node that may be as wanted is one of them; who sees that another is not may drop it until there is news."""

    __slots__ = ("_inventory_version", "_news", "_nodes_version", "_places")

    def __init__(self) -> None:
        # In order.
        self._places: list[int] = []
        # Nodes that may be as wanted again, and are not yet among the places; emptied by whoever asks.
        self._news: dict[str, None] = {}
        # What the places were made for; never equal to a version at first.
        self._nodes_version = -1
        self._inventory_version = -1

    def note(self, name: str) -> None:
        """Something about the node's devices changed."""
        if len(self._news) >= NEWS_MAX:
            self.note_all()
        self._news[name] = None

    def note_all(self) -> None:
        """Nobody knows about which nodes something changed."""
        self._inventory_version = -1
        self._news.clear()

    def places_from(self, start: int, nodes: OrderedNodes, inventory_version: int) -> list[int]:
        """The candidates' places beginning with `start`, and around the end."""
        self._refresh(nodes, inventory_version)
        places = self._places
        middle = bisect_left(places, start)
        return places[middle:] + places[:middle]

    def places_between(self, start: int, stop: int, nodes: OrderedNodes, inventory_version: int) -> list[int]:
        """The candidates' places from `start` up to `stop`."""
        self._refresh(nodes, inventory_version)
        places = self._places
        return places[bisect_left(places, start) : bisect_left(places, stop)]

    def keep_between(self, start: int, stop: int, kept: Sequence[int]) -> None:
        """Of the nodes there only these are as wanted; nothing may have changed since they were asked for."""
        places = self._places
        first, last = bisect_left(places, start), bisect_left(places, stop)
        if last - first != len(kept):
            places[first:last] = kept

    def drop(self, place: int) -> None:
        """The node there is not as wanted."""
        at = bisect_left(self._places, place)
        if at < len(self._places) and self._places[at] == place:
            del self._places[at]

    def _refresh(self, nodes: OrderedNodes, inventory_version: int) -> None:
        changed = nodes.changed_since(self._nodes_version)
        if changed is None or inventory_version != self._inventory_version:
            self._places = list(range(len(nodes)))
        else:
            self._add(nodes, changed)
            self._add(nodes, self._news)
        self._news.clear()
        self._nodes_version, self._inventory_version = nodes.version, inventory_version

    def _add(self, nodes: OrderedNodes, names: Iterable[str]) -> None:
        added = {place for name in set(names) if (place := nodes.place_of(name)) is not None}
        if len(added) > _INSERTED_MAX:
            self._places = sorted(added.union(self._places))
            return
        places = self._places
        for place in added:
            at = bisect_left(places, place)
            if at == len(places) or places[at] != place:
                places.insert(at, place)
