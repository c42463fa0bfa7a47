"""Queueing hints of NodeResourcesFit."""

from __future__ import annotations

from collections.abc import Sequence

from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import DeviceClass
from dray.framework.events import (
    ASSIGNED_POD,
    DEVICE_CLASS,
    NODE,
    UNSCHEDULED_POD,
    Action,
    ClusterEvent,
    EventRegistration,
    Hint,
)
from dray.framework.resources import PODS, amounts_of, pod_requests
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.dynamic_resources.hints import concerns_resources


class FitEvents:
    """Decides which events may provide the resources that a Pod lacks."""

    def __init__(self, handle: Handle) -> None:
        self._extended_resources = handle.extended_resources
        self._has_classes = handle.features.enabled("DRAExtendedResource")

    def registrations(self) -> Sequence[EventRegistration]:
        """Return deleted or scaled-down Pods, added or larger nodes, and changed device classes."""
        added = Action.ADD | Action.UPDATE_NODE_ALLOCATABLE
        registrations = [
            EventRegistration(ClusterEvent(ASSIGNED_POD, Action.DELETE | Action.UPDATE_POD_SCALE_DOWN), _frees),
            EventRegistration(ClusterEvent(UNSCHEDULED_POD, Action.UPDATE_POD_SCALE_DOWN)),
            EventRegistration(ClusterEvent(NODE, added), self._node_has_resources),
        ]
        if self._has_classes:
            # Devices may serve a resource that no node has.
            changed = Action.ADD | Action.UPDATE | Action.DELETE
            registrations.append(EventRegistration(ClusterEvent(DEVICE_CLASS, changed), self._is_served))
        return registrations

    def _is_served(self, pod: Pod, old: DeviceClass | None, new: DeviceClass | None) -> Hint:
        if concerns_resources(pod, old, new) is Hint.SKIP:
            return Hint.SKIP
        return Hint.QUEUE if any(map(self._extended_resources.serves_resource, pod_requests(pod))) else Hint.SKIP

    def _node_has_resources(self, pod: Pod, old: Node | None, new: Node | None) -> Hint:
        """Queue if the node has enough in total, and more of something than before."""
        if new is None:
            return Hint.SKIP
        total = amounts_of(new.status.allocatable)
        requests = pod_requests(pod)
        if total.get(PODS, 0) < 1 or any(self._lacks(name, amount, total) for name, amount in requests.items()):
            return Hint.SKIP
        before = amounts_of(old.status.allocatable) if old is not None else {}
        grown = any(amount > before.get(name, 0) for name, amount in total.items() if name in requests or name == PODS)
        # Devices may serve what a device plugin no longer provides.
        now_served = any(
            before.get(name, 0) and not total.get(name, 0) and self._extended_resources.serves_resource(name)
            for name in requests
        )
        return Hint.QUEUE if grown or now_served else Hint.SKIP

    def _lacks(self, name: str, wanted: int, total: dict[str, int]) -> bool:
        if wanted <= total.get(name, 0):
            return False
        return bool(total.get(name)) or not self._extended_resources.serves_resource(name)


def _frees(pod: Pod, old: Pod | None, new: Pod | None) -> Hint:
    """Queue if a requested resource was freed; a deleted Pod frees at least a Pod slot."""
    if old is None or new is None:
        return Hint.QUEUE
    before, after = pod_requests(old), pod_requests(new)
    return Hint.QUEUE if any(after.get(name, 0) < before.get(name, 0) for name in pod_requests(pod)) else Hint.SKIP
