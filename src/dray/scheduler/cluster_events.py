"""Changes of objects as cluster events, and the resources that the events are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final

from dray.api.types.core_v1 import Node, Pod
from dray.client.informer import Selection
from dray.client.interface import Resource
from dray.client.resources import (
    CLASSIC_CLAIMS,
    CLASSIC_CLASSES,
    DEVICE_CLASSES,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from dray.framework import events
from dray.framework.events import ASSIGNED_POD, NODE, UNSCHEDULED_POD, Action, ClusterEvent
from dray.framework.resources import pod_requests

ASSIGNED_POD_ADD: Final = ClusterEvent(ASSIGNED_POD, Action.ADD, "AssignedPodAdd")
ASSIGNED_POD_DELETE: Final = ClusterEvent(ASSIGNED_POD, Action.DELETE, "AssignedPodDelete")
NODE_ADD: Final = ClusterEvent(NODE, Action.ADD, "NodeAdd")
NODE_DELETE: Final = ClusterEvent(NODE, Action.DELETE, "NodeDelete")


def pod_event(old: Pod, new: Pod) -> ClusterEvent:
    """Return the event for an update of a Pod."""
    resource = ASSIGNED_POD if new.spec.node_name else UNSCHEDULED_POD
    return ClusterEvent(resource, pod_actions(old, new), f"{resource}Update")


def node_event(old: Node, new: Node) -> ClusterEvent:
    """Return the event for an update of a node."""
    return ClusterEvent(NODE, node_actions(old, new), "NodeUpdate")


def pod_actions(old: Pod, new: Pod) -> Action:
    """Return what changed in a Pod."""
    actions: list[Action] = []
    if old.metadata.labels != new.metadata.labels:
        actions.append(Action.UPDATE_POD_LABEL)
    if old.spec.tolerations != new.spec.tolerations:
        actions.append(Action.UPDATE_POD_TOLERATION)
    if old.spec.scheduling_gates and not new.spec.scheduling_gates:
        actions.append(Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED)
    if old.status.resource_claim_statuses != new.status.resource_claim_statuses:
        actions.append(Action.UPDATE_POD_GENERATED_RESOURCE_CLAIM)
    if _asks_for_less(old, new):
        actions.append(Action.UPDATE_POD_SCALE_DOWN)
    return _union(actions)


def node_actions(old: Node, new: Node) -> Action:
    """Return what changed in a node."""
    actions: list[Action] = []
    if old.status.allocatable != new.status.allocatable:
        actions.append(Action.UPDATE_NODE_ALLOCATABLE)
    if old.metadata.labels != new.metadata.labels:
        actions.append(Action.UPDATE_NODE_LABEL)
    if old.spec.taints != new.spec.taints or bool(old.spec.unschedulable) != bool(new.spec.unschedulable):
        actions.append(Action.UPDATE_NODE_TAINT)
    if _condition_statuses(old) != _condition_statuses(new):
        actions.append(Action.UPDATE_NODE_CONDITION)
    if old.metadata.annotations != new.metadata.annotations:
        actions.append(Action.UPDATE_NODE_ANNOTATION)
    if old.status.declared_features != new.status.declared_features:
        actions.append(Action.UPDATE_NODE_DECLARED_FEATURE)
    return _union(actions)


def _union(actions: Sequence[Action]) -> Action:
    """Return the actions as one flag. Most changes are a single one, and combining flags takes several calls."""
    return reduce(or_, actions) if actions else Action.UPDATE_OTHER


def _asks_for_less(old: Pod, new: Pod) -> bool:
    if old.spec.containers == new.spec.containers and old.status.container_statuses == new.status.container_statuses:
        return False
    before, after = pod_requests(old), pod_requests(new)
    return any(after.get(name, 0) < amount for name, amount in before.items())


def _condition_statuses(node: Node) -> Mapping[str, str]:
    """Return the statuses without times, which change with every heartbeat."""
    return {condition.type: condition.status for condition in node.status.conditions}


# Finished Pods use no resources.
UNFINISHED: Final = Selection(field_selector="status.phase!=Succeeded,status.phase!=Failed")

# Watched if a plugin registers for their events; Pods and nodes always are.
RESOURCES_BY_EVENT: Final[Mapping[str, Resource[Any]]] = {
    events.NAMESPACE: NAMESPACES,
    events.PERSISTENT_VOLUME: PERSISTENT_VOLUMES,
    events.PERSISTENT_VOLUME_CLAIM: PERSISTENT_VOLUME_CLAIMS,
    events.RESOURCE_CLAIM: RESOURCE_CLAIMS,
    events.RESOURCE_SLICE: RESOURCE_SLICES,
    events.DEVICE_CLASS: DEVICE_CLASSES,
    events.CLASSIC_CLAIM: CLASSIC_CLAIMS,
    events.CLASSIC_CLASS: CLASSIC_CLASSES,
}
