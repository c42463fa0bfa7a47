"""Bringing scores into range, and remembering them; shared by the plugins that score."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from dray.framework.node_info import NodeInfo
from dray.framework.plugins import SCORE_MAX

# Kinds of Pods whose scores are remembered, by one plugin and on one node; more than that, and all are forgotten.
KINDS_MAX: Final = 1024
KINDS_PER_NODE_MAX: Final = 64


def normalize(scores: list[int], *, reverse: bool = False) -> None:
    """Scale in place so that the highest is SCORE_MAX; reversed, the lowest is best."""
    highest = max(scores)
    if highest == 0:
        if reverse:
            scores[:] = [SCORE_MAX] * len(scores)
        return
    scaled = [score * SCORE_MAX // highest for score in scores]
    scores[:] = [SCORE_MAX - score for score in scaled] if reverse else scaled


class ScoreMemo:
    """Scores for Pods with the same needs, remembered with each node until it changes.

    Pods come in crowds that are alike, and one placement changes one node.
    """

    def __init__(self) -> None:
        # What each kind of needs is remembered under; a plain object is quicker to look up than the needs.
        self._kinds: dict[Hashable, object] = {}

    def scores(
        self, needs: Hashable, nodes: Sequence[NodeInfo], compute: Callable[[Sequence[NodeInfo]], list[int]]
    ) -> list[int]:
        """The scores of the nodes; computed only for those that changed."""
        kind = self._kinds.get(needs)
        if kind is None:
            if len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            kind = self._kinds[needs] = object()
        found: list[Any] = [node.memo.get(kind) for node in nodes]
        if None in found:
            missing = [position for position, score in enumerate(found) if score is None]
            for position, score in zip(missing, compute([nodes[item] for item in missing]), strict=True):
                found[position] = score
                _remember(nodes[position].memo, kind, score)
        return found


def _remember(memo: dict[object, int], kind: object, score: int) -> None:
    if len(memo) >= KINDS_PER_NODE_MAX:
        memo.clear()
    memo[kind] = score
