"""Converts plugins' responses to run options and container statuses, and finds unhealthy devices."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from dray.api.document import Document
from dray.api.types.core_v1 import Pod
from dray.node.devices.assignments import Assignment, AssignmentKey
from dray.node.devices.inventory import Device, Inventory, in_order
from dray.node.resource_manager import HostDevice, Mount, Rejection, RunOptions
from dray.node.topology.containers import is_ordinary_init
from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2 as pb

_log = logging.getLogger(__name__)

_Value = TypeVar("_Value")
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"
# The plugin is not connected.
UNKNOWN = "Unknown"


def merge_responses(responses: Sequence[bytes]) -> bytes:
    """Return the responses of several plugins for one container as one; the first value of a key is used."""
    if len(responses) == 1:
        return responses[0]
    merged = pb.ContainerAllocateResponse()
    for part in map(pb.ContainerAllocateResponse.FromString, responses):
        for values, more in ((merged.envs, part.envs), (merged.annotations, part.annotations)):
            values.update({key: value for key, value in more.items() if key not in values})
        part.envs.clear()
        part.annotations.clear()
        merged.MergeFrom(part)
    encoded: bytes = merged.SerializeToString(deterministic=True)
    return encoded


def run_options(assigned: Iterable[tuple[AssignmentKey, Assignment]]) -> RunOptions:
    """Return what the responses add to a container; the first value for a name or path is used."""
    answers = [pb.ContainerAllocateResponse.FromString(assignment.response or b"") for _, assignment in assigned]
    mounts = [
        Mount(item.container_path, item.host_path, item.read_only) for answer in answers for item in answer.mounts
    ]
    devices = [
        HostDevice(item.container_path, item.host_path, item.permissions)
        for answer in answers
        for item in answer.devices
    ]
    return RunOptions(
        envs=_first("environment variable", (item for answer in answers for item in answer.envs.items())),
        mounts=tuple(_first("mount", ((item.container_path, item) for item in mounts)).values()),
        devices=tuple(_first("device", ((item.container_path, item) for item in devices)).values()),
        annotations=_first("annotation", (item for answer in answers for item in answer.annotations.items())),
        cdi_devices=tuple(dict.fromkeys(item.name for answer in answers for item in answer.cdi_devices)),
    )


def _first(what: str, items: Iterable[tuple[str, _Value]]) -> dict[str, _Value]:
    chosen: dict[str, _Value] = {}
    for name, value in items:
        if chosen.setdefault(name, value) != value:
            _log.error("two device plugins want the same %s, the first has it: %s", what, name)
    return chosen


def device_from_wire(message: pb.Device) -> Device:
    """Convert a device from its message; any health but "Healthy" is unhealthy."""
    nodes = dict.fromkeys(node.id for node in message.topology.nodes)
    return Device(message.id, message.health == HEALTHY, tuple(nodes))


def resource_statuses(assigned: Iterable[tuple[AssignmentKey, Assignment]], inventory: Inventory) -> list[Document]:
    """Return the `allocatedResourcesStatus` entries of one container."""
    return [
        {
            "name": slot.resource,
            "resources": [
                {"resourceID": name, "health": health_of(inventory, slot.resource, name)}
                for name in in_order(assignment.ids)
            ],
        }
        for slot, assignment in assigned
    ]


def health_of(inventory: Inventory, resource: str, device_id: str) -> str:
    """Return Healthy, Unhealthy (also for a device that is no longer listed), or Unknown (also without a plugin)."""
    healthy = inventory.health(resource, device_id)
    if healthy is None:
        return UNKNOWN
    return HEALTHY if healthy else UNHEALTHY


REASON: Final = "UnhealthyDevice"


def unhealthy_device(
    pod: Pod, assigned: Iterable[tuple[AssignmentKey, Assignment]], inventory: Inventory
) -> Rejection | None:
    """Return a failure for the first unhealthy or vanished device that a container still uses, as KEP-3573 requires.

    Only the report of a connected plugin counts, and only for devices that it has listed.
    """
    done = _finished_init_containers(pod)
    for slot, assignment in assigned:
        if slot.container in done:
            continue
        devices = inventory.devices(slot.resource)
        for name in in_order(assignment.ids):
            if inventory.health(slot.resource, name) is False:
                what = "is unhealthy" if name in devices else "is no longer listed by its device plugin"
                text = f"device {name} of resource {slot.resource}, in use by container {slot.container}, {what}"
                return Rejection(REASON, text)
    return None


def _finished_init_containers(pod: Pod) -> frozenset[str]:
    statuses = pod.status.init_container_statuses
    ended = (item.name for item in statuses if item.state.terminated is not None)
    return frozenset(name for name in ended if is_ordinary_init(pod, name))
