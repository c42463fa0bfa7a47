"""Judging shareable devices in groups of equal capacities gives what judging every device gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from dray.allocator import Allocations, Allocator, Inventory
from dray.allocator.choices import Choice, Chooser
from dray.allocator.counting import counted_request, first_devices, fits_by_count
from dray.allocator.errors import AllocationError
from dray.api.types import resource_v1 as r
from tests.conformance.allocator.builders import (
    DRIVER_A,
    DRIVER_B,
    all_devices,
    claim,
    device,
    device_class,
    first_of,
    holding,
    listed,
    node,
    ranged,
    request,
    slice_of,
    sub,
)
from tests.property.allocator.plain import AllocatorInput, Found, alternatives, everything, solve, unevaluable, usable

pytestmark = pytest.mark.api_allocator

CLASSES = {"any": None, "red": "red"}
NODE = node()
ROUNDS_MAX = 3

Offers = tuple[dict[str, Any], ...]

THOUSANDTHS: dict[str, Any] = {"memory": ranged("4", default="500m", least="500m", step="250m", most="4")}
PLAIN_RANGE: dict[str, Any] = {"memory": ranged("6")}
# What devices offer; few different ones, so that several devices of a node usually have equal capacities.
OFFERS: Offers = (
    {},
    {"memory": "4"},
    # Equal to the previous one, but written differently.
    {"memory": "4000m"},
    {"memory": "6"},
    PLAIN_RANGE,
    # The same value with another policy.
    {"memory": ranged("6", default="4")},
    {"memory": ranged("6", least="1", step="1", most="6")},
    {"memory": listed("6", "3", "6", default="1")},
    THOUSANDTHS,
    {"memory": "4", "cores": "2"},
    {"memory": ranged("6"), "cores": listed("2", "2", default="1")},
    {f"{DRIVER_A}/memory": "4"},
)
# None of the devices of one driver has the capacities of the other one, even if they are equal otherwise.
WANTED_NAMES = ("memory", "memory", "cores", f"{DRIVER_A}/memory", f"{DRIVER_B}/memory")
AMOUNTS = ("1", "2", "3", "4", "5", "750m", "0")
# Ranges of thousandths cannot be applied to it.
TOO_FINE = "1500u"
CASES: dict[str, tuple[Offers, tuple[str, ...]]] = {
    "any policy": (OFFERS, AMOUNTS),
    "policies that cannot be applied": ((THOUSANDTHS, PLAIN_RANGE), ("2", TOO_FINE)),
}


@st.composite
def pools(draw: st.DrawFn, choice: Offers = OFFERS, pools_max: int = 3, devices_max: int = 3) -> list[r.ResourceSlice]:
    """Pools on the node, some of several slices; the devices of a pool often offer the same."""
    found = []
    for number in range(draw(st.integers(1, pools_max))):
        offers = draw(st.lists(st.sampled_from(choice), min_size=1, max_size=2))
        names: dict[str, Any] = {"pool": f"pool-{number}", "driver": draw(st.sampled_from([DRIVER_A, DRIVER_B]))}
        slice_count = draw(st.integers(1, 2))
        for part in range(slice_count):
            members = [
                device(
                    f"d{part}-{position}",
                    {"kind": draw(st.sampled_from(["red", "blue"]))},
                    capacity=draw(st.sampled_from(offers)),
                    allow_multiple_allocations=draw(st.integers(0, 4)) > 0,
                )
                for position in range(draw(st.integers(1, devices_max)))
            ]
            reach: dict[str, Any] = draw(st.sampled_from([{"node_name": "node-1"}, {"all_nodes": True}]))
            found.append(slice_of(*members, name=f"{number}-{part}", size=slice_count, **names, **reach))
    return found


@st.composite
def wanted(draw: st.DrawFn, amounts: tuple[str, ...]) -> dict[str, Any]:
    """A request for capacities, none of them by two names."""
    names = draw(st.lists(st.sampled_from(WANTED_NAMES), max_size=2, unique_by=lambda name: name.rpartition("/")[2]))
    return {"capacity": {name: draw(st.sampled_from(amounts)) for name in names}} if names else {}


@st.composite
def requests(draw: st.DrawFn, name: str, amounts: tuple[str, ...]) -> r.DeviceRequest:
    def class_name() -> str:
        return draw(st.sampled_from(sorted(CLASSES)))

    kind = draw(st.sampled_from(["exact", "exact", "exact", "admin", "all", "first"]))
    fields = draw(wanted(amounts))
    if kind == "all":
        return all_devices(name, class_name(), **fields)
    count = draw(st.sampled_from([1, 1, 2, 3]))
    if kind == "first":
        other = sub("s1", class_name(), 1, **draw(wanted(amounts)))
        return first_of(name, sub("s0", class_name(), count, **fields), other)
    if kind == "admin":
        fields["admin_access"] = True
    return request(name, class_name(), count, **fields)


@st.composite
def claims(draw: st.DrawFn, amounts: tuple[str, ...] = AMOUNTS) -> list[r.ResourceClaim]:
    """One claim or two, with three requests at most."""
    return [
        claim(*(draw(requests(f"r{at}", amounts)) for at in range(count)), name=f"claim-{number}")
        for number, count in enumerate(draw(st.sampled_from([(1,), (2,), (3,), (1, 1), (1, 2), (2, 1)])))
    ]


@st.composite
def holders(draw: st.DrawFn, available: list[r.ResourceSlice]) -> dict[str, r.ResourceClaim]:
    """Claims with shares of some devices, and a few with a whole device."""
    found: dict[str, r.ResourceClaim] = {}
    for item in available:
        for spec in item.spec.devices:
            key = f"{item.spec.driver}/{item.spec.pool.name}/{spec.name}"
            for number in range(draw(st.sampled_from([0, 0, 1, 2]))):
                fields: dict[str, Any] = {"name": f"{key}-{number}"}
                if spec.allow_multiple_allocations and draw(st.integers(0, 9)) > 0:
                    # More than the device has: its capacity may have been reduced while it was in use.
                    consumed = {name: draw(st.sampled_from(["1", "2", "500m", "9"])) for name in spec.capacity}
                    fields |= {"share_id": f"share-{number}", "consumed_capacity": consumed}
                found[fields["name"]] = holding(key, **fields)
    return found


def inventory_of(available: list[r.ResourceSlice]) -> Inventory:
    inventory = Inventory()
    inventory.apply_class(device_class("any", "true"))
    inventory.apply_class(device_class("red", 'device.attributes[device.driver].kind == "red"'))
    for item in available:
        inventory.apply_slice(item)
    return inventory


class GroupedChoices:
    """The choices of the allocator, with devices by their keys."""

    def __init__(self, allocator: Allocator, asked: list[r.ResourceClaim]) -> None:
        plan = allocator.plan(asked)
        view = allocator.inventory.node_view(NODE, allocator.gates)
        self._chooser = Chooser(plan, view, allocator.allocations, allocator.inventory.taint_rules)
        self._requests = {(item.claim, item.name): item for item in plan.requests}
        self._keys = [device.key for device in view.devices]

    def of(self, claim_number: int, name: str) -> list[Choice] | None:
        """Return the alternatives of a request; None if the attempt ends with an error."""
        try:
            return list(self._chooser.choose(self._requests[claim_number, name]).choices)
        except AllocationError:
            return None

    def names(self, devices: int) -> list[str]:
        return [key for index, key in enumerate(self._keys) if devices >> index & 1]


def _names(found: list[Found]) -> list[str]:
    return ["/".join(item.key) for item in found]


def _check_request(grouped: GroupedChoices, inputs: AllocatorInput, asked: list[r.ResourceClaim], at: int) -> None:
    for item in asked[at].spec.devices.requests:
        choices = grouped.of(at, item.name)
        for number, (name, spec, admin) in enumerate(alternatives(item)):
            too_fine = [] if admin else _names(unevaluable(inputs, spec))
            takes_all = spec.allocation_mode == "All"
            if choices is None:
                # "All" cannot be determined.
                assert takes_all
                assert too_fine
                break
            choice = choices[number]
            assert not (takes_all and too_fine)
            expected = [
                key for key in _names(usable(inputs, asked[at], name, spec, admin=admin)) if key not in too_fine
            ]
            every = _names(everything(inputs, spec)) if takes_all else []
            if takes_all:
                expected = [key for key in expected if key in every]
            assert grouped.names(choice.available) == expected
            assert grouped.names(choice.everything) == every
            in_use = {key for key, result in inputs.uses() if result.share_id is None}
            blocked = {"/".join(key) for key in in_use}
            assert grouped.names(choice.failing) == [key for key in too_fine if key not in blocked]
            event("some devices" if expected else "no device")
            event(f"{min(len(too_fine), 2)} devices that cannot be evaluated")


@pytest.mark.parametrize(("offers", "amounts"), CASES.values(), ids=CASES.keys())
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_groups_have_the_devices_that_are_found_one_by_one(
    data: st.DataObject, offers: Offers, amounts: tuple[str, ...]
) -> None:
    """Also after shares were given and taken back: the view and the plan stay the same."""
    available = data.draw(pools(offers))
    asked = data.draw(claims(amounts))
    allocations = Allocations()
    allocator = Allocator(inventory_of(available), allocations)
    present: dict[str, r.ResourceClaim] = {}
    for _ in range(data.draw(st.integers(1, ROUNDS_MAX))):
        for item in present.values():
            allocations.remove_claim(item)
        present = data.draw(holders(available))
        for item in present.values():
            allocations.apply_claim(item)
        inputs = AllocatorInput(NODE, available, list(present.values()), dict(CLASSES))
        grouped = GroupedChoices(allocator, asked)
        for at in range(len(asked)):
            _check_request(grouped, inputs, asked, at)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_shares_of_several_requests_are_the_first_solution(data: st.DataObject) -> None:
    # With more devices, trying everything takes too long.
    available = data.draw(pools(pools_max=2, devices_max=2))
    present = data.draw(holders(available))
    asked = data.draw(claims())
    allocations = Allocations()
    for item in present.values():
        allocations.apply_claim(item)
    outcome = Allocator(inventory_of(available), allocations).allocate(NODE, asked)
    solution = solve(AllocatorInput(NODE, available, list(present.values()), dict(CLASSES)), asked)
    event("solved" if solution is not None else "no solution")
    if solution is None:
        assert outcome.allocations is None
        return
    expected: list[list[tuple[str, ...]]] = [[] for _ in asked]
    for pick in solution:
        expected[pick.claim].append((pick.request, *pick.device.key))
    assert outcome.allocations is not None
    assert expected == [
        [(item.request, item.driver, item.pool, item.device) for item in allocation.devices.results]
        for allocation in outcome.allocations
    ]


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_count_decides_as_the_first_solution_does(data: st.DataObject) -> None:
    available = data.draw(pools(pools_max=1))
    asked = [claim(data.draw(requests("r0", AMOUNTS)))]
    allocations = Allocations()
    allocator = Allocator(inventory_of(available), allocations)
    view = allocator.inventory.node_view(NODE, allocator.gates)
    counted = counted_request(allocator.plan(asked))
    for _ in range(ROUNDS_MAX):
        present = data.draw(holders(available))
        for item in present.values():
            allocations.apply_claim(item)
        solution = solve(AllocatorInput(NODE, available, list(present.values()), dict(CLASSES)), asked)
        fits = None
        if counted is not None:
            fits = fits_by_count(counted, view, allocations, allocator.inventory.taint_rules)
        event(f"by count: {fits}")
        assert fits in (None, solution is not None)
        # A search evaluates what later counts need.
        outcome = allocator.find(NODE, asked)
        assert outcome.fits is (solution is not None)
        if outcome.fits:
            searched = allocator._results(allocator.plan(asked), view, allocations, None)
            assert outcome.allocations == searched
        for item in present.values():
            allocations.remove_claim(item)


@settings(deadline=None)
@given(
    # Whether each device can be shared, and what is consumed of it; None means nothing, and 6 is all it has.
    st.lists(st.tuples(st.booleans(), st.sampled_from((None, 1, 3, 5, 6))), min_size=1, max_size=5),
    st.integers(1, 3),
    st.sampled_from((None, "1", "2", "4")),
)
@example([(True, 5), (True, 3), (False, None), (True, None)], 2, "2")
@example([(True, 5), (True, 1), (True, None)], 2, "4")
@example([(True, 1), (False, 6), (False, None), (True, None)], 2, None)
def test_counted_devices_are_those_of_a_search(
    devices: list[tuple[bool, int | None]], count: int, amount: str | None
) -> None:
    members = [
        device(f"d{number}", {"kind": "red"}, capacity={"memory": "6"}, allow_multiple_allocations=is_shared)
        for number, (is_shared, _) in enumerate(devices)
    ]
    allocations = Allocations()
    allocator = Allocator(inventory_of([slice_of(*members, node_name="node-1", driver=DRIVER_A)]), allocations)
    fields: dict[str, Any] = {} if amount is None else {"capacity": {"memory": amount}}
    asked = [claim(request("r0", "any", count, **fields))]
    # A search evaluates what later counts need.
    allocator.find(NODE, asked)
    view = allocator.inventory.node_view(NODE, allocator.gates)
    for number, (is_shared, consumed) in enumerate(devices):
        if consumed is not None:
            share = {"share_id": "share", "consumed_capacity": {"memory": str(consumed)}} if is_shared else {}
            allocations.apply_claim(holding(view.devices[number].key, name=f"holder-{number}", **share))
    plan = allocator.plan(asked)
    counted = counted_request(plan)
    assert counted is not None
    event(f"found: {first_devices(counted, view, allocations, allocator.inventory.taint_rules) is not None}")
    assert allocator._counted_results(plan, view, allocations, None) == allocator._results(
        plan, view, allocations, None
    )


@pytest.mark.parametrize("order", [("range", "plain"), ("plain", "range")])
def test_a_device_that_a_request_cannot_be_applied_to_is_left_to_the_search(order: tuple[str, str]) -> None:
    offered = {"range": THOUSANDTHS, "plain": {"memory": "6"}}
    members = [device(name, capacity=offered[name], allow_multiple_allocations=True) for name in order]
    allocations = Allocations()
    allocator = Allocator(inventory_of([slice_of(*members, node_name="node-1", driver=DRIVER_A)]), allocations)
    # Finer than the thousandths in which the range is counted.
    asked = [claim(request("r0", "any", capacity={"memory": "1500u"}))]
    view = allocator.inventory.node_view(NODE, allocator.gates)
    plan = allocator.plan(asked)
    counted = counted_request(plan)
    assert counted is not None
    if order[0] == "range":
        with pytest.raises(AllocationError, match="finer than 1m"):
            allocator.find(NODE, asked)
        with pytest.raises(AllocationError, match="finer than 1m"):
            allocator._counted_results(plan, view, allocations, None)
    else:
        found = allocator.find(NODE, asked).allocations
        assert found is not None
        assert [item.device for item in found[0].devices.results] == ["plain"]
    assert first_devices(counted, view, allocations, allocator.inventory.taint_rules) is None


def test_a_claim_without_requests_has_a_result_beside_a_counted_one() -> None:
    allocator = Allocator(inventory_of([slice_of("d0", node_name="node-1", driver=DRIVER_A)]), Allocations())
    for asked in ([claim(name="none"), claim(request("r0", "any"))], [claim(request("r0", "any")), claim(name="none")]):
        allocator.find(NODE, asked)
        assert allocator.query(asked).counted is not None
        found = allocator.find(NODE, asked).allocations
        assert found is not None
        devices = [[item.device for item in allocation.devices.results] for allocation in found]
        assert devices == [["d0"] if item.spec.devices.requests else [] for item in asked]


def _found(allocator: Allocator, asked: list[r.ResourceClaim]) -> object:
    """Return whether the claims fit, or the error."""
    try:
        return allocator.find(NODE, asked).fits
    except AllocationError as error:
        return str(error)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.sampled_from(CASES["policies that cannot be applied"][0]), st.booleans()), max_size=5),
    st.integers(1, 3),
    st.sampled_from(("2", TOO_FINE)),
)
@example([(PLAIN_RANGE, False), (THOUSANDTHS, False), (PLAIN_RANGE, False)], 2, TOO_FINE)
def test_a_count_does_not_hide_a_policy_that_cannot_be_applied(
    devices: list[tuple[dict[str, Any], bool]], count: int, amount: str
) -> None:
    members = [
        device(f"d{number}", {"kind": "red"}, capacity=offer, allow_multiple_allocations=True)
        for number, (offer, _) in enumerate(devices)
    ]
    allocations = Allocations()
    for number, (_, in_use) in enumerate(devices):
        if in_use:
            fields: dict[str, Any] = {"share_id": f"share-{number}", "consumed_capacity": {"memory": "4"}}
            allocations.apply_claim(holding(f"{DRIVER_A}/pool-1/d{number}", name=f"holder-{number}", **fields))
    inventory = inventory_of([slice_of(*members)])
    asked = [claim(request("r0", "any", count, capacity={"memory": amount}))]
    # The first search evaluates what the count needs.
    allocator = Allocator(inventory, allocations)
    expected = _found(allocator, asked)
    event(f"found: {expected if isinstance(expected, bool) else 'an error'}")
    allocations.apply_claim(holding(f"{DRIVER_A}/pool-1/unknown"))
    assert _found(allocator, asked) == expected
