"""Cached scores of nodes for Pods with the same cache key, until the nodes change. Pure.

Many Pods are created from one template, and one placement changes one node.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Final

from dray.framework.node_info import NodeInfo
from dray.framework.snapshot import Snapshot

# Cached keys; beyond that the least recently used is evicted.
KINDS_MAX: Final = 128


# No score is negative.
_MISSING: Final = -1


def positions_of(value: int, values: Sequence[int], count_max: int | None = None) -> list[int]:
    """Return the first positions of a value, in order; without a maximum all of them."""
    count, at = values.count(value), -1
    found: list[int] = []
    for _ in range(count if count_max is None else min(count, count_max)):
        at = values.index(value, at + 1)
        found.append(at)
    return found


def at(values: Sequence[int], indices: Sequence[int]) -> list[int]:
    """Return the values at these indices."""
    # A third of the time of a comprehension; for a single index it would return no tuple.
    return list(itemgetter(*indices)(values)) if len(indices) > 1 else [values[index] for index in indices]


def sum_scores(lists: Iterable[list[int]], count: int) -> list[int]:
    """Return the sums of the plugins' scores for each of `count` nodes; a single list is returned as it is."""
    totals: list[int] | None = None
    for scores in lists:
        totals = scores if totals is None else [one + other for one, other in zip(totals, scores, strict=True)]
    return [0] * count if totals is None else totals


class ScoreTable:
    """The scores of nodes for one cache key: those of each plugin, and their sums."""

    __slots__ = ("_by_plugin", "_sums", "_version")

    def __init__(self) -> None:
        # By index; negative if not computed since the node changed. An array, because a Pod reads hundreds of them.
        self._sums = array("q")
        # Those of the plugins by index, where the sum is not negative; none before the first are computed.
        self._by_plugin: list[array[int]] = []
        # Of the snapshot; no snapshot has version -1.
        self._version = -1

    def sums(
        self, snapshot: Snapshot, indices: Sequence[int], compute: Callable[[Sequence[NodeInfo]], Sequence[list[int]]]
    ) -> list[int]:
        """Return the sums for the nodes at these indices; `compute` returns the scores of each plugin for nodes."""
        self._drop_changed(snapshot)
        found = at(self._sums, indices)
        missing = positions_of(_MISSING, found)
        if missing:
            places = [indices[position] for position in missing]
            computed = compute([snapshot.nodes[index] for index in places])
            self._by_plugin = self._by_plugin or [array("q", self._sums) for _ in computed]
            for position, index, *scores in zip(missing, places, *computed, strict=True):
                found[position] = self._sums[index] = sum(scores)
                for kept, score in zip(self._by_plugin, scores, strict=True):
                    kept[index] = score
        return found

    def of_plugins(self, indices: Sequence[int]) -> list[list[int]]:
        """Return the scores of each plugin for nodes whose sums have been computed."""
        return [at(scores, indices) for scores in self._by_plugin]

    def _drop_changed(self, snapshot: Snapshot) -> None:
        changed = snapshot.indices_changed_since(self._version)
        if changed is None:
            self._sums, self._by_plugin = array("q", (_MISSING,)) * len(snapshot), []
        else:
            sums = self._sums
            for index in changed:
                sums[index] = _MISSING
        self._version = snapshot.version


class ScoreTables:
    """The tables of all cache keys, for one snapshot."""

    def __init__(self) -> None:
        # Returns the table of a key, created at the first call.
        self.table: Final = lru_cache(KINDS_MAX)(_new_table)


def _new_table(_kind: Hashable) -> ScoreTable:
    return ScoreTable()
