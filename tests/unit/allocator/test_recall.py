"""What was found for a node is said again until it may be different."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.allocator import AllocationError, Allocations, Allocator, Inventory, Outcome
from dray.allocator.allocations import CHANGES_MAX
from dray.allocator.plan import Plan
from dray.allocator.recall import Known, Recall
from dray.api.types import core_v1
from dray.api.types import resource_v1 as r
from tests.conformance.allocator.builders import (
    claim,
    counter_set,
    device,
    device_class,
    holding,
    in_region,
    node,
    request,
    slice_of,
)

HERE = node()
RULE = {
    "metadata": {"name": "rule"},
    "spec": {"deviceSelector": {"driver": "driver-a"}, "taint": {"key": "broken", "effect": "NoSchedule"}},
}


def asked(name: str = "claim-0", count: int = 1) -> tuple[r.ResourceClaim, ...]:
    return (claim(request(count=count), name=name),)


def made() -> Allocator:
    inventory = Inventory()
    inventory.apply_class(device_class())
    inventory.apply_slice(slice_of("x", "y"))
    return Allocator(inventory, Allocations())


def recalled(allocator: Allocator, claims: tuple[r.ResourceClaim, ...], here: core_v1.Node = HERE) -> Outcome | None:
    """What can be said at once, read as its users must."""
    known = allocator.recall(claims).known.get("node-1")
    if known is None or known.node is not here or known.version != allocator.inventory.version:
        return None
    return known.outcome


def test_the_same_question_of_another_claim_has_the_same_outcome() -> None:
    allocator = made()
    outcome = allocator.allocate(HERE, asked("one"))
    assert outcome.fits
    another = asked("another")
    assert recalled(allocator, another) is outcome
    assert allocator.allocate(HERE, another) is outcome


def test_another_question_has_another_outcome() -> None:
    allocator = made()
    allocator.allocate(HERE, asked())
    assert not allocator.allocate(HERE, asked(count=3)).fits


def take_and_free(allocator: Allocator, times: int) -> None:
    allocator.allocations.apply_claim(holding("driver-a/pool-1/x"))
    for _ in range(times):
        allocator.allocations.apply_claim(holding("driver-a/elsewhere/x", name="churn"))
        allocator.allocations.remove_claim(holding("driver-a/elsewhere/x", name="churn"))


CHANGES: list[tuple[str, Callable[[Allocator], object]]] = [
    ("device taken", lambda a: a.allocations.apply_claim(holding("driver-a/pool-1/x"))),
    ("device taken, long ago", lambda a: take_and_free(a, CHANGES_MAX)),
    ("slice", lambda a: a.inventory.apply_slice(slice_of("z"))),
    ("slice gone", lambda a: a.inventory.remove_slice("slice-driver-a-pool-1")),
    ("taint rule", lambda a: a.inventory.apply_taint_rule(RULE)),
    ("class", lambda a: a.inventory.apply_class(device_class("class-a", "false"))),
]


@pytest.mark.parametrize("change", [pytest.param(act, id=name) for name, act in CHANGES])
def test_a_change_has_the_node_looked_at_again(change: Callable[[Allocator], object]) -> None:
    allocator = made()
    claims = asked()
    before = allocator.allocate(HERE, claims)
    assert recalled(allocator, claims) is before
    change(allocator)
    assert recalled(allocator, claims) is None
    assert allocator.allocate(HERE, claims) == fresh(allocator, claims) != before


def test_labels_that_slices_select_by_are_looked_at_again() -> None:
    allocator = made()
    allocator.inventory.apply_slice(slice_of("x", "y", node_selector=in_region("region-1")))
    claims = asked()
    assert allocator.allocate(HERE, claims).fits
    moved = node(region="region-2")
    assert recalled(allocator, claims, moved) is None
    assert not allocator.allocate(moved, claims).fits


def take_and_give_back(allocator: Allocator) -> None:
    """Have the question asked in between, so that what was known before is outdated."""
    for act in (allocator.allocations.apply_claim, allocator.allocations.remove_claim):
        act(holding("driver-a/pool-1/x"))
        assert recalled(allocator, asked()) is None
        assert allocator.allocate(HERE, asked()) == fresh(allocator, asked())


def test_what_was_found_is_said_again_when_the_same_devices_are_free() -> None:
    allocator = made()
    before = allocator.allocate(HERE, asked())
    take_and_give_back(allocator)
    assert allocator.allocate(HERE, asked()) is before


WHILE_TAKEN: list[tuple[str, Callable[[Allocator], object]]] = [
    ("another device taken", lambda a: a.allocations.apply_claim(holding("driver-a/pool-1/y", name="more"))),
    ("slice", lambda a: a.inventory.apply_slice(slice_of("w", "x", "y"))),
    ("taint rule", lambda a: a.inventory.apply_taint_rule(RULE)),
]


@pytest.mark.parametrize("change", [pytest.param(act, id=name) for name, act in WHILE_TAKEN])
def test_what_was_found_earlier_is_forgotten_with_what_it_was_found_for(change: Callable[[Allocator], object]) -> None:
    allocator = made()
    both = asked(count=2)
    before = allocator.allocate(HERE, both)
    allocator.allocations.apply_claim(holding("driver-a/pool-1/x"))
    assert recalled(allocator, both) is None
    change(allocator)
    allocator.allocations.remove_claim(holding("driver-a/pool-1/x"))
    assert recalled(allocator, both) is None
    assert allocator.allocate(HERE, both) == fresh(allocator, both) != before


def test_counters_matter_beyond_the_devices_that_are_free() -> None:
    allocator = made()
    parts = [device(name, consumes={"set": {"memory": "1"}}) for name in ("x", "y")]
    for members in (
        slice_of(*parts, size=2),
        slice_of(name="counters", size=2, shared_counters=(counter_set("set", memory="2"),)),
    ):
        allocator.inventory.apply_slice(members)
    before = allocator.allocate(HERE, asked())
    assert before.fits
    take_and_give_back(allocator)
    again = allocator.allocate(HERE, asked())
    assert again == before
    assert again is not before


def test_an_error_names_the_claim_that_is_asked_for() -> None:
    allocator = made()
    for name in ("one", "another"):
        unclear = claim(request("req-0", "class-a", 1, 'device.attributes["driver-a"].lacking == 1'), name=name)
        with pytest.raises(AllocationError, match=f"^claim ns/{name}: selector #0: "):
            allocator.allocate(HERE, (unclear,))


def test_shares_are_never_given_twice() -> None:
    allocator = made()
    allocator.inventory.apply_slice(slice_of(device("x", allow_multiple_allocations=True)))
    one, other = (allocator.allocate(HERE, asked(name)).allocations for name in ("one", "other"))
    assert one is not None
    assert other is not None
    assert one[0].devices.results[0].share_id != other[0].devices.results[0].share_id


def nothing_planned() -> Plan:
    return Plan((), ())


def test_what_was_not_asked_for_longest_is_forgotten_first() -> None:
    recall = Recall(outcomes_max=2)
    known = recall.known_for(asked(), 1, nothing_planned)
    assert recall.known_for(asked("another"), 1, nothing_planned) is known
    recall.known_for(asked(count=2), 1, nothing_planned)
    allocator = made()
    rules, view = allocator.inventory.taint_rules, allocator.inventory.node_view(HERE, allocator.gates)
    known.add(Known(view, rules, allocator.allocations, 1, Outcome(None)))
    recall.known_for(asked(count=3), 1, nothing_planned)
    assert recall.known_for(asked(), 1, nothing_planned) is not known


def fresh(allocator: Allocator, claims: tuple[r.ResourceClaim, ...]) -> Outcome:
    """As an allocator says that has never been asked."""
    return Allocator(allocator.inventory, allocator.allocations).allocate(HERE, claims)


@given(st.lists(st.tuples(st.sampled_from(["take", "free", "ask"]), st.integers(0, 3), st.integers(1, 4)), max_size=30))
@settings(max_examples=60, deadline=None)
def test_nothing_outdated_is_ever_said(steps: list[tuple[str, int, int]]) -> None:
    allocator = made()
    allocator.inventory.apply_slice(slice_of(*(f"d{number}" for number in range(4))))
    for act, number, count in steps:
        holder = holding(f"driver-a/pool-1/d{number}", name=f"holder-{number}")
        if act == "take":
            allocator.allocations.apply_claim(holder)
        elif act == "free":
            allocator.allocations.remove_claim(holder)
        claims = asked(f"{act}-{number}", count)
        expected = fresh(allocator, claims)
        assert recalled(allocator, claims) in (None, expected)
        assert allocator.allocate(HERE, claims) == expected
