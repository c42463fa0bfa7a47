"""The profile by component."""

from __future__ import annotations

from collections import Counter

from bench.profile import OTHER, by_component


def test_shared_code_counts_for_the_component_that_called_it() -> None:
    stacks = Counter(
        {
            ("api/codec.py decode", "scheduler/cache.py add", "client/informer.py run"): 3,
            ("store/sqlite.py write", "apiserver/server.py handle", "controllers/claims.py reconcile"): 2,
            ("client/informer.py run", "/usr/lib/python3/asyncio/base_events.py run"): 1,
        }
    )
    assert by_component(stacks) == {"scheduler": 3, "API server": 2, OTHER: 1}
