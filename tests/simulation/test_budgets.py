"""Evictions never take a Pod that a disruption budget needs, and budgets count correctly in the end."""

from __future__ import annotations

from datetime import datetime

import pytest

from dray.api import disruption
from dray.api.document import Document
from tests.simulation.runs import missing_faults, outcome_of, run, seeds

# In 900 an evicted Pod is observed only after the budget was counted without it; in 7788992 the count has a Pod that
# the ReplicaSet has deleted since. In 15 and 20 the ReplicaSet is not in the cache when its first Pod is.
SEEDS = {"budgets": seeds((1, 900, 7788992)), "budgets_stale_caches": seeds((15, 20))}
SEEDS_UNTIL_FOUND = range(1, 6)


@pytest.mark.behaviour("DB-20", "DB-31")
@pytest.mark.parametrize(("variant", "seed"), [(variant, seed) for variant, listed in SEEDS.items() for seed in listed])
def test_evictions_stay_within_the_budget(variant: str, seed: int) -> None:
    assert outcome_of(variant, seed).paths["eviction"] > 0


@pytest.mark.parametrize("variant", SEEDS)
def test_every_fault_happens(variant: str) -> None:
    assert not missing_faults(variant, SEEDS[variant])


def test_evictions_that_are_not_charged_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    charge = disruption.charge

    def for_nothing(budget: Document, pod_name: str, now: datetime) -> Document:
        charged = charge(budget, pod_name, now)
        allowed = budget["status"]["disruptionsAllowed"]
        return {**charged, "status": {**charged["status"], "disruptionsAllowed": allowed}}

    monkeypatch.setattr(disruption, "charge", for_nothing)
    assert any("is evicted with" in run("budgets", seed).violation for seed in SEEDS_UNTIL_FOUND)
