"""The order of reasons: every kind of reason of the allocator has its place."""

from __future__ import annotations

from dray.allocator import Reason
from dray.sim.explain.grouping import NEARNESS


def test_every_reason_has_its_place() -> None:
    assert set(NEARNESS) == set(Reason)
