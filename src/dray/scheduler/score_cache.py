"""Scores at the places of nodes, kept for Pods with the same needs until the nodes change. Pure.

Pods come in crowds that are alike, and one placement changes one node.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, Final

from dray.framework.node_info import NodeInfo
from dray.framework.snapshot import Snapshot

# Kinds of Pods whose scores are kept; beyond that those that came longest ago are forgotten.
KINDS_MAX: Final = 128


class ScoreTable:
    """The scores of nodes for one kind of Pods."""

    __slots__ = ("_scores", "_version")

    def __init__(self) -> None:
        # By place; None where nobody has asked, or the node has changed since.
        self._scores: list[Any] = []
        # Of the snapshot; never equal to one at first.
        self._version = -1

    def scores(
        self, snapshot: Snapshot, places: Sequence[int], compute: Callable[[Sequence[NodeInfo]], list[int]]
    ) -> list[int]:
        """The scores of the nodes at these places; computed only for those that are not known."""
        self._forget_changed(snapshot)
        scores = self._scores
        found = [scores[place] for place in places]
        missing = _positions_of_none(found)
        if missing:
            computed = compute([snapshot.nodes[places[position]] for position in missing])
            for position, score in zip(missing, computed, strict=True):
                found[position] = scores[places[position]] = score
        return found

    def _forget_changed(self, snapshot: Snapshot) -> None:
        changed = snapshot.changed_since(self._version)
        if changed is None:
            self._scores = [None] * len(snapshot)
        else:
            for name in changed:
                place = snapshot.index_of(name)
                assert place is not None, "changed and not there"
                self._scores[place] = None
        self._version = snapshot.version


def _positions_of_none(values: list[Any]) -> list[int]:
    """Quick where there are few."""
    positions: list[int] = []
    at = -1
    for _ in range(values.count(None)):
        at = values.index(None, at + 1)
        positions.append(at)
    return positions


class ScoreTables:
    """The tables of all kinds of Pods, on one snapshot."""

    def __init__(self) -> None:
        # The table of one kind, made when it first comes.
        self.table: Final = lru_cache(KINDS_MAX)(_new_table)


def _new_table(_kind: Hashable) -> ScoreTable:
    return ScoreTable()
