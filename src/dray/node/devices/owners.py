"""Who has which devices, read from what runs: for an agent whose checkpoint was lost. Pure.

The agent notes the devices of a container in an annotation of it, which the container runtime keeps. Containers without
the note come from an agent that did not write it yet: what a running one of them requests is read from the Pod's
status, which has the devices but not what the plugin has responded, and else assigned as `UNKNOWN` until the plugin
lists its devices: it may have named them in the variables, CDI devices or device files of the container.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from dray.api.types.core_v1 import Pod, ResourceStatus
from dray.node.devices.assignments import NO_NUMA_NODE, UNKNOWN, Assignment, AssignmentKey, Known, container_request
from dray.node.devices.checkpoint import Checkpoint, CheckpointError, decode, encode
from dray.node.runtimes.runtime import ContainerRecord
from dray.node.topology.containers import containers_of

ANNOTATION: Final = "dray.dev/devices"

# Variables that containers have without a plugin: those of the machine, and those about Services.
_OTHER_VARIABLES: Final = re.compile(
    r"HOME|HOSTNAME|LANG|PATH|KUBERNETES_\w+|\w+_SERVICE_(HOST|PORT\w*)|\w+_PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?"
)
_SEPARATORS: Final = re.compile(r"[,;\s]+")

Owner = tuple[AssignmentKey, Assignment]


def note(assigned: Collection[Owner]) -> dict[str, str]:
    """Return the annotation of a container that has these devices."""
    return {ANNOTATION: encode(Checkpoint(tuple(assigned))).decode()} if assigned else {}


def noted(record: ContainerRecord) -> tuple[Owner, ...]:
    """Return the devices that the container's annotation tells."""
    try:
        found = decode(record.annotations.get(ANNOTATION, "").encode()).assigned
    except CheckpointError:
        return ()
    return tuple(item for item in found if (item[0].pod_uid, item[0].container) == (record.pod_uid, record.name))


def rebuild(records: Iterable[ContainerRecord], pods: Iterable[Pod], may_manage: Known) -> Iterator[Owner]:
    """Yield the devices of containers, those of a container's last run after those of earlier ones."""
    in_order = sorted(records, key=lambda record: record.attempt)
    found = dict(owner for record in in_order for owner in noted(record))
    yield from found.items()
    running = {(record.pod_uid, record.name) for record in in_order if record.exit is None}
    for pod in pods:
        uid = pod.metadata.uid or ""
        for container in containers_of(pod):
            if (uid, container.name) in running:
                for resource, amount in container_request(pod, container, may_manage).items():
                    slot = AssignmentKey(uid, container.name, resource)
                    if slot not in found:
                        yield slot, _of_status(pod, slot, amount)


def reported(pod: Pod, container: str) -> Iterator[ResourceStatus]:
    """Yield what the Pod's status tells of the container's devices."""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if status.name == container:
            yield from status.allocated_resources_status


def _of_status(pod: Pod, slot: AssignmentKey, amount: int) -> Assignment:
    """Return the devices that the Pod's status names, if there are as many as the container has."""
    found = (resource for resource in reported(pod, slot.container) if resource.name == slot.resource)
    ids = {device.resource_id for resource in found for device in resource.resources}
    return Assignment({NO_NUMA_NODE: tuple(sorted(ids))}, None) if len(ids) == amount else UNKNOWN


def configured(record: ContainerRecord, pod: Pod, ids: Collection[str]) -> frozenset[str]:
    """Return those of the devices that the container's configuration names, apart from what the Pod says itself.

    A number is no name: it may be an amount.
    """
    container = next(item for item in containers_of(pod) if item.name == record.name)
    declared = {item.name for item in container.env}
    named: set[str] = set()
    # Variables of ConfigMaps and Secrets could be any.
    for name, value in record.environment.items() if not container.env_from else ():
        if name not in declared and not _OTHER_VARIABLES.fullmatch(name):
            named |= {value, *_SEPARATORS.split(value)}
    for text in record.device_names:
        named |= {text, text.rpartition("=")[2], text.rpartition("/")[2]}
    return frozenset(name for name in ids if name in named and not name.isdigit())
