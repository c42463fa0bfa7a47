"""Nothing is allocated twice and everything settles although processes act on the past, or on a wrong time of day."""

from __future__ import annotations

import pytest

from tests.simulation.network import FAULTS
from tests.simulation.runs import VARIANTS, declared_faults, faults_of, missing_faults, seeds

# Fewer where a run takes longer; every one of them has all its faults.
SEEDS = {
    "device_taints_clock_jumps": seeds((1, 2, 3)),
    "stale_caches": seeds(range(1, 9)),
    "clock_jumps": seeds(range(1, 7)),
    "classic_stale_caches": seeds((2, 10, 52000)),
    "classic_clock_jumps": seeds((1, 2, 51010)),
    "workloads_stale_caches": seeds((1, 51001, 51008, 61005)),
    "workloads_clock_jumps": seeds((1, 3, 52001)),
    "housekeeping_stale_caches": seeds((9, 20, 36, 73)),
    "housekeeping_clock_jumps": seeds((4, 6)),
    "evictions_stale_caches": seeds((1, 2)),
    "evictions_clock_jumps": seeds((1, 2)),
}


def _runs(suffix: str) -> list[tuple[str, int]]:
    return [(variant, seed) for variant, listed in SEEDS.items() if variant.endswith(suffix) for seed in listed]


@pytest.mark.behaviour("SP-104", "SP-109")
@pytest.mark.parametrize(("variant", "seed"), _runs("stale_caches"))
def test_caches_that_are_intermediate_unobserved_or_stale(variant: str, seed: int) -> None:
    faults_of(variant, seed)


@pytest.mark.parametrize(("variant", "seed"), _runs("clock_jumps"))
def test_the_time_of_day_jumps(variant: str, seed: int) -> None:
    faults_of(variant, seed)


@pytest.mark.parametrize("variant", SEEDS)
def test_every_fault_happens(variant: str) -> None:
    assert not missing_faults(variant, SEEDS[variant])


def test_every_fault_is_declared_by_a_variant() -> None:
    assert set(FAULTS) <= set().union(*map(declared_faults, VARIANTS))
