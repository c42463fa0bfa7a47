"""The tools agree with each other on messy clusters; `laws.py` has the laws, `messy_clusters.py` the clusters."""

from __future__ import annotations

import pytest

from tests.property.sim.laws import ALL_LAWS, Law, breaches
from tests.property.sim.messy_clusters import broken_seeds

# More are checked by `make laws`.
CLUSTERS = 4


@pytest.mark.parametrize("seed", sorted({*range(CLUSTERS), *broken_seeds()}))
@pytest.mark.parametrize("law", ALL_LAWS, ids=lambda law: law.__name__)
def test_law(law: Law, seed: int) -> None:
    assert breaches(law, seed) == []
