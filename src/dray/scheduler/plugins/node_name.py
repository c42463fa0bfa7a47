"""Restricts a Pod to the node that it names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.api.types.core_v1 import Node, Pod
from dray.framework.cycle_state import CycleState
from dray.framework.events import NODE, Action, ClusterEvent, EventRegistration, Hint
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import PreFilterResult
from dray.framework.status import SKIP, SUCCESS, Status, unresolvable

REASON: Final = "node(s) didn't match the requested node name"
_NAME: Final = "NodeName"
_NO: Final = unresolvable(REASON).with_plugin(_NAME)


class NodeName:
    """Filters on `spec.nodeName`."""

    name = _NAME

    def pre_filter(self, _state: CycleState, pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Skip Pods without a node name."""
        return None, SUCCESS if pod.spec.node_name else SKIP

    def filter(self, _state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Reject other nodes."""
        return SUCCESS if pod.spec.node_name in (None, "", node.name) else _NO

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Return the addition of the named node."""
        return (EventRegistration(ClusterEvent(NODE, Action.ADD), _is_named),)


def _is_named(pod: Pod, _old: Node | None, new: Node | None) -> Hint:
    return Hint.QUEUE if new is None or pod.spec.node_name in (None, "", new.metadata.name) else Hint.SKIP
