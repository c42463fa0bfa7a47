"""A cached result is returned until something that it depends on changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from dray.allocator import AllocationError, Allocations, Allocator, Inventory, Outcome, allocation_cache
from dray.allocator.allocation_cache import AllocationCache
from dray.allocator.allocations import CHANGES_MAX
from dray.allocator.plan import Plan
from dray.api.features import FeatureGates
from dray.api.types import core_v1
from dray.api.types import resource_v1 as r
from dray.framework.node_info import NodeInfo
from dray.framework.snapshot import Snapshot
from tests.conformance.allocator.builders import (
    claim,
    device,
    device_class,
    holding,
    in_region,
    node,
    request,
    slice_of,
)

HERE = node()
RULES = FeatureGates.parse("DRADeviceTaintRules=true")
RULE = {
    "metadata": {"name": "rule"},
    "spec": {"deviceSelector": {"driver": "driver-a"}, "taint": {"key": "broken", "effect": "NoSchedule"}},
}


def claims_for(name: str = "claim-0", count: int = 1) -> tuple[r.ResourceClaim, ...]:
    return (claim(request(count=count), name=name),)


def new_allocator() -> Allocator:
    inventory = Inventory()
    inventory.apply_class(device_class())
    inventory.apply_slice(slice_of("x", "y"))
    return Allocator(inventory, Allocations(), RULES)


def cached(allocator: Allocator, claims: tuple[r.ResourceClaim, ...], here: core_v1.Node = HERE) -> Outcome | None:
    return allocator.query(claims).lookup("node-1", here)


def test_claims_with_the_same_spec_share_a_result() -> None:
    allocator = new_allocator()
    outcome = allocator.find(HERE, claims_for("one"))
    assert outcome.fits
    another = claims_for("another")
    assert cached(allocator, another) is outcome
    assert allocator.find(HERE, another) is outcome


def test_claims_with_another_spec_have_another_result() -> None:
    allocator = new_allocator()
    allocator.allocate(HERE, claims_for())
    assert not allocator.allocate(HERE, claims_for(count=3)).fits


def allocate_and_free(allocator: Allocator, times: int) -> None:
    allocator.allocations.apply_claim(holding("driver-a/pool-1/x"))
    for _ in range(times):
        allocator.allocations.apply_claim(holding("driver-a/elsewhere/x", name="churn"))
        allocator.allocations.remove_claim(holding("driver-a/elsewhere/x", name="churn"))


CHANGES: list[tuple[str, Callable[[Allocator], object]]] = [
    ("device allocated", lambda a: a.allocations.apply_claim(holding("driver-a/pool-1/x"))),
    ("device allocated, log too short", lambda a: allocate_and_free(a, CHANGES_MAX)),
    ("slice", lambda a: a.inventory.apply_slice(slice_of("z"))),
    ("slice deleted", lambda a: a.inventory.remove_slice("slice-driver-a-pool-1")),
    ("taint rule", lambda a: a.inventory.apply_taint_rule(RULE)),
    ("class", lambda a: a.inventory.apply_class(device_class("class-a", "false"))),
]


@pytest.mark.parametrize("change", [pytest.param(act, id=name) for name, act in CHANGES])
def test_a_change_invalidates_the_result(change: Callable[[Allocator], object]) -> None:
    allocator = new_allocator()
    claims = claims_for()
    before = allocator.allocate(HERE, claims)
    assert cached(allocator, claims) == before
    change(allocator)
    assert cached(allocator, claims) is None
    assert allocator.allocate(HERE, claims) == fresh(allocator, claims) != before


def test_a_change_of_selected_labels_invalidates_the_result() -> None:
    allocator = new_allocator()
    allocator.inventory.apply_slice(slice_of("x", "y", node_selector=in_region("region-1")))
    claims = claims_for()
    assert allocator.allocate(HERE, claims).fits
    moved = node(region="region-2")
    assert cached(allocator, claims, moved) is None
    assert not allocator.allocate(moved, claims).fits


def test_a_freed_device_invalidates_the_result() -> None:
    allocator = new_allocator()
    before = allocator.allocate(HERE, claims_for())
    for change in (allocator.allocations.apply_claim, allocator.allocations.remove_claim):
        change(holding("driver-a/pool-1/x"))
        assert cached(allocator, claims_for()) is None
        assert allocator.allocate(HERE, claims_for()) == fresh(allocator, claims_for())
    assert allocator.allocate(HERE, claims_for()) == before


CHANGES_BETWEEN: list[tuple[str, Callable[[Allocator], object]]] = [
    ("another device allocated", lambda a: a.allocations.apply_claim(holding("driver-a/pool-1/y", name="more"))),
    ("slice", lambda a: a.inventory.apply_slice(slice_of("w", "x", "y"))),
    ("taint rule", lambda a: a.inventory.apply_taint_rule(RULE)),
]


@pytest.mark.parametrize("change", [pytest.param(act, id=name) for name, act in CHANGES_BETWEEN])
def test_a_result_from_before_an_allocation_is_not_used_after_it_is_freed(
    change: Callable[[Allocator], object],
) -> None:
    allocator = new_allocator()
    both = claims_for(count=2)
    before = allocator.allocate(HERE, both)
    allocator.allocations.apply_claim(holding("driver-a/pool-1/x"))
    assert cached(allocator, both) is None
    change(allocator)
    allocator.allocations.remove_claim(holding("driver-a/pool-1/x"))
    assert cached(allocator, both) is None
    assert allocator.allocate(HERE, both) == fresh(allocator, both) != before


def test_an_error_names_the_claim_of_the_query() -> None:
    allocator = new_allocator()
    for name in ("one", "another"):
        unclear = claim(request("req-0", "class-a", 1, 'device.attributes["driver-a"].lacking == 1'), name=name)
        with pytest.raises(AllocationError, match=f"^claim ns/{name}: selector #0 on device "):
            allocator.allocate(HERE, (unclear,))


def test_a_share_is_never_allocated_twice() -> None:
    allocator = new_allocator()
    allocator.inventory.apply_slice(slice_of(device("x", allow_multiple_allocations=True)))
    one, other = (allocator.allocate(HERE, claims_for(name)).allocations for name in ("one", "other"))
    assert one is not None
    assert other is not None
    assert one[0].devices.results[0].share_id != other[0].devices.results[0].share_id


def empty_plan(_claims: Sequence[r.ResourceClaim]) -> Plan:
    return Plan((), ())


def test_the_least_recently_used_query_is_evicted_first() -> None:
    allocator = new_allocator()
    cache = AllocationCache(allocator.inventory, allocator.allocations, results_max=2)
    query = cache.query(claims_for(), empty_plan)
    assert cache.query(claims_for("another"), empty_plan) is query
    cache.query(claims_for(count=2), empty_plan)
    query.add(allocator.inventory.node_view(HERE, allocator.gates), Outcome(None))
    cache.query(claims_for(count=3), empty_plan)
    assert cache.query(claims_for(), empty_plan) is not query


def fresh(allocator: Allocator, claims: tuple[r.ResourceClaim, ...]) -> Outcome:
    """Return the outcome of an allocator with an empty cache."""
    return Allocator(allocator.inventory, allocator.allocations, RULES).allocate(HERE, claims)


def test_whether_claims_fit_is_known_where_they_were_tried() -> None:
    allocator = new_allocator()
    for name in ("n0", "n1"):
        allocator.inventory.apply_slice(slice_of("x", pool=name, node_name=name))
    snapshot = Snapshot([NodeInfo(node(f"n{number}")) for number in range(4)])
    claims = claims_for()
    query = allocator.query(claims)
    assert query.lookup_all(snapshot.nodes) == [None] * 4
    assert [allocator.allocate(snapshot.nodes[index].node, claims).fits for index in (0, 2)] == [True, False]
    # The answers stay the same when asked again.
    for _ in range(2):
        assert query.lookup_all(snapshot.nodes) == [True, None, False, None]


def test_a_node_that_is_updated_without_effect_keeps_the_results_of_all_queries() -> None:
    allocator = new_allocator()
    one, other = claims_for(), claims_for(count=2)
    outcomes = [allocator.find(HERE, claims) for claims in (one, other)]
    updated = node()
    assert cached(allocator, one, updated) is None
    assert allocator.find(updated, one) is outcomes[0]
    assert cached(allocator, other, updated) is outcomes[1]


def test_an_allocation_ends_the_results_of_all_queries() -> None:
    allocator = new_allocator()
    one, other = claims_for(), claims_for(count=2)
    for claims in (one, other):
        allocator.find(HERE, claims)
    allocator.allocations.apply_claim(holding("driver-a/pool-1/x"))
    assert allocator.find(HERE, one).fits
    assert cached(allocator, other) is None
    assert allocator.query(other).result_on("node-1") is None


def test_beyond_the_bound_all_nodes_begin_a_new_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation_cache, "GENERATIONS_MAX", 2)
    allocator = new_allocator()
    names = ("n0", "n1", "n2")
    for name in names:
        allocator.inventory.apply_slice(slice_of("x", pool=name, node_name=name))
    snapshot = Snapshot([NodeInfo(node(name)) for name in names])
    query = allocator.query(claims_for())
    assert query.lookup_all(snapshot.nodes) == [None] * 3
    for entry in snapshot.nodes[:2]:
        allocator.find(entry.node, claims_for())
    assert query.lookup_all(snapshot.nodes) == [True, True, None]
    allocator.find(snapshot.nodes[2].node, claims_for())
    assert query.lookup_all(snapshot.nodes) == [None, None, True]


def test_nothing_is_kept_of_nodes_and_pools_that_are_gone() -> None:
    allocator = new_allocator()
    # Every node has a device of it, and nobody uses one.
    allocator.inventory.apply_slice(slice_of("w", pool="everywhere", all_nodes=True, name="everywhere"))
    query, generations = allocator.query(claims_for()), allocator.query(claims_for())._generations
    for number in range(20):
        name, pool = f"n{number}", f"p{number}"
        # One node comes and goes; the other one stays, and gets another pool.
        for node_name in (name, "stays"):
            allocator.inventory.apply_slice(
                slice_of("x", pool=f"{pool}-{node_name}", node_name=node_name, name=node_name)
            )
            assert allocator.find(node(node_name), claims_for()).fits
            holder = holding(f"driver-a/{pool}-{node_name}/x")
            allocator.allocations.apply_claim(holder)
            assert allocator.find(node(node_name), claims_for()).fits
            if node_name == name:
                allocator.allocations.remove_claim(holder)
        allocator.inventory.remove_slice(name)
        allocator.inventory.remove_node(name)
        generations.refresh()
        assert generations._by_pool.keys() == {"driver-a/everywhere", f"driver-a/{pool}-stays"}
        assert generations._by_pool["driver-a/everywhere"].keys() == generations.current.keys() == {"stays"}
        assert query.size <= 4


@pytest.mark.parametrize("slices_first", [True, False])
def test_a_node_that_is_gone_has_no_generation(*, slices_first: bool) -> None:
    """No allocation changes, and nobody looks at the node again, so that nothing else would end it."""
    allocator = new_allocator()
    query, generations = allocator.query(claims_for()), allocator.query(claims_for())._generations
    allocator.find(HERE, claims_for())
    for number in range(20):
        name = f"n{number}"
        allocator.inventory.apply_slice(slice_of("x", pool=name, node_name=name, name=name))
        assert allocator.find(node(name), claims_for()).fits
        if slices_first:
            allocator.inventory.remove_slice(name)
        allocator.inventory.remove_node(name)
        if not slices_first:
            allocator.inventory.remove_slice(name)
        assert generations.current.keys() == {"node-1"}
        assert generations._by_pool.keys() == {"driver-a/pool-1"}
        # At most twice as many results as there were generations, and the query itself.
        assert query.size <= 5
    # A node that comes back under its name is searched again.
    allocator.inventory.apply_slice(slice_of("y", pool="n0", node_name="n0", name="n0"))
    found = allocator.find(node("n0"), claims_for())
    assert found.allocations is not None
    assert found.allocations[0].devices.results[0].device == "y"
    assert allocator.find(HERE, claims_for()).fits
