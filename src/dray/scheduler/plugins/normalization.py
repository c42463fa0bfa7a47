"""Normalization of scores, as in Kubernetes 1.37."""

from __future__ import annotations

from dray.framework.plugins import SCORE_MAX


def normalize(scores: list[int], *, reverse: bool = False) -> None:
    """Scale in place so that the highest score is SCORE_MAX; reversed, the lowest is best."""
    highest = max(scores)
    if highest == 0:
        if reverse:
            scores[:] = [SCORE_MAX] * len(scores)
        return
    scaled = [score * SCORE_MAX // highest for score in scores]
    scores[:] = [SCORE_MAX - score for score in scaled] if reverse else scaled
