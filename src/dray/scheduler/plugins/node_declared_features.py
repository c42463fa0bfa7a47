"""Checks that a node declares the features that the Pod's spec needs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.api.types.core_v1 import Node, Pod
from dray.framework.cycle_state import CycleState
from dray.framework.events import NODE, UNSCHEDULED_POD, Action, ClusterEvent, EventRegistration, Hint
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import PreFilterResult
from dray.framework.status import SKIP, SUCCESS, Status, unresolvable

REASON: Final = "node(s) didn't match Pod's required features"
RESTART_ALL: Final = "RestartAllContainersOnContainerExits"
HOST_NETWORK_USERS: Final = "UserNamespacesHostNetworkSupport"
MOUNT_OPTIONS: Final = "VolumeBindMountOptions"

NOTHING: Final[frozenset[str]] = frozenset()
_NAME: Final = "NodeDeclaredFeatures"
_NO: Final = unresolvable(REASON).with_plugin(_NAME)
_RESTART_ALL_ACTION: Final = "RestartAllContainers"


class NodeDeclaredFeatures:
    """Filters on `status.declaredFeatures` of nodes."""

    name = _NAME

    def pre_filter(self, state: CycleState, pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Infer the needed features; skip if there are none."""
        needed = needed_features(pod)
        if not needed:
            return None, SKIP
        state[_NAME] = needed
        return None, SUCCESS

    def filter(self, state: CycleState, _pod: Pod, node: NodeInfo) -> Status:
        """Check that the node declares all needed features."""
        needed: frozenset[str] = state[_NAME]
        return SUCCESS if needed.issubset(node.node.status.declared_features) else _NO

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Return added nodes, changed features, and changes of the Pod."""
        return (
            EventRegistration(ClusterEvent(NODE, Action.ADD | Action.UPDATE), _declares_more),
            EventRegistration(ClusterEvent(UNSCHEDULED_POD, Action.UPDATE), _needs_others),
        )


def needed_features(pod: Pod) -> frozenset[str]:
    """Return the features that a node must declare for the Pod."""
    spec = pod.spec
    needed: set[str] = set()
    if spec.host_network and spec.host_users is False:
        needed.add(HOST_NETWORK_USERS)
    for containers in (spec.containers, spec.init_containers):
        for container in containers:
            rules = container.restart_policy_rules
            if rules and any(rule.action == _RESTART_ALL_ACTION for rule in rules):
                needed.add(RESTART_ALL)
            for mount in container.volume_mounts:
                if mount.bind_mount_options:
                    needed.add(MOUNT_OPTIONS)
    return frozenset(needed) if needed else NOTHING


def _declares_more(pod: Pod, old: Node | None, new: Node | None) -> Hint:
    assert new is not None
    needed = needed_features(pod)
    had = old is not None and needed.issubset(old.status.declared_features)
    return Hint.QUEUE if needed.issubset(new.status.declared_features) and not had else Hint.SKIP


def _needs_others(_pod: Pod, old: Pod | None, new: Pod | None) -> Hint:
    assert old is not None
    assert new is not None
    return Hint.QUEUE if needed_features(old) != needed_features(new) else Hint.SKIP
