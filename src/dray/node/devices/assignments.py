"""Which container has which devices. Pure.

A device has one holder, except that containers of a Pod may take over what its finished init containers had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

# Kubernetes' mark for a device that is close to no NUMA node.
NO_NUMA_NODE = -1


@dataclass(frozen=True, slots=True)
class Slot:
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

    def __init__(self, items: Iterable[tuple[Slot, Assignment]] = ()) -> None:
        # By Pod, since Pods come and go as a whole.
        self._pods: dict[str, dict[Slot, Assignment]] = {}
        # Another number whenever something has changed.
        self.revision = 0
        for slot, assignment in items:
            self.put(slot, assignment)

    def put(self, slot: Slot, assignment: Assignment) -> None:
        """Note what the slot has."""
        self._pods.setdefault(slot.pod_uid, {})[slot] = assignment
        self.revision += 1

    def remove(self, pod_uid: str) -> bool:
        """Forget a Pod; whether it had anything."""
        if self._pods.pop(pod_uid, None) is None:
            return False
        self.revision += 1
        return True

    def get(self, slot: Slot) -> Assignment | None:
        """What the slot has."""
        return self._pods.get(slot.pod_uid, {}).get(slot)

    def all(self) -> Iterator[tuple[Slot, Assignment]]:
        """Everything, in the order of Pods, containers and resources."""
        for uid in sorted(self._pods):
            yield from self.of_pod(uid)

    def of_pod(self, pod_uid: str) -> tuple[tuple[Slot, Assignment], ...]:
        """What the Pod's containers have."""
        return tuple(
            sorted(self._pods.get(pod_uid, {}).items(), key=lambda item: (item[0].container, item[0].resource))
        )

    def of_container(self, pod_uid: str, container: str) -> tuple[tuple[Slot, Assignment], ...]:
        """What one container has."""
        return tuple(item for item in self.of_pod(pod_uid) if item[0].container == container)

    def pod_uids(self) -> tuple[str, ...]:
        """The Pods that have anything."""
        return tuple(sorted(self._pods))

    def in_use(self, resource: str) -> frozenset[str]:
        """The devices of the resource that somebody has."""
        return frozenset(
            name
            for slots in self._pods.values()
            for slot, assignment in slots.items()
            if slot.resource == resource
            for name in assignment.ids
        )

    def resources(self) -> frozenset[str]:
        """The resources somebody has devices of."""
        return frozenset(slot.resource for slots in self._pods.values() for slot in slots)

    def users_of(self, resource: str, ids: frozenset[str]) -> frozenset[str]:
        """The Pods that have any of these devices."""
        return frozenset(
            slot.pod_uid for slot, assignment in self.all() if slot.resource == resource and assignment.ids & ids
        )
