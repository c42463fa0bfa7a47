"""The scores of InterPodAffinity: weights of matching terms by topology domain, as in Kubernetes 1.37. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from dray.framework.node_info import NodeInfo
from dray.framework.plugins import SCORE_MAX

# Topology key, numbers by domain, and the factor they count with.
Weighted: TypeAlias = tuple[str, Mapping[str, int], int]


def raw_scores(groups: Sequence[Weighted], nodes: Sequence[NodeInfo]) -> list[int]:
    """Return for each node the weighted sum over its domains."""
    totals = [0] * len(nodes)
    for key, domains, factor in groups:
        get = domains.get
        totals = [
            total + factor * get(value, 0) if (value := node.labels.get(key)) is not None else total
            for total, node in zip(totals, nodes, strict=True)
        ]
    return totals


def normalize(scores: list[int]) -> None:
    """Scale in place so that the lowest score is 0 and the highest SCORE_MAX; equal scores all become 0."""
    lowest, highest = min(scores), max(scores)
    span = highest - lowest
    if span:
        scores[:] = [int(SCORE_MAX * ((score - lowest) / span)) for score in scores]
    else:
        scores[:] = [0] * len(scores)
