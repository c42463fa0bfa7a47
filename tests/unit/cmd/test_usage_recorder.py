"""Files of the history of usage that cannot be read, and its metrics."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dray.cmd.usage_recorder import FILE, UsageMetrics, load
from dray.runtime.metrics import Metrics
from dray.sim.usage_history import History, Point, encode
from dray.sim.usage_sample import ClassUse, NamespaceUse, Sample

POINT = Point(60.0, 60.0, Sample({"gpu": ClassUse(4, 2, 1, 1.5, 1.5)}, {("team", "gpu"): NamespaceUse(1.5, 1.5)}))


def test_a_damaged_file_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / FILE
    path.write_bytes(b"{")
    with caplog.at_level(logging.WARNING):
        assert load(path).points() == []
    assert "is damaged and begins anew" in caplog.text
    assert [item.name for item in tmp_path.iterdir()] == [f"{FILE}.damaged"]


def test_a_file_that_is_not_there_or_unreadable_is_no_failure(tmp_path: Path) -> None:
    assert load(tmp_path / FILE).points() == []
    (tmp_path / FILE).mkdir()
    assert load(tmp_path / FILE).points() == []


def test_a_file_is_read_again(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(encode(History(raw=[POINT])))
    assert load(tmp_path / FILE).raw == [POINT]


def test_metrics_count_device_seconds_and_show_the_newest_sample() -> None:
    metrics = Metrics()
    usage = UsageMetrics(metrics)
    usage.observe(POINT)
    usage.observe(POINT)
    assert metrics.value("dray_device_seconds_total", {"namespace": "team", "device_class": "gpu"}) == 180.0
    states = {state: metrics.value("dray_devices", {"device_class": "gpu", "state": state}) for state in STATES}
    assert states == {"in_use": 2, "free": 1, "unavailable": 1}
    assert metrics.value("dray_devices_used", {"device_class": "gpu"}) == 1.5
    usage.observe(Point(120.0, 60.0, Sample()))
    assert b"dray_devices{" not in metrics.exposition()
    assert metrics.value("dray_device_seconds_total", {"namespace": "team", "device_class": "gpu"}) == 180.0


STATES = ("in_use", "free", "unavailable")
