"""Preemption with devices: no device twice, nobody goes in vain, and preemptors do not starve."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.network import FaultRates
from tests.simulation.preemption_simulation import PreemptionSimulation
from tests.simulation.runs import declared_faults, outcome_of, run_simulation, seeds

PREEMPTIONS_MIN = 5
VARIANTS = {"preemption": seeds((1, 3, 4, 8, 9, 40006)), "preemption_stale_caches": seeds((0, 1, 2, 3))}


@pytest.mark.behaviour("PE-74", "PE-75")
@pytest.mark.parametrize(("variant", "seed"), [(name, seed) for name, listed in VARIANTS.items() for seed in listed])
def test_devices_move_to_higher_priorities_only_and_everybody_settles(variant: str, seed: int) -> None:
    outcome = outcome_of(variant, seed)
    assert not outcome.violation, f"{outcome.violation}\n{outcome.replay}"


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_fault_happens_and_pods_are_preempted(variant: str) -> None:
    outcomes = [outcome_of(variant, seed) for seed in VARIANTS[variant]]
    assert declared_faults(variant) <= {name for outcome in outcomes for name in outcome.faults}
    assert sum((outcome.paths for outcome in outcomes), Counter())["preemption"] >= PREEMPTIONS_MIN


@pytest.mark.behaviour("PE-75")
@pytest.mark.parametrize("seed", seeds((100, 101)))
def test_without_faults_somebody_waits_for_each_victim(seed: int) -> None:
    simulation = PreemptionSimulation(seed, rates=FaultRates.none(None))
    outcome = run_simulation("preemption", seed, simulation)
    assert not outcome.violation, outcome.violation
    assert not simulation.in_vain
    assert simulation.preempted
