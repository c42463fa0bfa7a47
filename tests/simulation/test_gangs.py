"""Gangs with every fault: no device twice, no gang half placed, and none that waits for free devices."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.runs import declared_faults, outcome_of, seeds

VARIANTS = {
    "gangs": seeds((1, 2, 32, 103)),
    "gangs_two_schedulers": seeds((2, 3, 6)),
    "gangs_stale_caches": seeds((1, 2, 3)),
}
GANGS_MIN = 2
BINDINGS_MIN = 10


@pytest.mark.behaviour("GW-58", "GW-29", "GW-30", "GW-36")
@pytest.mark.parametrize(("variant", "seed"), [(name, seed) for name, listed in VARIANTS.items() for seed in listed])
def test_gangs_are_placed_whole_or_not_at_all(variant: str, seed: int) -> None:
    outcome = outcome_of(variant, seed)
    assert not outcome.violation, f"{outcome.violation}\n{outcome.replay}"


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_fault_happens_and_gangs_run(variant: str) -> None:
    outcomes = [outcome_of(variant, seed) for seed in VARIANTS[variant]]
    assert declared_faults(variant) <= {name for outcome in outcomes for name in outcome.faults}
    paths = sum((outcome.paths for outcome in outcomes), Counter())
    assert paths["gang"] >= GANGS_MIN
    assert paths["binding"] >= BINDINGS_MIN
