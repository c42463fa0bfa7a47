"""Nothing is allocated twice and everything settles although processes act on the past, or on a wrong time of day."""

from __future__ import annotations

import pytest

from tests.simulation.network import FAULTS
from tests.simulation.runs import VARIANTS, declared_faults, faults_of, seeds

STALE_SEEDS = seeds(range(1, 9))
JUMP_SEEDS = seeds(range(1, 7))


@pytest.mark.behaviour("SP-104", "SP-109")
@pytest.mark.parametrize("seed", STALE_SEEDS)
def test_caches_that_are_intermediate_unobserved_or_stale(seed: int) -> None:
    faults_of("stale_caches", seed)


@pytest.mark.parametrize("seed", JUMP_SEEDS)
def test_the_time_of_day_jumps(seed: int) -> None:
    faults_of("clock_jumps", seed)


@pytest.mark.parametrize(("variant", "listed"), [("stale_caches", STALE_SEEDS), ("clock_jumps", JUMP_SEEDS)])
def test_every_fault_happens(variant: str, listed: list[int]) -> None:
    assert declared_faults(variant) <= {name for seed in listed for name in faults_of(variant, seed)}


def test_every_fault_is_declared_by_a_variant() -> None:
    assert set(FAULTS) == set().union(*map(declared_faults, VARIANTS))
