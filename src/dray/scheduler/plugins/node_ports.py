"""Prevents conflicts of host ports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.api.types.core_v1 import Node, Pod
from dray.framework.cycle_state import CycleState
from dray.framework.events import ASSIGNED_POD, NODE, Action, ClusterEvent, EventRegistration, Hint
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import PreFilterResult
from dray.framework.pod_info import host_ports, ports_conflict
from dray.framework.status import SKIP, SUCCESS, Status, unschedulable

REASON: Final = "node(s) didn't have free ports for the requested pod ports"
_NAME: Final = "NodePorts"
_NO: Final = unschedulable(REASON).with_plugin(_NAME)


class NodePorts:
    """Filters on host ports."""

    name = _NAME

    def pre_filter(self, state: CycleState, _pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Skip Pods without host ports."""
        return None, SUCCESS if state.pod_info.host_ports else SKIP

    def filter(self, state: CycleState, _pod: Pod, node: NodeInfo) -> Status:
        """Reject a node where a port is in use."""
        if not node.ports:
            return SUCCESS
        wanted = state.pod_info.host_ports
        return _NO if any(ports_conflict(port, taken) for port in wanted for taken in node.ports) else SUCCESS

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Return deleted Pods and added nodes."""
        return (
            EventRegistration(ClusterEvent(ASSIGNED_POD, Action.DELETE), _frees_port),
            EventRegistration(ClusterEvent(NODE, Action.ADD), _any_node),
        )


def _frees_port(pod: Pod, old: Pod | None, _new: Pod | None) -> Hint:
    freed = host_ports(old) if old is not None else ()
    return Hint.QUEUE if any(ports_conflict(port, taken) for port in host_ports(pod) for taken in freed) else Hint.SKIP


def _any_node(_pod: Pod, _old: Node | None, _new: Node | None) -> Hint:
    return Hint.QUEUE
