"""The scores of PodTopologySpread for ScheduleAnyway constraints, by the formulas of Kubernetes 1.37. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from dray.framework.node_info import NodeInfo
from dray.framework.plugins import SCORE_MAX
from dray.scheduler.plugins.pod_topology_spread.constraints import HOSTNAME

# The raw score of a node that lacks a required key; its final score is 0.
IGNORED: Final = -1


class SoftConstraint(msgspec.Struct, frozen=True):
    """A constraint with the numbers of Pods by domain; for the hostname, by node."""

    key: str
    max_skew: int
    counts: Mapping[str, int]
    weight: float


def domain_weight(size: int) -> float:
    """Return the weight of a constraint with so many domains."""
    return math.log(size + 2)


def sizes(keys: Sequence[str], nodes: Sequence[NodeInfo]) -> list[int]:
    """Return the number of domains of each key among the nodes; a node without the key is in a domain of its own."""
    return [len(nodes) if key == HOSTNAME else len({node.labels.get(key, "") for node in nodes}) for key in keys]


def has_keys(node: NodeInfo, keys: Sequence[str]) -> bool:
    """Return whether the node has all keys."""
    return all(key in node.labels for key in keys)


def raw_scores(constraints: Sequence[SoftConstraint], nodes: Sequence[NodeInfo], required: Sequence[str]) -> list[int]:
    """Return the weighted number of Pods in each node's domains; `IGNORED` for a node without a required key."""
    totals = [0.0] * len(nodes)
    for item in constraints:
        key, weight, extra, get = item.key, item.weight, item.max_skew - 1, item.counts.get
        by_name = key == HOSTNAME
        totals = [
            total + get(node.name if by_name else value, 0) * weight + extra
            if (value := node.labels.get(key)) is not None
            else total
            for total, node in zip(totals, nodes, strict=True)
        ]
    # Halves are rounded up, as in Kubernetes; Python's own function rounds them to even numbers.
    scores = [math.floor(total + 0.5) for total in totals]
    if required:
        scores = [score if has_keys(node, required) else IGNORED for score, node in zip(scores, nodes, strict=True)]
    return scores


def normalize(scores: list[int]) -> None:
    """Reverse and scale in place: the fewest Pods become SCORE_MAX; ignored nodes become 0."""
    counted = [score for score in scores if score != IGNORED]
    lowest, highest = (min(counted), max(counted)) if counted else (0, 0)
    scores[:] = [
        0 if score == IGNORED else SCORE_MAX * (highest + lowest - score) // highest if highest else SCORE_MAX
        for score in scores
    ]
