"""Rejects cordoned nodes, except for Pods that tolerate it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.api.types.core_v1 import Node, Pod, Taint
from dray.framework.cycle_state import CycleState
from dray.framework.events import NODE, UNSCHEDULED_POD, Action, ClusterEvent, EventRegistration, Hint
from dray.framework.node_info import NO_SCHEDULE, NodeInfo
from dray.framework.plugins import PreFilterResult
from dray.framework.status import SKIP, SUCCESS, Status, unresolvable
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.taint_toleration import untolerated

REASON: Final = "node(s) were unschedulable"
_TAINT: Final = Taint(key="node.kubernetes.io/unschedulable", effect=NO_SCHEDULE)
_NAME: Final = "NodeUnschedulable"
_NO: Final = unresolvable(REASON).with_plugin(_NAME)


class NodeUnschedulable:
    """Filters on `spec.unschedulable`."""

    name = _NAME

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def pre_filter(self, _state: CycleState, _pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Skip if no node is cordoned."""
        return None, SUCCESS if self._handle.snapshot.unschedulable else SKIP

    def filter(self, _state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Reject a cordoned node unless the Pod tolerates the corresponding taint."""
        return SUCCESS if not node.unschedulable or _is_tolerated(pod) else _NO

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Return added or uncordoned nodes, and changed tolerations."""
        return (
            EventRegistration(ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_TAINT), _is_usable),
            EventRegistration(ClusterEvent(UNSCHEDULED_POD, Action.UPDATE_POD_TOLERATION)),
        )


def _is_tolerated(pod: Pod) -> bool:
    return untolerated((_TAINT,), pod.spec.tolerations) is None


def _is_usable(pod: Pod, old: Node | None, new: Node | None) -> Hint:
    was_usable = old is not None and not old.spec.unschedulable
    usable = new is not None and not new.spec.unschedulable
    return Hint.QUEUE if (usable and not was_usable) or _is_tolerated(pod) else Hint.SKIP
