"""The inventory and the allocations: what they keep, and when they look again."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.allocator import Allocations, Allocator, Inventory
from dray.allocator.content import attribute_values
from dray.allocator.gates import Gates
from dray.api.features import FeatureGates
from dray.api.types import resource_v1 as r
from dray.api.types.resource_v1 import ResourceClaim
from tests.conformance.allocator.builders import (
    claim,
    counter_set,
    device,
    device_class,
    devices,
    holding,
    in_region,
    node,
    request,
    slice_of,
    taint,
)

GATES = Gates()


def inventory(*slices: r.ResourceSlice) -> Inventory:
    made = Inventory()
    made.apply_class(device_class())
    for item in slices:
        made.apply_slice(item)
    return made


def device_names(allocator: Allocator, count: int = 1, on: str = "node-1") -> list[str] | None:
    allocations = allocator.allocate(node(on), [claim(request(count=count))]).allocations
    return None if allocations is None else [item.device for item in allocations[0].devices.results]


def test_equal_devices_have_one_content() -> None:
    made = inventory(
        slice_of(*devices(100, model="x"), pool="a"),
        slice_of(*devices(100, model="x"), pool="b", node_name="node-2"),
        slice_of(device("odd", {"model": "y"}), pool="c"),
        slice_of(device("foreign", {"model": "x"}), driver="driver-b", pool="d"),
    )
    assert made.content_count == 3
    made.remove_slice("slice-driver-a-c")
    assert made.content_count == 2


def test_a_view_is_kept_until_something_of_its_node_changes() -> None:
    made = inventory(slice_of("x"), slice_of("y", pool="p2", node_name="node-2"))
    here = node()
    view = made.node_view(here, GATES)
    assert made.node_view(node(), GATES) is view
    made.apply_slice(slice_of("z", pool="p2", node_name="node-2"))
    assert made.node_view(here, GATES) is view
    made.apply_slice(slice_of("z"))
    assert made.node_view(here, GATES) is not view


def test_labels_matter_only_where_slices_select_by_them() -> None:
    made = inventory(slice_of("x"))
    view = made.node_view(node(zone="a"), GATES)
    assert made.node_view(node(zone="b"), GATES) is view
    made.apply_slice(slice_of("y", pool="p2", node_selector=in_region("elsewhere")))
    allocator = Allocator(made, Allocations())
    assert device_names(allocator, 2) is None
    moved = node(region="elsewhere")
    outcome = allocator.allocate(moved, [claim(request(count=2))])
    assert outcome.fits


def test_a_pool_becomes_complete_by_a_slice_of_another_node() -> None:
    made = inventory(slice_of("x", name="a", size=2))
    allocator = Allocator(made, Allocations())
    assert device_names(allocator) is None
    made.apply_slice(slice_of("y", name="b", size=2, node_name="node-2"))
    assert device_names(allocator) == ["x"]
    made.remove_slice("b")
    assert device_names(allocator) is None


def test_an_older_generation_comes_back_when_the_newer_is_deleted() -> None:
    made = inventory(slice_of("old", name="a"), slice_of("new", name="b", generation=2, size=2, node_name="node-2"))
    allocator = Allocator(made, Allocations())
    assert device_names(allocator) is None
    made.remove_slice("b")
    assert device_names(allocator) == ["old"]


def test_pools_of_nodes_with_a_common_name_do_not_affect_each_other() -> None:
    made = inventory(slice_of("x", name="a"), slice_of("x", name="b", node_name="node-2"))
    allocator = Allocator(made, Allocations())
    assert device_names(allocator) == device_names(allocator, on="node-2") == ["x"]
    view = made.node_view(node(), GATES)
    made.apply_slice(slice_of("y", name="b", generation=2, node_name="node-2"))
    assert device_names(allocator, on="node-2") == ["y"]
    assert made.node_view(node(), GATES) is view, "a view must not be built again for another node's pool"
    (pool,) = made.pools()
    assert pool.complete
    assert [entry.name for entry in pool.entries()] == ["a", "b"]
    # Now the slices of node-2 are part of a pool that spans nodes, and newer.
    made.apply_slice(slice_of("y", name="b", generation=2, size=2, node_name="node-2"))
    assert device_names(allocator) is None
    made.apply_slice(slice_of("z", name="c", generation=2, size=2))
    assert device_names(allocator) == ["z"]
    assert device_names(allocator, on="node-2") == ["y"]


def test_a_slice_can_change_its_pool_and_its_reach() -> None:
    made = inventory(slice_of("x", name="s"))
    allocator = Allocator(made, Allocations())
    made.apply_slice(slice_of("x", name="s", pool="p2", all_nodes=True))
    assert device_names(allocator, on="node-7") == ["x"]
    assert [pool.key for pool in made.pools()] == ["driver-a/p2"]


def test_classes_are_looked_up_anew() -> None:
    made = inventory(slice_of("x"))
    allocator = Allocator(made, Allocations())
    asked = [claim(request())]
    assert allocator.allocate(node(), asked).fits
    made.apply_class(device_class("class-a", "false"))
    assert not allocator.allocate(node(), asked).fits


def test_rules_come_and_go() -> None:
    made = inventory(slice_of("x"))
    allocator = Allocator(made, Allocations(), FeatureGates.parse("DRADeviceTaintRules=true"))
    rule = {
        "metadata": {"name": "r"},
        "spec": {"deviceSelector": {"driver": "driver-a"}, "taint": {"key": "k", "effect": "NoExecute"}},
    }
    made.apply_taint_rule(rule)
    assert device_names(allocator) is None
    made.remove_taint_rule("r")
    assert device_names(allocator) == ["x"]


def test_counters_follow_a_changed_slice() -> None:
    sets = slice_of(name="sets", size=2, shared_counters=(counter_set("set", m="4"),))
    made = inventory(slice_of(device("x", consumes={"set": {"m": "5"}}), name="s", size=2), sets)
    allocator = Allocator(made, Allocations())
    assert device_names(allocator) is None
    made.apply_slice(slice_of(device("x", consumes={"set": {"m": "4"}}), name="s", size=2))
    assert device_names(allocator) == ["x"]
    made.apply_slice(slice_of(name="sets", size=2, shared_counters=(counter_set("set", m="3"),)))
    assert device_names(allocator) is None


def test_taints_of_a_changed_slice_are_seen() -> None:
    made = inventory(slice_of("x"))
    allocator = Allocator(made, Allocations())
    assert device_names(allocator) == ["x"]
    made.apply_slice(slice_of(device("x", taints=(taint(),))))
    assert device_names(allocator) is None


@pytest.mark.behaviour("SP-61")
def test_in_flight_comes_before_assumed_and_assumed_before_observed() -> None:
    made, allocations = inventory(slice_of("a", "b", "c")), Allocations()
    allocator = Allocator(made, allocations)
    pending = claim(request(), name="x")
    allocation = holding("driver-a/pool-1/a", name="x").status.allocation
    assert allocation is not None
    allocations.start_in_flight(pending, allocation)
    assert device_names(allocator, 2) == ["b", "c"]
    allocations.assume(holding("driver-a/pool-1/a", name="x"))
    allocations.end_in_flight(pending)
    assert device_names(allocator, 2) == ["b", "c"]
    allocations.apply_claim(pending)
    assert device_names(allocator, 2) == ["b", "c"], "an older state of the claim does not undo what was assumed"
    allocations.apply_claim(holding("driver-a/pool-1/a", name="x"))
    allocations.apply_claim(pending)
    assert device_names(allocator, 3) == ["a", "b", "c"], "once observed, the assumption is over"


def test_a_forgotten_assumption_frees_its_devices() -> None:
    made, allocations = inventory(slice_of("a")), Allocations()
    allocator = Allocator(made, allocations)
    allocations.assume(holding("driver-a/pool-1/a"))
    assert device_names(allocator) is None
    allocations.forget(holding("driver-a/pool-1/a"))
    assert device_names(allocator) == ["a"]


def test_a_deleted_claim_frees_its_devices() -> None:
    made, allocations = inventory(slice_of("a")), Allocations()
    allocator = Allocator(made, allocations)
    allocations.apply_claim(holding("driver-a/pool-1/a"))
    assert allocations.holders("driver-a/pool-1/a") == ("ns/other",)
    allocations.remove_claim(holding("driver-a/pool-1/a"))
    assert device_names(allocator) == ["a"]
    assert allocations.holders("driver-a/pool-1/a") == ()


def test_two_claims_can_hold_one_device_by_mistake() -> None:
    allocations = Allocations()
    for name in ("x", "y"):
        allocations.apply_claim(holding("driver-a/pool-1/a", name=name))
    allocations.remove_claim(holding("driver-a/pool-1/a", name="x"))
    assert allocations.in_use("driver-a/pool-1/a", shareable=False)


def test_a_claim_holds_its_devices_beside_those_with_admin_access() -> None:
    held = holding("driver-a/pool-1/a", "driver-a/pool-1/b")
    assert held.status.allocation is not None
    first, second = held.status.allocation.devices.results
    results = (msgspec.structs.replace(first, admin_access=True), second)
    allocation = r.AllocationResult(devices=r.DeviceAllocationResult(results=results))
    allocations = Allocations()
    allocations.apply_claim(msgspec.structs.replace(held, status=r.ResourceClaimStatus(allocation=allocation)))
    assert not allocations.in_use("driver-a/pool-1/a", shareable=False)
    assert allocations.in_use("driver-a/pool-1/b", shareable=False)


def test_usage_counts_the_devices_of_the_class() -> None:
    made = inventory(slice_of("a", "b", "c"), slice_of("x", driver="driver-b"))
    allocations = Allocations()
    allocations.apply_claim(holding("driver-a/pool-1/b", "driver-b/pool-1/x"))
    allocator = Allocator(made, allocations)
    assert allocator.usage(node(), "class-a") == (1, 3)
    assert allocator.usage(node(), "unknown") == (0, 0)


def test_an_unknown_node_can_be_removed_and_a_known_one_keeps_its_slices() -> None:
    made = inventory(slice_of("x"))
    made.remove_node("node-2")
    made.remove_node("node-1")
    assert device_names(Allocator(made, Allocations())) == ["x"]


@pytest.mark.parametrize("kind", ["ints", "bools", "strings", "versions"])
def test_each_kind_of_list_attribute_is_known(kind: str) -> None:
    value = {"ints": 1, "bools": True, "strings": "a", "versions": "1.0.0"}[kind]
    found = attribute_values(msgspec.convert({kind: [value]}, r.DeviceAttribute))
    assert found is not None
    assert found.is_list
    single = attribute_values(msgspec.convert({kind[:-1]: value}, r.DeviceAttribute))
    assert single is not None
    assert not single.is_list
    assert single.values == found.values


def test_shares_are_added_up() -> None:
    allocations = Allocations()
    key = "driver-a/pool-1/a"
    for name, amount in (("x", "1Gi"), ("y", "512Mi")):
        allocations.apply_claim(holding(key, name=name, share_id=name, consumed_capacity={"memory": amount}))
    assert allocations.consumed(key) == {"memory": 1536 * 2**20 * 10**9}
    allocations.remove_claim(holding(key, name="x"))
    assert allocations.consumed(key) == {"memory": 512 * 2**20 * 10**9}
    allocations.remove_claim(holding(key, name="y"))
    assert allocations.consumed(key) == {}
    assert not allocations.is_shared(key)


def test_other_pools_are_not_looked_at_again() -> None:
    allocations = Allocations()
    allocations.apply_claim(holding("driver-a/pool-1/a"))
    before = allocations.stamp("driver-a/pool-2")
    allocations.apply_claim(holding("driver-a/pool-1/b", name="z"))
    assert allocations.stamp("driver-a/pool-2") == before
    assert allocations.stamp("driver-a/pool-1") == 2


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from(["a", "b", ""]), st.booleans()), max_size=12))
def test_the_result_does_not_depend_on_the_order_of_changes(changes: list[tuple[str, str, bool]]) -> None:
    allocations = Allocations()
    last: dict[str, ResourceClaim | None] = {}
    for name, used, removed in changes:
        item = holding(f"driver-a/pool-1/{used}", name=name) if used else holding(name=name)
        last[name] = None if removed else item
        if removed:
            allocations.remove_claim(item)
        else:
            allocations.apply_claim(item)
    fresh = Allocations()
    for left in last.values():
        if left is not None:
            fresh.apply_claim(left)
    for key in ("driver-a/pool-1/a", "driver-a/pool-1/b"):
        assert sorted(allocations.holders(key)) == sorted(fresh.holders(key))
    assert set(allocations.keys_in_use("driver-a/pool-1")) == set(fresh.keys_in_use("driver-a/pool-1"))
