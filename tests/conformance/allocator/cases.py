"""One allocation as a row: what there is, what is asked for, what must come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from dray.allocator import Allocations, Allocator, Inventory
from dray.api.features import FeatureGates
from dray.api.types import core_v1
from dray.api.types import resource_v1 as r
from tests.conformance.allocator.builders import device_class, node

# What a claim gets: each device as "request driver/pool/device", in order.
Devices = Sequence[str]


@dataclass(frozen=True)
class Case:
    claims: Sequence[r.ResourceClaim]
    slices: Sequence[r.ResourceSlice] = ()
    # None: no fit.
    expected: Sequence[Devices] | None = None
    error: str | None = None
    classes: Sequence[r.DeviceClass] = (device_class("class-a"), device_class("class-b"))
    in_use: Sequence[r.ResourceClaim] = ()
    node: core_v1.Node = field(default_factory=node)
    gates: Mapping[str, bool] = field(default_factory=dict)
    rules: Sequence[dict[str, object]] = ()
    steps: int | None = None

    def allocator(self) -> Allocator:
        inventory, allocations = Inventory(), Allocations()
        for item in self.classes:
            inventory.apply_class(item)
        for resource_slice in self.slices:
            inventory.apply_slice(resource_slice)
        for rule in self.rules:
            inventory.apply_taint_rule(rule)
        for claim in self.in_use:
            allocations.apply_claim(claim)
        return Allocator(inventory, allocations, FeatureGates({"DRADeviceTaintRules": True, **dict(self.gates)}))

    def inputs(self) -> bytes:
        """Everything that goes in, to show that nothing of it is changed."""
        return msgspec.json.encode([self.claims, self.slices, self.classes, self.in_use, self.node])


def devices_of(allocation: r.AllocationResult) -> list[str]:
    return [f"{item.request} {item.driver}/{item.pool}/{item.device}" for item in allocation.devices.results]


def allocated(case: Case) -> tuple[r.AllocationResult, ...] | None:
    """Allocate twice, the second time with everything that was kept from the first."""
    before = case.inputs()
    allocator = case.allocator()
    first = allocator.allocate(case.node, case.claims)
    again = allocator.allocate(case.node, case.claims)
    assert first == again, "what is kept must not change the answer"
    assert case.inputs() == before, "inputs must not be changed"
    if case.steps is not None:
        assert first.steps == case.steps
    return first.allocations
