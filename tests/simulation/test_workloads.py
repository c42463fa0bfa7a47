"""Workloads whose controllers crash: never a Pod too many, every Pod counted once, all settles."""

from __future__ import annotations

import pytest

from tests.simulation.runs import faults_of, missing_faults, seeds

# Seeds that once failed stay in the list.
SEEDS = seeds((7039, *range(1, 12)))


@pytest.mark.parametrize("seed", SEEDS)
def test_controllers_that_crash(seed: int) -> None:
    assert faults_of("workloads", seed)["crash"] > 0


def test_every_fault_happens() -> None:
    assert not missing_faults("workloads", SEEDS)
