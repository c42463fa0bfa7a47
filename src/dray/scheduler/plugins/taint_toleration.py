"""Rejects nodes with untolerated taints, and avoids untolerated PreferNoSchedule taints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dray.api.tolerations import tolerates
from dray.api.types.core_v1 import Node, Pod, Taint, Toleration
from dray.framework.cycle_state import CycleState
from dray.framework.events import NODE, UNSCHEDULED_POD, Action, ClusterEvent, EventRegistration, Hint
from dray.framework.node_info import PREFER_NO_SCHEDULE, NodeInfo
from dray.framework.plugins import PreFilterResult
from dray.framework.status import SKIP, SUCCESS, Status, unresolvable
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.normalization import normalize

REASON: Final = "node(s) had untolerated taint(s)"
_NAME: Final = "TaintToleration"
_NO: Final = unresolvable(REASON).with_plugin(_NAME)
_SOFT: Final = "TaintToleration/soft"


class TaintToleration:
    """Filters and scores on taints."""

    name = _NAME

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def pre_filter(self, _state: CycleState, _pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Skip if no node has such taints."""
        return None, SUCCESS if self._handle.snapshot.hard_tainted else SKIP

    def filter(self, _state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Reject a node with an untolerated NoSchedule or NoExecute taint."""
        if not node.hard_taints or untolerated(node.hard_taints, pod.spec.tolerations) is None:
            return SUCCESS
        return _NO

    def pre_score(self, state: CycleState, pod: Pod, _nodes: Sequence[NodeInfo]) -> Status:
        """Collect the tolerations of PreferNoSchedule taints."""
        if not self._handle.snapshot.soft_tainted:
            return SKIP
        state[_SOFT] = tuple(item for item in pod.spec.tolerations if item.effect in (None, "", PREFER_NO_SCHEDULE))
        return SUCCESS

    def score(self, state: CycleState, _pod: Pod, node: NodeInfo) -> int:
        """Return the number of untolerated PreferNoSchedule taints."""
        tolerations = state[_SOFT]
        return sum(not any(tolerates(item, taint) for item in tolerations) for taint in node.soft_taints)

    def normalize_scores(self, _state: CycleState, _pod: Pod, scores: list[int]) -> None:
        """Scale so that the lowest count is best."""
        normalize(scores, reverse=True)

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Return added nodes, changed taints, and changed tolerations."""
        return (
            EventRegistration(ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_TAINT), _became_tolerable),
            EventRegistration(ClusterEvent(UNSCHEDULED_POD, Action.UPDATE_POD_TOLERATION)),
        )


def _became_tolerable(pod: Pod, old: Node | None, new: Node | None) -> Hint:
    was = old is not None and _is_tolerable(pod, old)
    return Hint.QUEUE if new is not None and _is_tolerable(pod, new) and not was else Hint.SKIP


def _is_tolerable(pod: Pod, node: Node) -> bool:
    hard = (taint for taint in node.spec.taints if taint.effect != PREFER_NO_SCHEDULE)
    return untolerated(hard, pod.spec.tolerations) is None


__all__ = ["tolerates", "untolerated"]


def untolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """Return the first taint that no toleration matches."""
    for taint in taints:
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None
