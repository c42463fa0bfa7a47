"""How hints become one, and what policies make of it."""

from __future__ import annotations

import functools
import itertools
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.node.topology.hints import Hint, Policy, ResourceHints, decide, item_hints, mask_of, merge, nodes_of, subsets


def yes(affinity: int | None) -> Hint:
    return Hint(affinity, preferred=True)


def no(affinity: int | None) -> Hint:
    return Hint(affinity, preferred=False)


TWO = 0b11
BOTH = [yes(1), yes(2), no(3)]

# The texts of KEP-693 and of kubelet's own documentation of the four policies.
DECISIONS: dict[str, tuple[list[ResourceHints], dict[Policy, tuple[Hint, bool]]]] = {
    "no preferences": (
        [{}, {"a": None}],
        {
            Policy.NONE: (yes(None), True),
            Policy.BEST_EFFORT: (yes(3), True),
            Policy.RESTRICTED: (yes(3), True),
            Policy.SINGLE_NUMA_NODE: (yes(None), True),
        },
    ),
    "one resource": (
        [{"a": BOTH}],
        {
            Policy.BEST_EFFORT: (yes(1), True),
            Policy.RESTRICTED: (yes(1), True),
            Policy.SINGLE_NUMA_NODE: (yes(1), True),
        },
    ),
    "two on different nodes": (
        [{"a": [yes(1), no(3)]}, {"b": [yes(2), no(3)]}],
        {
            Policy.BEST_EFFORT: (no(1), True),
            Policy.RESTRICTED: (no(1), False),
            Policy.SINGLE_NUMA_NODE: (no(None), False),
        },
    ),
    "they meet on the second": (
        [{"a": BOTH}, {"b": [yes(2), no(3)]}],
        {
            Policy.BEST_EFFORT: (yes(2), True),
            Policy.RESTRICTED: (yes(2), True),
            Policy.SINGLE_NUMA_NODE: (yes(2), True),
        },
    ),
    "both nodes are preferred": (
        [{"a": [yes(3)]}],
        {
            Policy.BEST_EFFORT: (yes(3), True),
            Policy.RESTRICTED: (yes(3), True),
            Policy.SINGLE_NUMA_NODE: (no(None), False),
        },
    ),
    "one cannot be served": (
        [{"a": BOTH, "b": []}],
        {
            Policy.BEST_EFFORT: (no(1), True),
            Policy.RESTRICTED: (no(1), False),
            Policy.SINGLE_NUMA_NODE: (no(None), False),
        },
    ),
    "only wide ones left": (
        [{"a": [no(3)]}],
        {Policy.BEST_EFFORT: (no(3), True), Policy.RESTRICTED: (no(3), False)},
    ),
}


@pytest.mark.parametrize(
    ("hints", "policy", "expected"),
    [
        pytest.param(hints, policy, expected, id=f"{name}-{policy}")
        for name, (hints, outcomes) in DECISIONS.items()
        for policy, expected in outcomes.items()
    ],
)
def test_policies(hints: list[ResourceHints], policy: Policy, expected: tuple[Hint, bool]) -> None:
    assert decide(policy, TWO, hints) == expected


MERGES = {
    "narrow before wide": (0b1111, [[yes(0b11), yes(0b1)]], yes(0b1)),
    "low before high": (0b1111, [[yes(0b100), yes(0b10)]], yes(0b10)),
    "preferred before narrow": (0b1111, [[no(0b1), yes(0b11)]], yes(0b11)),
    "near the wanted width": (0b1111, [[no(0b111), no(0b11)], [no(0b1111), no(0b111)]], no(0b111)),
    "nothing in common": (0b11, [[yes(1)], [yes(2)]], no(0b11)),
    "an empty list": (0b11, [[yes(1)], []], no(0b11)),
}


@pytest.mark.parametrize(("machine", "lists", "expected"), MERGES.values(), ids=MERGES)
def test_merges(machine: int, lists: list[list[Hint]], expected: Hint) -> None:
    assert merge(machine, lists) == expected


def test_masks() -> None:
    assert mask_of([0, 2, -1]) == 0b101
    assert nodes_of(0b101) == (0, 2)
    assert list(subsets(0b101)) == [0b001, 0b100, 0b101]


def test_items() -> None:
    everything = [1, 1, 2, 2]
    assert item_hints(TWO, everything, [1, 2, 2], [], 2) == [yes(2), no(3)]
    assert item_hints(TWO, everything, [2, 2], [1], 2) == [no(3)]


def slow_merge(machine: int, lists: list[list[Hint]]) -> Hint:
    """Every combination, each compared with the best so far by the documented rules."""
    widths = [[hint.affinity.bit_count() for hint in hints if hint.affinity is not None] for hints in lists]
    wanted = max((min(found) for found in widths if found), default=0)
    best: Hint | None = None
    for chosen in itertools.product(*lists):
        named = [hint.affinity for hint in chosen if hint.affinity is not None]
        mask = functools.reduce(operator.and_, named, machine)
        candidate = Hint(mask, all(hint.preferred for hint in chosen) and len(set(named)) <= 1)
        if mask and (best is None or replaces(candidate, best, wanted)):
            best = candidate
    return best or no(machine)


def replaces(candidate: Hint, best: Hint, wanted: int) -> bool:
    assert candidate.affinity is not None
    assert best.affinity is not None
    if candidate.preferred != best.preferred:
        return candidate.preferred
    new, old = candidate.affinity.bit_count(), best.affinity.bit_count()
    narrower = (new, candidate.affinity) < (old, best.affinity)
    if candidate.preferred or old > wanted:
        return narrower
    if new > wanted:
        return False
    return new > old or (new == old and candidate.affinity < best.affinity)


HINTS = st.builds(Hint, st.none() | st.integers(1, 15), st.booleans())


@given(st.lists(st.lists(HINTS, max_size=4), max_size=4))
@settings(max_examples=300, deadline=None)
def test_merging_list_by_list_is_the_same_as_trying_all(lists: list[list[Hint]]) -> None:
    assert merge(0b1111, lists) == slow_merge(0b1111, lists)
