"""The series of usage: its bounds, averages, gaps and its file; and what is told of a time."""

from __future__ import annotations

import math

import pytest

from dray.sim import usage_history
from dray.sim.usage_history import (
    BUCKET_SECONDS,
    MERGED_SECONDS,
    RAW_MAX,
    History,
    HistoryError,
    Point,
    decode,
    encode,
    merge,
    observed_seconds,
)
from dray.sim.usage_sample import ClassUse, NamespaceUse, Sample
from dray.sim.usage_window import LINE_PARTS, Window, class_courses, namespace_courses, namespace_hours

OWNER = ("team", "gpu")
DAY = 86_400.0


def point(time: float, used: float, seconds: float = 60.0, total: float = 4) -> Point:
    classes = {"gpu": ClassUse(total, math.ceil(used), 0, used, used)}
    return Point(time, seconds, Sample(classes, {OWNER: NamespaceUse(used, used)} if used else {}))


def recorded(count: int, step: float = 60.0, used: float = 2.0) -> History:
    history = History()
    for number in range(1, count + 1):
        history.add(point(number * step, used, step))
    return history


def device_seconds(history: History) -> float:
    return sum(part.used * item.seconds for item in history.points() for part in item.sample.namespaces.values())


def test_a_day_is_kept_in_full_and_older_points_are_averaged_without_loss() -> None:
    history = recorded(3 * 1440)
    assert len(history.raw) == RAW_MAX
    assert history.raw[0].time == 3 * DAY - DAY + 60
    # Two days in parts of 15 minutes; the last part is not over.
    assert len(history.merged) == 2 * 96 + 1
    assert device_seconds(history) == pytest.approx(3 * 1440 * 60 * 2)


def test_a_month_is_the_end() -> None:
    history = recorded(40 * 24, step=3600.0)
    assert history.points()[0].time > 40 * DAY - MERGED_SECONDS - BUCKET_SECONDS
    assert len(history.points()) <= 30 * 24 + 1


def test_short_intervals_are_merged_earlier() -> None:
    history = recorded(RAW_MAX + 5000, step=0.1)
    assert (len(history.raw), len(history.merged)) == (RAW_MAX, 1)
    assert device_seconds(history) == pytest.approx((RAW_MAX + 5000) * 0.1 * 2)


def test_points_of_the_future_are_dropped() -> None:
    history = recorded(10)
    history.add(point(120.0, 1.0))
    assert [item.time for item in history.points()] == [60.0, 120.0, 120.0]


def test_an_average_weighs_by_time_and_keeps_the_peak() -> None:
    merged = merge([point(60, 4.0, 60), point(240, 0.0, 180)])
    assert (merged.time, merged.seconds) == (240, 240)
    assert merged.sample.namespaces[OWNER] == NamespaceUse(1.0, 4.0)
    assert merged.sample.classes["gpu"] == ClassUse(4, 1, 0, 1.0, 4.0)
    assert merge([point(60, 4.0, 0), point(60, 0.0, 0)]).sample.namespaces[OWNER].used == 2.0


@pytest.mark.parametrize(("elapsed", "observed"), [(60, 60), (150, 150), (151, 0), (-1, 0)])
def test_time_between_samples_that_are_far_apart_was_not_observed(elapsed: float, observed: float) -> None:
    assert observed_seconds(1000, 1000 + elapsed, 60) == observed


def test_the_file_has_everything() -> None:
    history = recorded(RAW_MAX + 100)
    found = decode(encode(history))
    assert (found.merged, found.raw) == (history.merged, history.raw)
    assert decode(encode(History())).points() == []


@pytest.mark.parametrize("bytes_max", [100_000, 5000, 200])
def test_a_file_that_would_be_too_large_loses_the_oldest_points(bytes_max: int) -> None:
    history = recorded(RAW_MAX + 100)
    content = encode(history, bytes_max)
    found = decode(content)
    assert len(content) <= bytes_max
    assert found.points() == history.points()[len(history.points()) - len(found.points()) :]
    assert found.points(), "the newest ones are kept"


def test_a_full_series_of_a_small_cluster_is_far_below_the_bound() -> None:
    history = recorded(RAW_MAX + 30 * 96 * 15)
    assert len(encode(history)) < usage_history.BYTES_MAX / 8


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00",
        b"[]\n",
        b'{"version": 2, "merged": 0}\n',
        b'{"version": 1, "merged": 1}\n',
        b'{"version": 1, "merged": 0}\n{"time": 1, "seconds": 1, "classes": {"a": [1]}, "namespaces": {}}\n',
        b'{"version": 1, "merged": 0}\n{"time": 1, "seconds": 1, "classes": [], "namespaces": {}}\n',
        b'{"version": 1, "merged": 0}\n{"time": 1, "seconds": 1, "cla',
    ],
)
def test_damaged_files_are_told(content: bytes) -> None:
    with pytest.raises(HistoryError):
        decode(content)


def test_device_hours_of_a_time() -> None:
    points = recorded(120).points()
    (row,) = namespace_hours(Window.of(points, 3600))
    assert (row.namespace, row.device_class, row.device_hours) == ("team", "gpu", 2.0)


def test_a_point_at_the_edge_counts_in_part() -> None:
    points = [point(900, 4.0, 900), point(960, 0.0)]
    assert namespace_hours(Window.of(points, 360))[0].device_hours == pytest.approx(4 * 300 / 3600, abs=1e-6)


def test_a_restart_leaves_a_gap_that_counts_as_nothing() -> None:
    points = [point(3600, 4.0, 3600), point(3 * 3600, 2.0, 3600)]
    window = Window.of(points, 3 * 3600)
    (by_class,), (by_namespace,) = class_courses(window), namespace_courses(window)
    assert window.observed_seconds == 7200
    assert (by_class.now, by_class.average, by_class.peak) == (0.5, 0.75, 1.0)
    assert (by_namespace.now, by_namespace.average, by_namespace.peak, by_namespace.device_hours) == (2, 3, 4, 6)
    third = LINE_PARTS // 3
    assert by_class.course[:third] == "█" * third
    assert by_class.course[third + 1 : 2 * third] == "·" * (third - 1)
    assert by_class.course[2 * third :] == "▅" * third


def test_without_any_time_the_average_is_what_is_there() -> None:
    (row,) = class_courses(Window.of([point(60, 1.0, 0)], 60))
    assert (row.now, row.average, row.peak) == (0.25, 0.25, 0.25)


def test_nothing_is_recorded_yet() -> None:
    window = Window.of([], 60)
    assert (class_courses(window), namespace_hours(window)) == ([], [])
