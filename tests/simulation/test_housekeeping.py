"""Nothing is deleted whose owner lives, a namespace goes when it is empty, and quotas count what is there."""

from __future__ import annotations

import pytest

from tests.simulation.runs import declared_faults, faults_of, outcome_of, seeds

# In 11, 42 and 47 some groups cannot be discovered while a namespace is emptied.
SEEDS = seeds((11, 42, 47, 1, 2))
PATHS = {"namespace emptied", "namespace finalized", "job expired", "dependent collected"}


@pytest.mark.parametrize("seed", SEEDS)
def test_only_what_must_go_is_deleted(seed: int) -> None:
    outcome_of("housekeeping", seed)


def test_every_fault_and_every_path_happens() -> None:
    assert declared_faults("housekeeping") <= {name for seed in SEEDS for name in faults_of("housekeeping", seed)}
    assert {name for seed in SEEDS for name in outcome_of("housekeeping", seed).paths} >= PATHS
