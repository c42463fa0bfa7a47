"""Claims prepared for the search: checked, with their classes, selectors and constraints resolved.

A plan is the same for all nodes. An unknown part of a claim is an error, because a request that is only partly
understood must not be satisfied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from dray.allocator.allocations import claim_label
from dray.allocator.capacity import request_error
from dray.allocator.constraints import Constraint, applies, parse_constraint
from dray.allocator.content import CapacityKey
from dray.allocator.derived_attributes import DerivedAttributes, DerivedFailure
from dray.allocator.errors import AllocationError, AllocatorError
from dray.allocator.gates import Gates
from dray.allocator.pools import PoolDevice
from dray.allocator.selection import SelectorFailure, SelectorGroup, SelectorGroups
from dray.api.prioritized_lists import alternatives_to_try
from dray.api.quantity import Quantity
from dray.api.types.resource_v1 import (
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)

# AllocationResultsMaxSize of resource.k8s.io/v1.
DEVICES_MAX: Final = 32

_EMPTY_SELECTOR: Final = "CEL expression empty (unsupported selector type?)"
_NO_CAPACITY: Final[Mapping[str, str]] = {}

Classes = Mapping[str, DeviceClass]


class Alternative(msgspec.Struct, frozen=True):
    """One alternative of a request: the only one, or a subrequest of a prioritized list."""

    # As in results: `main` or `main/sub`.
    name: str
    device_class: DeviceClass
    group: SelectorGroup
    takes_all: bool
    count: int
    admin_access: bool
    tolerations: tuple[DeviceToleration, ...]
    capacity: Mapping[str, str]
    # Positions in the claim's constraints.
    constraints: tuple[int, ...]
    # Capacities of a shareable device -> what others may consume of each capacity at most; computed when needed.
    shares: dict[CapacityKey | None, tuple[tuple[str, int], ...]] = msgspec.field(default_factory=dict)


class PlannedRequest(msgspec.Struct, frozen=True):
    """A request of a claim, with the claim's position in the plan."""

    claim: int
    name: str
    alternatives: tuple[Alternative, ...]


class PlannedClaim(msgspec.Struct, frozen=True):
    """A claim and its constraints."""

    claim: ResourceClaim
    constraints: tuple[Constraint, ...]

    @property
    def label(self) -> str:
        """Return the claim's name as in messages."""
        return claim_label(self.claim)


class Plan(msgspec.Struct, frozen=True):
    """All claims of a Pod; requests in search order."""

    claims: tuple[PlannedClaim, ...]
    requests: tuple[PlannedRequest, ...]

    def skipped(self) -> Iterator[tuple[str, DeviceSubRequest]]:
        """Yield the alternatives that are not tried, because their class does not exist, with their full names."""
        tried = {(item.claim, alternative.name) for item in self.requests for alternative in item.alternatives}
        for position, planned in enumerate(self.claims):
            for request in planned.claim.spec.devices.requests:
                for sub in request.first_available:
                    name = f"{request.name}/{sub.name}"
                    if (position, name) not in tried:
                        yield name, sub

    def for_claims(self, claims: Sequence[ResourceClaim]) -> Plan:
        """Return the same plan for claims with the same specs."""
        own = [PlannedClaim(claim, planned.constraints) for claim, planned in zip(claims, self.claims, strict=True)]
        return Plan(tuple(own), self.requests)


@dataclass(slots=True)
class Planner:
    """Builds plans."""

    gates: Gates
    groups: SelectorGroups
    classes: Classes

    def plan(self, claims: Sequence[ResourceClaim]) -> Plan:
        """Return the plan for the claims; raise `AllocationError` for an unknown part."""
        planned: list[PlannedClaim] = []
        requests: list[PlannedRequest] = []
        for position, claim in enumerate(claims):
            label = claim_label(claim)
            constraints = tuple(self._constraints(label, claim))
            own = [
                PlannedRequest(position, request.name, self._alternatives(label, request, constraints))
                for request in claim.spec.devices.requests
            ]
            check_size(label, sum(map(_least, own)), AllocationError)
            requests += own
            planned.append(PlannedClaim(claim, constraints))
        return Plan(tuple(planned), tuple(requests))

    def _constraints(self, label: str, claim: ResourceClaim) -> Iterator[Constraint]:
        for index, item in enumerate(claim.spec.devices.constraints):
            constraint = parse_constraint(item, self.gates)
            if constraint is None:
                where = f"claim {label}, constraint #{index}"
                raise AllocationError(f"{where}: empty constraint (unsupported constraint type?)")
            yield constraint

    def _alternatives(
        self, label: str, request: DeviceRequest, constraints: Sequence[Constraint]
    ) -> tuple[Alternative, ...]:
        if request.exactly is not None:
            where = f"claim {label}, request {request.name}"
            self._check_capacity(where, request.exactly)
            admin_access = bool(request.exactly.admin_access)
            if admin_access and not self.gates.admin_access:
                raise AllocationError(f"{where}: admin access is requested, but the feature is disabled")
            return (self._alternative(where, request.name, request.exactly, request.name, constraints),)
        if not request.first_available:
            raise AllocationError(
                f"claim {label}, request {request.name}: missing device class name (unsupported request type?)"
            )
        if not self.gates.prioritized_list:
            raise AllocationError(
                f"claim {label}, request {request.name}: "
                "has subrequests, but the DRAPrioritizedList feature is disabled"
            )
        alternatives = []
        skips = self.gates.skip_unknown_classes
        for sub in alternatives_to_try(request, lambda name: self.classes.get(name) is not None, skip_unknown=skips):
            self._check_capacity(f"claim {label}, subrequest {sub.name}", sub)
            name = f"{request.name}/{sub.name}"
            where = f"claim {label}, request {name}"
            alternatives.append(self._alternative(where, name, sub, request.name, constraints))
        return tuple(alternatives)

    def _check_capacity(self, where: str, spec: ExactDeviceRequest | DeviceSubRequest) -> None:
        if spec.capacity is None or not spec.capacity.requests:
            return
        if not self.gates.consumable_capacity:
            raise AllocationError(f"{where}: has capacity requests, but the DRAConsumableCapacity feature is disabled")
        for name, amount in spec.capacity.requests.items():
            # The API accepts it. A share of less than nothing would let others consume more than there is.
            if Quantity.parse(amount).nanos < 0:
                raise AllocationError(f'{where}: capacity "{name}": capacity value is negative')

    def _alternative(
        self,
        where: str,
        name: str,
        spec: ExactDeviceRequest | DeviceSubRequest,
        main: str,
        constraints: Sequence[Constraint],
    ) -> Alternative:
        expressions = _expressions(f"{where}, selector", spec.selectors)
        device_class = self._device_class(where, spec.device_class_name)
        class_name = device_class.metadata.name or ""
        class_expressions = _expressions(f"class {class_name}, selector", device_class.spec.selectors)
        mode = spec.allocation_mode or "ExactCount"
        if mode not in ("ExactCount", "All"):
            raise AllocationError(f"{where}: unsupported count mode {mode}")
        return Alternative(
            name=name,
            device_class=device_class,
            group=self.groups.group(class_expressions, expressions, self._derived(where, spec)),
            takes_all=mode == "All",
            count=spec.count or 1,
            admin_access=isinstance(spec, ExactDeviceRequest) and bool(spec.admin_access),
            tolerations=spec.tolerations if self.gates.taints else (),
            capacity=_NO_CAPACITY if spec.capacity is None else spec.capacity.requests,
            constraints=tuple(i for i, item in enumerate(constraints) if applies(item, main, name)),
        )

    def _derived(self, where: str, spec: ExactDeviceRequest | DeviceSubRequest) -> DerivedAttributes | None:
        if not spec.derived_attributes:
            return None
        if not self.gates.derived_attributes:
            raise AllocationError(f"{where}: cannot handle request with derived attributes, the feature is disabled")
        return DerivedAttributes(tuple((item.name, item.expression) for item in spec.derived_attributes))

    def _device_class(self, where: str, name: str) -> DeviceClass:
        if not name:
            raise AllocationError(f"{where}: missing device class name (unsupported request type?)")
        device_class = self.classes.get(name)
        if device_class is None:
            missing = f'deviceclass.resource.k8s.io "{name}" not found'
            raise AllocationError(f"{where}: could not retrieve device class {name}: {missing}")
        return device_class


def check_size(label: str, least: int, error: type[AllocatorError]) -> None:
    """Raise if a claim needs more devices than its status can hold."""
    if least > DEVICES_MAX:
        raise error(f"claim {label}: number of requested devices {least} exceeds the claim limit of {DEVICES_MAX}")


def _least(request: PlannedRequest) -> int:
    """Return the fewest devices that satisfy the request on any node; for mode All that is 0."""
    return min(0 if alternative.takes_all else alternative.count for alternative in request.alternatives)


def _expressions(where: str, selectors: Iterable[DeviceSelector]) -> list[str]:
    expressions = []
    for index, selector in enumerate(selectors):
        if selector.cel is None:
            raise AllocationError(f"{where} #{index}: {_EMPTY_SELECTOR}")
        expressions.append(selector.cel.expression)
    return expressions


def device_error(claim: PlannedClaim, alternative: Alternative, device: PoolDevice) -> AllocationError:
    """Return why a device cannot be evaluated for a request, which ends the attempt."""
    failure = alternative.group.verdict(device.content)
    if isinstance(failure, SelectorFailure):
        owner = f"class {alternative.device_class.metadata.name}" if failure.of_class else f"claim {claim.label}"
        place = f" on device {device.key}" if failure.at_runtime else ""
        return AllocationError(f"{owner}: selector #{failure.index}{place}: {failure.text}")
    if isinstance(failure, DerivedFailure):
        text = f"evaluate derived attribute {failure.name} on device {device.key} failed: {failure.text}"
        return AllocationError(f"claim {claim.label}: {text}")
    problem = request_error(device.content, alternative.capacity)
    assert problem is not None, "only for devices that cannot be evaluated"
    return AllocationError(f"claim {claim.label}, request {alternative.name}, device {device.key}: {problem}")
