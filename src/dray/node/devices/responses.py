"""What plugins' answers mean for containers, and what devices look like in a container's status. Pure."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TypeVar

from dray.api.document import Document
from dray.node.devices.assignments import Assignment, Slot
from dray.node.devices.inventory import Device, Inventory
from dray.node.devices.names import in_order
from dray.node.interface import HostDevice, Mount, RunOptions
from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2 as pb

_log = logging.getLogger(__name__)

_Value = TypeVar("_Value")
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"
# The plugin is gone and may come back: nobody can say.
UNKNOWN = "Unknown"


def run_options(assigned: Iterable[tuple[Slot, Assignment]]) -> RunOptions:
    """What the answers give to one container; of two for the same name or path the first counts."""
    answers = [pb.ContainerAllocateResponse.FromString(assignment.response) for _, assignment in assigned]
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
    """A device as its plugin told of it; any health but "Healthy" is unhealthy."""
    nodes = dict.fromkeys(node.id for node in message.topology.nodes)
    return Device(message.id, message.health == HEALTHY, tuple(nodes))


def resource_statuses(assigned: Iterable[tuple[Slot, Assignment]], inventory: Inventory) -> list[Document]:
    """The `allocatedResourcesStatus` entries of one container."""
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
    """Healthy, Unhealthy (also a device that its plugin no longer lists), or Unknown without a plugin."""
    if not inventory.is_current(resource):
        return UNKNOWN
    return HEALTHY if inventory.is_healthy(resource, device_id) else UNHEALTHY
