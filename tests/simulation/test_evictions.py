"""Only the Pods of dead nodes are evicted, each once, whatever happens between the nodes and the controllers."""

from __future__ import annotations

import pytest

from tests.simulation.runs import declared_faults, faults_of, seeds

SEEDS = seeds(range(12))


@pytest.mark.parametrize("seed", SEEDS)
def test_only_the_dead_are_emptied_and_each_pod_once(seed: int) -> None:
    faults_of("evictions", seed)


def test_every_fault_happens() -> None:
    assert declared_faults("evictions") <= {name for seed in SEEDS for name in faults_of("evictions", seed)}
