"""Evictions never take a Pod that a disruption budget needs, and budgets count correctly in the end."""

from __future__ import annotations

import pytest

from tests.simulation.runs import outcome_of, seeds

# In 900 an evicted Pod is observed only after the budget was counted without it.
# In 15 and 20 the ReplicaSet is not in the cache when its first Pod is.
RUNS = [*(("budgets", seed) for seed in seeds((1, 900))), *(("budgets_stale_caches", seed) for seed in seeds((15, 20)))]


@pytest.mark.behaviour("DB-20", "DB-31")
@pytest.mark.parametrize(("variant", "seed"), RUNS)
def test_evictions_stay_within_the_budget(variant: str, seed: int) -> None:
    assert outcome_of(variant, seed).paths["eviction"] > 0
