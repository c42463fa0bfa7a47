"""Which tables `dray top` computes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dray.cli import top
from tests.unit.sim.gpu_cluster import gpu_cluster, gpu_pod

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("what", "nodes_max", "counted"), [("all", 2, True), ("all", 1, False), ("fragmentation", 1, True)]
)
def test_fragmentation_of_large_clusters_is_counted_on_request(
    monkeypatch: pytest.MonkeyPatch, what: str, nodes_max: int, counted: bool
) -> None:
    monkeypatch.setattr(top, "FRAGMENTATION_NODES_MAX", nodes_max)
    snapshot = gpu_cluster({"a": 2, "b": 2}, gpu_pod("x", 1, "a", [0]))
    assert bool(top.measure(snapshot, NOW, what).fragmentation) is counted
