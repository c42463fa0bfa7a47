"""Decides which devices each container gets. Pure: the device manager calls plugins and saves.

An allocation of one resource to one container starts with `begin`. Its result is nothing to do, a refusal, a request
for the plugin's preference (`begin` is called again with it), or a call of Allocate for devices that are reserved
until `succeeded` or `failed`, or until `undo_point` or `free_pod` drops the reservation. Messages are kubelet's, since
they are shown in Pod statuses.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NewType

from dray.node.devices.assignments import NO_NUMA_NODE, Assignment, AssignmentKey, Assignments
from dray.node.devices.device_selection import Candidates, PreferenceRequest, TooFewError, choose
from dray.node.devices.inventory import Device, Inventory, in_order
from dray.node.topology.hints import NUMA_NODES_MAX, Hint, item_hints

Ticket = NewType("Ticket", int)


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """A number of devices of one resource for one container; `reusable` are those it may take over."""

    slot: AssignmentKey
    amount: int
    reusable: frozenset[str] = frozenset()
    # The container was running or had completed when the agent started, and needs no devices.
    settled: bool = False


@dataclass(frozen=True, slots=True)
class Nothing:
    """The container already has the devices."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The container cannot have the devices."""

    message: str


@dataclass(frozen=True, slots=True)
class AskPreference:
    """Call GetPreferredAllocation, and `begin` again with the result."""

    question: PreferenceRequest


@dataclass(frozen=True, slots=True)
class CallAllocate:
    """Call Allocate for these devices."""

    ticket: Ticket
    ids: tuple[str, ...]


Step = Nothing | Refused | AskPreference | CallAllocate


@dataclass(frozen=True, slots=True)
class _Mark:
    slot: AssignmentKey
    devices: dict[int, tuple[str, ...]]
    ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices that are reserved for one resource of one container until Allocate has been called."""

    slot: AssignmentKey
    call: CallAllocate


class DeviceAllocator:
    """The devices of a node and their assignments; changed only by its methods and those of its `inventory`."""

    def __init__(
        self,
        inventory: Inventory,
        assigned: Iterable[tuple[AssignmentKey, Assignment]] = (),
        machine: int = (1 << NUMA_NODES_MAX) - 1,
    ) -> None:
        """`machine` is the set of the machine's NUMA nodes; hints ignore other nodes that plugins report."""
        self._machine = machine
        self.inventory = inventory
        self.assignments = Assignments(assigned)
        # Devices for which Allocate is in progress.
        self._marks: dict[Ticket, _Mark] = {}
        self._tickets = 0

    def knows(self, resource: str) -> bool:
        """Return whether a device plugin manages the resource, or did when its devices were allocated."""
        return self.inventory.knows(resource) or resource in self.assignments.resources()

    def held(self, slot: AssignmentKey) -> frozenset[str]:
        """Return the devices that are assigned to the slot or reserved for it."""
        found = self.assignments.get(slot)
        if found is not None:
            return found.ids
        return next((mark.ids for mark in self._marks.values() if mark.slot == slot), frozenset())

    def _is_marked(self, slot: AssignmentKey) -> bool:
        return any(mark.slot == slot for mark in self._marks.values())

    def in_use(self, resource: str, besides: AssignmentKey | None = None) -> frozenset[str]:
        """Return the devices that are assigned or being allocated; all, if another container may have any of them."""
        if any(slot != besides for slot in self.assignments.unknown(resource)):
            return frozenset(self.inventory.devices(resource)) | self.assignments.in_use(resource)
        marked = (mark.ids for mark in self._marks.values() if mark.slot.resource == resource)
        return self.assignments.in_use(resource).union(*marked)

    def free(self, resource: str) -> frozenset[str]:
        """Return the healthy devices that are not in use."""
        return self.inventory.healthy(resource) - self.in_use(resource)

    # --- Allocation. ---

    def begin(
        self,
        need: AllocationRequest,
        affinity: int | None,
        *,
        asks: Callable[[str], bool],
        preference: Sequence[str] | None = None,
    ) -> Step:
        """Return the next step; `asks` tells whether the plugin at an endpoint implements GetPreferredAllocation."""
        decided = self._decide(need, self.assignments.get(need.slot))
        if decided is not None:
            return decided
        candidates = self._candidates(need, affinity)
        endpoints = {self.inventory.endpoint_of(need.slot.resource, device.id) for device in candidates.free}
        only = endpoints.pop() if len(endpoints) == 1 else None
        try:
            chosen = choose(candidates, preference if only is not None and asks(only) else ())
        except TooFewError as error:
            return Refused(
                f"requested number of devices unavailable for {need.slot.resource}. "
                f"Requested: {error.needed}, Available: {error.available}"
            )
        return AskPreference(chosen) if isinstance(chosen, PreferenceRequest) else self._mark(need.slot, chosen)

    def succeeded(self, ticket: Ticket, response: bytes) -> bool:
        """Assign the allocated devices; return False if the Pod was freed in the meantime."""
        mark = self._marks.pop(ticket, None)
        if mark is None:
            return False
        self.assignments.put(mark.slot, Assignment(mark.devices, response))
        return True

    def failed(self, ticket: Ticket) -> None:
        """Drop the reservation of devices that were not allocated."""
        self._marks.pop(ticket, None)

    def reservations(self, pod_uid: str) -> tuple[Reservation, ...]:
        """Return the reservations for the Pod, in the order in which they were made."""
        return tuple(
            Reservation(mark.slot, CallAllocate(ticket, in_order(mark.ids)))
            for ticket, mark in self._marks.items()
            if mark.slot.pod_uid == pod_uid
        )

    def undo_point(self, pod_uid: str) -> Callable[[], None]:
        """Return a function that drops the reservations for the Pod that were made since."""
        last = self._tickets

        def undo() -> None:
            for item in self.reservations(pod_uid):
                if item.call.ticket > last:
                    self.failed(item.call.ticket)

        return undo

    def free_pod(self, pod_uid: str) -> bool:
        """Free the devices of the Pod; return whether any were assigned."""
        for ticket in [ticket for ticket, mark in self._marks.items() if mark.slot.pod_uid == pod_uid]:
            del self._marks[ticket]
        return self.assignments.remove(pod_uid)

    def _decide(self, need: AllocationRequest, held: Assignment | None) -> Refused | Nothing | None:
        """Return a decision that needs no search for devices; None if a search is needed.

        What a container was given, also before an agent restart, it keeps: whether its plugin is there matters when the
        container starts, and what becomes of an unhealthy device is for `unhealthy_device` to say.
        """
        slot, resource = need.slot, need.slot.resource
        if held is not None and held.is_complete and len(held.ids) != need.amount:
            return Refused(
                f'pod "{slot.pod_uid}" container "{slot.container}" changed request for resource "{resource}" '
                f"from {len(held.ids)} to {need.amount}"
            )
        if need.settled or (self.held(slot) and (held is None or held.is_complete or self._is_marked(slot))):
            return Nothing()
        if not self.inventory.knows(resource):
            return Refused(f"cannot allocate unregistered device {resource}")
        if not self.inventory.healthy(resource):
            return Refused(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        return None

    def _candidates(self, need: AllocationRequest, affinity: int | None) -> Candidates:
        resource = need.slot.resource
        # What a container had that starts again is free, whatever it was.
        used = self.in_use(resource, besides=need.slot)
        free = tuple([device for device in self.inventory.healthy_devices(resource) if device.id not in used])
        # Of an assignment without response, the devices are known.
        reusable = (need.reusable | self.held(need.slot)) & self.inventory.healthy(resource)
        wanted = affinity if self.inventory.has_topology(resource) else None
        if wanted is None:
            free = self._of_one_plugin(resource, free, need.amount - len(reusable))
        return Candidates(need.amount, free, in_order(reusable), wanted)

    def _of_one_plugin(self, resource: str, free: tuple[Device, ...], missing: int) -> tuple[Device, ...]:
        """Return the free devices of the first plugin that has enough; all of them if none has."""
        by_plugin: dict[str | None, list[Device]] = {}
        for device in free:
            by_plugin.setdefault(self.inventory.endpoint_of(resource, device.id), []).append(device)
        return next((tuple(found) for found in by_plugin.values() if len(found) >= missing), free)

    def _mark(self, slot: AssignmentKey, ids: Sequence[str]) -> CallAllocate:
        self._tickets += 1
        ticket = Ticket(self._tickets)
        self._marks[ticket] = _Mark(slot, self._by_numa_node(slot.resource, ids), frozenset(ids))
        return CallAllocate(ticket, in_order(ids))

    def _by_numa_node(self, resource: str, ids: Iterable[str]) -> dict[int, tuple[str, ...]]:
        found: dict[int, list[str]] = {}
        devices = self.inventory.devices(resource)
        for name in in_order(ids):
            for node in devices[name].numa_nodes or (NO_NUMA_NODE,):
                found.setdefault(node, []).append(name)
        return {node: tuple(found[node]) for node in sorted(found)}

    # --- Hints. ---

    def hints(self, resource: str, amount: int, held: frozenset[str], reusable: frozenset[str]) -> list[Hint] | None:
        """Return hints for a number of devices; None if the devices have no topology."""
        devices = self.inventory.devices(resource)
        masks = {name: device.mask & self._machine for name, device in devices.items()}
        nodes = functools.reduce(operator.or_, masks.values(), 0)
        if not nodes:
            return None
        if held:
            if len(held) != amount:
                return []
            available, reusable = held, frozenset()
        else:
            available = self.free(resource)
            if len(available | reusable) < amount:
                return []
        return item_hints(
            nodes,
            list(masks.values()),
            [masks.get(name, 0) for name in available - reusable],
            [masks.get(name, 0) for name in reusable],
            amount,
        )
