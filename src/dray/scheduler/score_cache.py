"""Cached scores of nodes for Pods with the same cache key, until the nodes change. Pure.

Many Pods are created from one template, and one placement changes one node.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence
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


def _at(values: Sequence[int], indices: Sequence[int]) -> list[int]:
    """Return the values at these indices."""
    # A third of the time of a comprehension; for a single index it would return no tuple.
    return list(itemgetter(*indices)(values)) if len(indices) > 1 else [values[index] for index in indices]


class ScoreTable:
    """The scores of nodes for one cache key."""

    __slots__ = ("_scores", "_version")

    def __init__(self) -> None:
        # By index; negative if not computed since the node changed. An array, because a Pod reads hundreds of them.
        self._scores = array("q")
        # Of the snapshot; no snapshot has version -1.
        self._version = -1

    def scores(
        self, snapshot: Snapshot, indices: Sequence[int], compute: Callable[[Sequence[NodeInfo]], list[int]]
    ) -> list[int]:
        """Return the scores of the nodes at these indices; missing ones are computed."""
        self._drop_changed(snapshot)
        scores = self._scores
        found = _at(scores, indices)
        missing = positions_of(_MISSING, found)
        if missing:
            computed = compute([snapshot.nodes[indices[position]] for position in missing])
            for position, score in zip(missing, computed, strict=True):
                found[position] = scores[indices[position]] = score
        return found

    def _drop_changed(self, snapshot: Snapshot) -> None:
        changed = snapshot.indices_changed_since(self._version)
        if changed is None:
            self._scores = array("q", (_MISSING,)) * len(snapshot)
        else:
            scores = self._scores
            for index in changed:
                scores[index] = _MISSING
        self._version = snapshot.version


class ScoreTables:
    """The tables of all cache keys, for one snapshot."""

    def __init__(self) -> None:
        # Returns the table of a key, created at the first call.
        self.table: Final = lru_cache(KINDS_MAX)(_new_table)


def _new_table(_kind: Hashable) -> ScoreTable:
    return ScoreTable()
