"""Rebalancing of a made-up trace: moves never lose allocation, and never exceed the bound."""

from __future__ import annotations

import random

import pytest

from bench.openb.rebalance import rebalance
from bench.openb.trace import WHOLE, TraceNode, TracePod
from dray.scheduler.named_profiles import NAMED_PROFILES


@pytest.mark.parametrize("profile", ["spread", "pack"])
def test_moves_gain_and_stay_below_the_bound(profile: str) -> None:
    rng = random.Random(7)
    nodes = [TraceNode(f"node-{n}", 32_000, 64_000, 4, "A" if n % 2 else "B") for n in range(6)]
    pods = [
        TracePod(rng.choice((2_000, 6_000)), 4_000, gpus, WHOLE if gpus > 1 else rng.choice((500, WHOLE)))
        for gpus in (1, 1, 1, 2, 2, 4)
        for _ in range(4)
    ]
    found = rebalance(nodes, pods, 3, NAMED_PROFILES[profile], lambda _text: None)
    shares = [found.before, *(allocated for _, allocated in found.after.values())]
    assert shares == sorted(shares)
    assert shares[-1] <= found.bound + 1e-6 <= 100 + 1e-6
    assert all(moves <= max(found.pods * percent // 100, 1) for percent, (moves, _) in found.after.items())
    # A run is repeatable.
    assert found == rebalance(nodes, pods, 3, NAMED_PROFILES[profile], lambda _text: None)
