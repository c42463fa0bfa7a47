"""Symmetry: which devices and states are equivalent, so that a search does not repeat a dead end.

Devices are equivalent if the same alternatives can use them, they have the same values of the constrained attributes,
and they consume the same of the same counters, with the same compatibility groups. After a device failed, equivalent
ones need not be tried; a failed state need not be tried again if it differs only in which of several equivalent
devices are taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dray.allocator.bits import indices
from dray.allocator.choices import RequestChoices
from dray.allocator.constraints import Constraint, DevicesByValue
from dray.allocator.derived_attributes import DerivedAttributes
from dray.allocator.plan import Plan
from dray.allocator.view import NodeView


class Symmetry:
    """Equivalence classes of devices, and which of them later requests can use."""

    __slots__ = ("_classes", "_contents", "_indexes", "_several", "_single", "_suffix_pools", "suffix")

    def __init__(self, plan: Plan, requests: Sequence[RequestChoices], view: NodeView) -> None:
        users = _users(requests)
        self._contents = {index: view.device(index).content for index in users}
        # The index of devices for each constraint, and the derived attributes that it depends on.
        self._indexes: dict[tuple[Constraint, DerivedAttributes | None], DevicesByValue] = {}
        constraints = tuple(dict.fromkeys(_constraints(plan)))
        classes: dict[object, int] = {}
        signatures: dict[int, object] = {}
        for index, used_by in users.items():
            device = view.device(index)
            values = tuple([constraint.signature(device.content, derived) for constraint, derived in constraints])
            counters = (device.entry.pool.key, device.consumes, device.groups) if device.consumes else None
            # Shares of a device are counted, so that no other device is equivalent.
            alone = index if view.shared >> index & 1 else -1
            signature = (used_by, values, counters, alone)
            signatures[index] = signature
            classes[signature] = classes.get(signature, 0) | 1 << index
        self._classes = {index: classes[signature] for index, signature in signatures.items()}
        self._several = [mask for mask in classes.values() if mask.bit_count() > 1]
        self._single = sum(mask for mask in classes.values() if mask.bit_count() == 1)
        # For each request, the devices and counters that it or a later one can use.
        self.suffix: list[int] = [0] * (len(requests) + 1)
        self._suffix_pools: list[frozenset[str]] = [frozenset()] * (len(requests) + 1)
        for number in reversed(range(len(requests))):
            usable = 0
            for choice in requests[number].choices:
                usable |= choice.available
            pools = {view.device(index).entry.pool.key for index in indices(usable & view.consumers)}
            self.suffix[number] = self.suffix[number + 1] | usable
            self._suffix_pools[number] = self._suffix_pools[number + 1] | pools

    def constraint_index(self, constraint: Constraint, derived: DerivedAttributes | None) -> DevicesByValue:
        """Return the index of devices for a constraint of requests with these derived attributes."""
        key = (constraint, constraint.relevant(derived))
        index = self._indexes.get(key)
        if index is None:
            index = self._indexes[key] = constraint.index(self._contents, key[1])
        return index

    def equivalent(self, index: int) -> int:
        """Return the devices that are equivalent to this one, including itself."""
        return self._classes.get(index, 1 << index)

    def concerns(self, index: int, pool: str | None, request: int) -> bool:
        """Return whether the device, or the counters of the pool, can matter to this request or a later one."""
        return bool(self.suffix[request] >> index & 1) or pool in self._suffix_pools[request]

    def taken(self, taken: int, request: int) -> tuple[int, tuple[int, ...]]:
        """Return the taken devices that this or a later request can use; equivalent ones are only counted."""
        relevant = taken & self.suffix[request]
        return relevant & self._single, tuple((relevant & mask).bit_count() for mask in self._several)


def _constraints(plan: Plan) -> Iterator[tuple[Constraint, DerivedAttributes | None]]:
    """Yield each constraint with the derived attributes of the requests that it applies to."""
    for request in plan.requests:
        constraints = plan.claims[request.claim].constraints
        for alternative in request.alternatives:
            for position in alternative.constraints:
                yield constraints[position], constraints[position].relevant(alternative.group.derived)


def _users(requests: Sequence[RequestChoices]) -> dict[int, int]:
    """Return for each usable device the set of alternatives that can use it."""
    users: dict[int, int] = {}
    number = 0
    for request in requests:
        for choice in request.choices:
            for index in indices(choice.available):
                users[index] = users.get(index, 0) | 1 << number
            number += 1
    return users
