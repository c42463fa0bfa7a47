"""Whether an unhealthy device fails the Pod that has it, as KEP-3573 expects. Pure.

Only what a connected plugin says of a device counts: a plugin that is gone fails no Pod, nor does a device it forgot
to list.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dray.api.types.core_v1 import Pod
from dray.node.devices.assignments import Assignment, Slot
from dray.node.devices.inventory import Inventory
from dray.node.devices.names import in_order
from dray.node.interface import Rejection
from dray.node.topology.containers import is_ordinary_init

REASON: Final = "UnhealthyDevice"


def verdict(pod: Pod, assigned: Iterable[tuple[Slot, Assignment]], inventory: Inventory) -> Rejection | None:
    """The first unhealthy device that a container still uses."""
    done = _finished_init_containers(pod)
    for slot, assignment in assigned:
        if slot.container in done or not inventory.is_current(slot.resource):
            continue
        devices = inventory.devices(slot.resource)
        for name in in_order(assignment.ids):
            if name in devices and not devices[name].healthy:
                text = f"device {name} of resource {slot.resource}, in use by container {slot.container}, is unhealthy"
                return Rejection(REASON, text)
    return None


def _finished_init_containers(pod: Pod) -> frozenset[str]:
    statuses = pod.status.init_container_statuses
    ended = (item.name for item in statuses if item.state.terminated is not None)
    return frozenset(name for name in ended if is_ordinary_init(pod, name))
