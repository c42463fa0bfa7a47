"""Which tables `dray top` computes, and how much of them it shows."""

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


def test_an_overview_of_a_large_cluster_shows_the_most_used_and_counts_the_rest() -> None:
    snapshot = gpu_cluster({f"n{number:02}": 2 for number in range(30)}, gpu_pod("x", 2, "n17", [0, 1]))
    measured = top.measure(snapshot, NOW, "all")
    shown = top.render_top(measured, "all", "table", colour=False).splitlines()
    nodes = shown[next(place for place, line in enumerate(shown) if line.startswith("NODE ")) :]
    assert nodes[1].split()[0] == "n17"
    assert nodes[top.OVERVIEW_ROWS_MAX + 1] == "and 20 more; see dray top nodes"
    assert not any(line.startswith("DRIVER ") for line in shown), "pools count published devices, not physical ones"
    alone = top.render_top(measured, "nodes", "table", colour=False).splitlines()
    assert [line.split()[0] for line in alone[1:]] == [f"n{number:02}" for number in range(30)]


def test_one_table_does_not_compute_the_others() -> None:
    snapshot = gpu_cluster({"a": 2}, gpu_pod("x", 1, "a", [0]))
    counted = {what: top.measure(snapshot, NOW, what) for what in top.TABLES if what != "counters"}
    for what, measured in counted.items():
        assert getattr(measured, what), what
    assert not counted["fragmentation"].classes
    assert not counted["fragmentation"].pools
    assert not counted["fragmentation"].namespaces
