"""The tools agree with each other on messy clusters; `laws.py` has the laws, `messy_clusters.py` the clusters."""

from __future__ import annotations

import pytest

from tests.property.sim.laws import LAWS, Law, what_was_not_read_is_not_judged
from tests.property.sim.messy_clusters import MessyCluster

# Seeds of clusters that broke a law once, and a few others.
SEEDS = (0, 5, 11, 17, 21, 41, 58, 70, 83)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law(law: Law, seed: int) -> None:
    assert list(law(MessyCluster(seed).snapshot())) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_not_read_is_not_judged(seed: int) -> None:
    assert list(what_was_not_read_is_not_judged(MessyCluster(seed).dump())) == []
