"""Only the Pods that must go are evicted, whatever happens between nodes, devices, users and the controllers."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.runs import declared_faults, faults_of, missing_faults, outcome_of, seeds

SEEDS = seeds(range(12))
TAINT_SEEDS = {"device_taints": seeds(range(1, 8)), "device_taints_stale_caches": seeds((1, 2, 4, 7, 11, 14))}


@pytest.mark.parametrize("seed", SEEDS)
def test_only_the_dead_are_emptied_and_each_pod_once(seed: int) -> None:
    faults_of("evictions", seed)


def test_every_fault_happens() -> None:
    assert not missing_faults("evictions", SEEDS)


@pytest.mark.parametrize(("variant", "seed"), [(name, seed) for name, listed in TAINT_SEEDS.items() for seed in listed])
def test_only_pods_on_tainted_devices_are_evicted_and_none_is_left_there(variant: str, seed: int) -> None:
    faults_of(variant, seed)


@pytest.mark.parametrize("variant", TAINT_SEEDS)
def test_every_fault_happens_to_tainted_devices(variant: str) -> None:
    """Pods are also evicted while they are being bound."""
    outcomes = [outcome_of(variant, seed) for seed in TAINT_SEEDS[variant]]
    assert declared_faults(variant) <= {name for outcome in outcomes for name in outcome.faults}
    assert sum((outcome.paths for outcome in outcomes), Counter())["eviction"] > 10
