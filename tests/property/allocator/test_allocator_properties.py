"""The allocator finds the solution that trying everything finds, and none where there is none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from dray.allocator import Allocations, Allocator, Inventory
from dray.api.features import FeatureGates
from dray.api.types import resource_v1 as r
from tests.conformance.allocator.builders import (
    all_devices,
    claim,
    counter_set,
    device,
    device_class,
    distinct,
    first_of,
    holding,
    match,
    node,
    ranged,
    request,
    slice_of,
    sub,
    sub_all,
    taint,
    toleration,
)
from tests.property.allocator.plain import BUS_OR_FIVE, AllocatorInput, solve

pytestmark = pytest.mark.api_allocator

CLASSES = {"any": None, "red": "red", "blue": "blue"}
EXPRESSION = '"kind" in device.attributes[device.driver] && device.attributes[device.driver].kind == "{}"'
GATES = FeatureGates(
    {"DRAListTypeAttributes": True, "DRADerivedAttributes": True, "DRADeviceCompatibilityGroups": True}
)
NODE = node()

few = st.integers(min_value=0, max_value=9).map(lambda number: number == 9)
counts = st.sampled_from([1, 1, 2, 1, 2, 3])


@st.composite
def attributes(draw: st.DrawFn) -> dict[str, Any]:
    values: dict[str, Any] = {"kind": draw(st.sampled_from(["red", "blue"]))}
    numa = draw(
        st.one_of(
            st.integers(0, 2),
            st.integers(0, 1),
            st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True),
            st.none(),
        )
    )
    if numa is not None:
        values["numa"] = numa
    if draw(st.integers(0, 4)) < 4:
        values["bus"] = draw(st.integers(0, 1))
    return values


@st.composite
def specs(draw: st.DrawFn, name: str) -> r.Device:
    fields: dict[str, Any] = {}
    if draw(few):
        fields["taints"] = (taint(draw(st.sampled_from(["NoSchedule", "None"]))),)
    if draw(st.integers(0, 3)) == 3:
        fields["consumes"] = {"set": {"m": str(draw(st.integers(1, 3)))}}
        fields["groups"] = {"set": draw(st.sampled_from([(), (), ("x",), ("y",), ("x", "y")]))}
    if draw(few):
        fields["allow_multiple_allocations"] = True
        fields["capacity"] = {"c": draw(st.sampled_from(["2", "3", "6", ranged("6")]))}
    return device(name, draw(attributes()), **fields)


@st.composite
def slices(draw: st.DrawFn) -> list[r.ResourceSlice]:
    found = []
    for pool in range(draw(st.integers(1, 2))):
        count = draw(st.integers(3, 6))
        members = [draw(specs(f"d{number}")) for number in range(count)]
        here = draw(st.integers(0, count))
        names: dict[str, Any] = {"pool": f"pool-{pool}", "size": 3}
        found.append(slice_of(*members[:here], name=f"{pool}-a", **names))
        found.append(slice_of(*members[here:], name=f"{pool}-b", all_nodes=True, **names))
        amount = str(draw(st.integers(3, 9)))
        sets = (counter_set("set", m=amount),)
        found.append(slice_of(name=f"{pool}-c", node_name="node-2", shared_counters=sets, **names))
    return found


@st.composite
def details(draw: st.DrawFn) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if draw(few):
        fields["tolerations"] = (toleration(),)
    if draw(few):
        fields["capacity"] = {"c": str(draw(st.integers(1, 4)))}
    if draw(few):
        fields["derived"] = {"driver-a/numa": BUS_OR_FIVE}
    return fields


def class_names() -> st.SearchStrategy[str]:
    return st.sampled_from(sorted(CLASSES))


@st.composite
def requests(draw: st.DrawFn, name: str) -> r.DeviceRequest:
    if draw(st.integers(0, 2)) == 0:
        alternatives = []
        for number in range(draw(st.integers(1, 3))):
            if draw(few):
                alternatives.append(sub_all(f"s{number}", draw(class_names()), **draw(details())))
            else:
                alternatives.append(sub(f"s{number}", draw(class_names()), draw(counts), **draw(details())))
        return first_of(name, *alternatives)
    fields = draw(details())
    if draw(few):
        fields["admin_access"] = True
    if draw(few):
        return all_devices(name, draw(class_names()), **fields)
    return request(name, draw(class_names()), draw(counts), **fields)


@st.composite
def claims(draw: st.DrawFn) -> list[r.ResourceClaim]:
    found = []
    for number in range(draw(st.integers(1, 2))):
        asked = [draw(requests(f"r{position}")) for position in range(draw(st.integers(1, 3)))]
        constraints = []
        names = [item.name for item in asked]
        names += [f"{item.name}/{way.name}" for item in asked for way in item.first_available]
        for _ in range(draw(st.integers(0, 2))):
            kind = draw(st.sampled_from([match, distinct]))
            named = draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
            constraints.append(kind(draw(st.sampled_from(["numa", "bus"])), *named))
        found.append(claim(*asked, name=f"claim-{number}", constraints=constraints))
    return found


@st.composite
def held(draw: st.DrawFn, available: list[r.ResourceSlice]) -> list[r.ResourceClaim]:
    found = []
    for item in available:
        for spec in item.spec.devices:
            if not draw(few):
                continue
            key = f"{item.spec.driver}/{item.spec.pool.name}/{spec.name}"
            fields: dict[str, Any] = {"name": f"held-{key}"}
            if spec.allow_multiple_allocations:
                fields |= {"share_id": "s", "consumed_capacity": {"c": "2"}}
            found.append(holding(key, **fields))
    return found


def inventory_of(available: list[r.ResourceSlice]) -> Inventory:
    inventory = Inventory()
    for name, kind in CLASSES.items():
        inventory.apply_class(device_class(name, "true" if kind is None else EXPRESSION.format(kind)))
    for item in available:
        inventory.apply_slice(item)
    return inventory


@pytest.mark.behaviour("SP-46", "SP-47", "PL-15", "PL-17", "N-89", "N-101")
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_first_solution_is_found(data: st.DataObject) -> None:
    available = data.draw(slices())
    in_use = data.draw(held(available))
    asked = data.draw(claims())
    allocations = Allocations()
    for item in in_use:
        allocations.apply_claim(item)
    outcome = Allocator(inventory_of(available), allocations, GATES).allocate(NODE, asked)
    solution = solve(AllocatorInput(NODE, available, in_use, dict(CLASSES)), asked)
    note(f"steps {outcome.steps}")
    if solution is None:
        assert outcome.allocations is None
        return
    assert outcome.allocations is not None
    expected: list[list[tuple[str, str, str, str]]] = [[] for _ in asked]
    for pick in solution:
        expected[pick.claim].append((pick.request, *pick.device.key))
    found = [
        [(item.request, item.driver, item.pool, item.device) for item in allocation.devices.results]
        for allocation in outcome.allocations
    ]
    assert found == expected


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_cached_state_never_differs_from_fresh_state(data: st.DataObject) -> None:
    """After any changes the answers are those of an inventory and allocations made afresh."""
    inventory, allocations = inventory_of([]), Allocations()
    allocator = Allocator(inventory, allocations, GATES)
    present: dict[str, r.ResourceSlice] = {}
    holders: dict[str, r.ResourceClaim] = {}
    asked = data.draw(claims())
    for _ in range(data.draw(st.integers(1, 6))):
        for item in data.draw(slices()):
            name = item.metadata.name or ""
            if data.draw(st.booleans()):
                present[name] = item
                inventory.apply_slice(item)
            elif name in present:
                del present[name]
                inventory.remove_slice(name)
        for taken in data.draw(held(list(present.values()))):
            name = taken.metadata.name or ""
            known = holders.pop(name, None)
            if known is None:
                holders[name] = taken
                allocations.apply_claim(taken)
            else:
                allocations.remove_claim(known)
        fresh = Allocations()
        for holder in holders.values():
            fresh.apply_claim(holder)
        other = Allocator(inventory_of(list(present.values())), fresh, GATES)
        assert _answer(allocator, asked) == _answer(other, asked)


def _answer(allocator: Allocator, asked: list[r.ResourceClaim]) -> object:
    from dray.allocator import AllocatorError

    try:
        return allocator.allocate(NODE, asked)
    except AllocatorError as error:
        return type(error), str(error)
