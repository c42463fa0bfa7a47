"""What one scheduling attempt found out about the nodes, for the record of decisions. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from dray.framework.node_statuses import StatusCount

# Nodes whose scores are recorded: the chosen one and its runners-up.
SCORED_NODES_MAX: Final = 4
# Groups of rejected nodes that are recorded, the largest first; the others are only counted.
REJECTIONS_MAX: Final = 12
# Reasons that are recorded of a group.
REASONS_MAX: Final = 8


class NodeScore(msgspec.Struct, frozen=True, rename="camel"):
    """The weighted scores of a feasible node."""

    node: str
    total: int
    by_plugin: dict[str, int]


class RejectedNodes(msgspec.Struct, frozen=True, rename="camel"):
    """Nodes that the same plugin rejected for the same reasons."""

    count: int
    plugin: str
    reasons: tuple[str, ...]
    # One of them.
    example: str = ""


class Evaluation(msgspec.Struct, frozen=True, rename="camel"):
    """The nodes of one attempt: how many there were, and what became of them."""

    node_count: int
    # As in kube-scheduler, a search ends when enough nodes are feasible.
    evaluated: int = 0
    feasible: int = 0
    # The best nodes, the chosen one first; empty if one node was feasible, or nothing was scored.
    scores: tuple[NodeScore, ...] = ()
    rejections: tuple[RejectedNodes, ...] = ()
    # Nodes in groups that are not listed.
    unlisted: int = 0


def group_rejections(counts: Iterable[StatusCount]) -> tuple[tuple[RejectedNodes, ...], int]:
    """Return the nodes grouped by plugin and reasons, the largest groups first, and the number that is not listed."""
    merged: dict[tuple[str, tuple[str, ...]], tuple[int, str]] = {}
    for status, count, name in counts:
        group = status.plugin, tuple(status.texts[:REASONS_MAX])
        merged[group] = (merged.get(group, (0, ""))[0] + count, name)
    found = [RejectedNodes(count, plugin, reasons, example) for (plugin, reasons), (count, example) in merged.items()]
    found.sort(key=lambda item: -item.count)
    return tuple(found[:REJECTIONS_MAX]), sum(item.count for item in found[REJECTIONS_MAX:])
