"""Which container has which devices. Pure.

A device has one holder, except that containers of a Pod may take over what its finished init containers had.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dray.api.quantity import Quantity
from dray.api.types.core_v1 import Container, Pod
from dray.node.topology.containers import peak

# Kubernetes' mark for a device that is close to no NUMA node.
NO_NUMA_NODE = -1


class AssignmentKey(NamedTuple):
    """One resource of one container."""

    pod_uid: str
    container: str
    resource: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """The devices by NUMA node (one that is close to several is in each), and the plugin's answer as it came."""

    devices: Mapping[int, tuple[str, ...]]
    response: bytes

    @property
    def ids(self) -> frozenset[str]:
        """The devices."""
        return frozenset(name for names in self.devices.values() for name in names)


class Assignments:
    """All assignments of the node; changed only by `put` and `remove`."""

    def __init__(self, items: Iterable[tuple[AssignmentKey, Assignment]] = ()) -> None:
        # By Pod, since Pods come and go as a whole; each sorted.
        self._pods: dict[str, tuple[tuple[AssignmentKey, Assignment], ...]] = {}
        # What follows is known from the Pods: no Pod's admission should have to go through all of them.
        self._uids: list[str] = []
        self._holders: dict[str, Counter[str]] = {}
        # Another number whenever something has changed.
        self.revision = 0
        for slot, assignment in items:
            self.put(slot, assignment)

    def put(self, slot: AssignmentKey, assignment: Assignment) -> None:
        """Note what the slot has."""
        if slot.pod_uid not in self._pods:
            bisect.insort(self._uids, slot.pod_uid)
        before = dict(self._pods.get(slot.pod_uid, ()))
        if slot in before:
            self._uncount(slot, before[slot])
        self._holders.setdefault(slot.resource, Counter()).update(assignment.ids)
        self._pods[slot.pod_uid] = tuple(sorted({**before, slot: assignment}.items(), key=_slot))
        self.revision += 1

    def remove(self, pod_uid: str) -> bool:
        """Forget a Pod; whether it had anything."""
        gone = self._pods.pop(pod_uid, None)
        if gone is None:
            return False
        del self._uids[bisect.bisect_left(self._uids, pod_uid)]
        for slot, assignment in gone:
            self._uncount(slot, assignment)
        self.revision += 1
        return True

    def _uncount(self, slot: AssignmentKey, assignment: Assignment) -> None:
        holders = self._holders.get(slot.resource, Counter())
        for name in assignment.ids:
            holders[name] -= 1
            if not holders[name]:
                del holders[name]
        if not holders:
            self._holders.pop(slot.resource, None)

    def get(self, slot: AssignmentKey) -> Assignment | None:
        """What the slot has."""
        return next((held for found, held in self.of_pod(slot.pod_uid) if found == slot), None)

    def all(self) -> Iterator[tuple[AssignmentKey, Assignment]]:
        """Everything, in the order of Pods, containers and resources."""
        return itertools.chain.from_iterable(map(self._pods.__getitem__, self._uids))

    def of_pod(self, pod_uid: str) -> tuple[tuple[AssignmentKey, Assignment], ...]:
        """What the Pod's containers have."""
        return self._pods.get(pod_uid, ())

    def of_container(self, pod_uid: str, container: str) -> tuple[tuple[AssignmentKey, Assignment], ...]:
        """What one container has."""
        return tuple(item for item in self.of_pod(pod_uid) if item[0].container == container)

    def pod_uids(self) -> tuple[str, ...]:
        """The Pods that have anything."""
        return tuple(self._uids)

    def in_use(self, resource: str) -> frozenset[str]:
        """The devices of the resource that somebody has."""
        return frozenset(self._holders.get(resource, ()))

    def resources(self) -> frozenset[str]:
        """The resources somebody has devices of."""
        return frozenset(self._holders)

    def users_of(self, resource: str, ids: frozenset[str]) -> frozenset[str]:
        """The Pods that have any of these devices."""
        return frozenset(
            slot.pod_uid for slot, assignment in self.all() if slot.resource == resource and assignment.ids & ids
        )


def _slot(item: tuple[AssignmentKey, Assignment]) -> AssignmentKey:
    return item[0]


Known = Callable[[str], bool]


def served_by_claims(pod: Pod, container: str) -> frozenset[str]:
    """The extended resources that the container gets through a claim, not from a device plugin."""
    special = pod.status.extended_resource_claim_status
    if special is None:
        return frozenset()
    return frozenset(item.resource_name for item in special.request_mappings if item.container_name == container)


def container_request(pod: Pod, container: Container, known: Known) -> dict[str, int]:
    """How many devices the container needs of each known resource, in the order of names."""
    elsewhere = served_by_claims(pod, container.name)
    amounts = {
        name: Quantity.parse(amount).value()
        for name, amount in container.resources.limits.items()
        if name not in elsewhere and known(name)
    }
    return {name: amounts[name] for name in sorted(amounts) if amounts[name] > 0}


def pod_request(pod: Pod, known: Known) -> dict[str, int]:
    """How many devices of each resource the Pod needs at its busiest moment."""
    return peak(pod, lambda container: container_request(pod, container, known))
