"""Gangs with every fault: no device twice, no gang half placed, and none that waits for free devices."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.gang_preemption_simulation import GangPreemptionSimulation
from tests.simulation.network import FaultRates
from tests.simulation.runs import declared_faults, outcome_of, run_simulation, seeds

VARIANTS = {
    "gangs": seeds((1, 2, 13, 32, 103)),
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


PREEMPTION_VARIANTS = {
    "gang_preemption": seeds((1, 2, 3, 313, 826311790)),
    "gang_preemption_stale_caches": seeds((1, 2, 3, 7, 88004, 7171014)),
}
PREEMPTED_MIN = 3


@pytest.mark.behaviour("GW-50", "GW-56", "GW-57", "GW-58")
@pytest.mark.parametrize(
    ("variant", "seed"), [(name, seed) for name, listed in PREEMPTION_VARIANTS.items() for seed in listed]
)
def test_gangs_preempt_for_a_whole_placement_only(variant: str, seed: int) -> None:
    outcome = outcome_of(variant, seed)
    assert not outcome.violation, f"{outcome.violation}\n{outcome.replay}"


@pytest.mark.parametrize("variant", PREEMPTION_VARIANTS)
def test_every_fault_happens_and_gangs_preempt(variant: str) -> None:
    outcomes = [outcome_of(variant, seed) for seed in PREEMPTION_VARIANTS[variant]]
    assert declared_faults(variant) <= {name for outcome in outcomes for name in outcome.faults}
    paths = sum((outcome.paths for outcome in outcomes), Counter())
    assert paths["gang preempts"] >= PREEMPTED_MIN
    assert paths["group member preempted"] >= PREEMPTED_MIN
    assert paths["gang"] >= GANGS_MIN


@pytest.mark.behaviour("GW-52")
@pytest.mark.parametrize("seed", seeds((100, 101)))
def test_without_faults_a_group_or_a_pod_waits_for_each_victim(seed: int) -> None:
    simulation = GangPreemptionSimulation(seed, rates=FaultRates.none(None))
    outcome = run_simulation("gang_preemption", seed, simulation)
    assert not outcome.violation, outcome.violation
    assert not simulation.in_vain
    assert simulation.preempted
