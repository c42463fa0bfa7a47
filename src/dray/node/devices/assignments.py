"""Device requests and device assignments of containers. Pure.

A device is assigned to one container, except that containers may take over devices of finished init containers.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from dray.api.quantity import Quantity
from dray.api.types.core_v1 import Container, Pod
from dray.node.topology.containers import peak

# Kubernetes' number for a device without a NUMA node.
NO_NUMA_NODE = -1


class AssignmentKey(NamedTuple):
    """One resource of one container."""

    pod_uid: str
    container: str
    resource: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """The devices by NUMA node (a device with several is listed under each), and the plugin's encoded response.

    Without a response, only the devices are known: the plugin is asked again before the container starts again.
    """

    devices: Mapping[int, tuple[str, ...]]
    response: bytes | None

    @property
    def is_complete(self) -> bool:
        """Whether the container can start with it."""
        return bool(self.devices) and self.response is not None

    @property
    def ids(self) -> frozenset[str]:
        """The devices."""
        return frozenset(name for names in self.devices.values() for name in names)


# The container has devices of the resource, and nothing tells which: every device may be one of them.
UNKNOWN: Final = Assignment({}, None)


class Assignments:
    """All assignments of the node; changed only by `put` and `remove`."""

    def __init__(self, items: Iterable[tuple[AssignmentKey, Assignment]] = ()) -> None:
        # By Pod UID; each sorted by key.
        self._pods: dict[str, tuple[tuple[AssignmentKey, Assignment], ...]] = {}
        # Indices, so that admission need not iterate over all Pods.
        self._uids: list[str] = []
        self._holders: dict[str, Counter[str]] = {}
        self._unknown: dict[AssignmentKey, None] = {}
        # Changes whenever an assignment does.
        self.revision = 0
        for slot, assignment in items:
            self.put(slot, assignment)

    def put(self, slot: AssignmentKey, assignment: Assignment) -> None:
        """Set an assignment."""
        if slot.pod_uid not in self._pods:
            bisect.insort(self._uids, slot.pod_uid)
        before = dict(self._pods.get(slot.pod_uid, ()))
        if slot in before:
            self._uncount(slot, before[slot])
        self._holders.setdefault(slot.resource, Counter()).update(assignment.ids)
        if not assignment.devices:
            self._unknown[slot] = None
        self._pods[slot.pod_uid] = tuple(sorted({**before, slot: assignment}.items(), key=_slot))
        self.revision += 1

    def remove(self, pod_uid: str) -> bool:
        """Remove the assignments of a Pod; return whether it had any."""
        gone = self._pods.pop(pod_uid, None)
        if gone is None:
            return False
        del self._uids[bisect.bisect_left(self._uids, pod_uid)]
        for slot, assignment in gone:
            self._uncount(slot, assignment)
        self.revision += 1
        return True

    def _uncount(self, slot: AssignmentKey, assignment: Assignment) -> None:
        self._unknown.pop(slot, None)
        holders = self._holders.get(slot.resource, Counter())
        for name in assignment.ids:
            holders[name] -= 1
            if not holders[name]:
                del holders[name]
        if not holders and not self.unknown(slot.resource):
            self._holders.pop(slot.resource, None)

    def get(self, slot: AssignmentKey) -> Assignment | None:
        """Return an assignment."""
        return next((held for found, held in self.of_pod(slot.pod_uid) if found == slot), None)

    def all(self) -> Iterator[tuple[AssignmentKey, Assignment]]:
        """Return all assignments by Pod, container and resource."""
        return itertools.chain.from_iterable(map(self._pods.__getitem__, self._uids))

    def of_pod(self, pod_uid: str) -> tuple[tuple[AssignmentKey, Assignment], ...]:
        """Return the assignments of a Pod."""
        return self._pods.get(pod_uid, ())

    def of_container(self, pod_uid: str, container: str) -> tuple[tuple[AssignmentKey, Assignment], ...]:
        """Return the assignments of a container."""
        return tuple(item for item in self.of_pod(pod_uid) if item[0].container == container)

    def pod_uids(self) -> tuple[str, ...]:
        """Return the UIDs of Pods with assignments."""
        return tuple(self._uids)

    def in_use(self, resource: str) -> frozenset[str]:
        """Return the assigned devices of a resource."""
        return frozenset(self._holders.get(resource, ()))

    def unknown(self, resource: str) -> tuple[AssignmentKey, ...]:
        """Return who has devices of the resource of which nothing tells which they are."""
        return tuple(slot for slot in self._unknown if slot.resource == resource)

    def resources(self) -> frozenset[str]:
        """Return the resources with assigned devices."""
        return frozenset(self._holders)

    def users_of(self, resource: str, ids: frozenset[str]) -> frozenset[str]:
        """Return the UIDs of Pods to which any of the devices is assigned."""
        return frozenset(
            slot.pod_uid for slot, assignment in self.all() if slot.resource == resource and assignment.ids & ids
        )


def _slot(item: tuple[AssignmentKey, Assignment]) -> AssignmentKey:
    return item[0]


Known = Callable[[str], bool]


def served_by_claims(pod: Pod, container: str) -> frozenset[str]:
    """Return the extended resources that a claim provides to the container, not a device plugin."""
    special = pod.status.extended_resource_claim_status
    if special is None:
        return frozenset()
    return frozenset(item.resource_name for item in special.request_mappings if item.container_name == container)


def container_request(pod: Pod, container: Container, known: Known) -> dict[str, int]:
    """Return the number of devices that the container requests, by known resource, in the order of names."""
    elsewhere = served_by_claims(pod, container.name)
    amounts = {
        name: Quantity.parse(amount).value()
        for name, amount in container.resources.limits.items()
        if name not in elsewhere and known(name)
    }
    return {name: amounts[name] for name in sorted(amounts) if amounts[name] > 0}


def pod_request(pod: Pod, known: Known) -> dict[str, int]:
    """Return the largest number of devices that the Pod needs at the same time, by resource."""
    return peak(pod, lambda container: container_request(pod, container, known))
