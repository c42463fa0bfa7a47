"""Which health reports are sent, and when they are overdue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dray.driver.health import DeviceHealth, Health, HealthReports

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def healthy(device: str, timeout_seconds: int = 30) -> DeviceHealth:
    return DeviceHealth("pool", device, Health.HEALTHY, timeout_seconds=timeout_seconds)


def test_reports_are_repeated_within_the_shortest_timeout() -> None:
    reports = HealthReports()
    assert reports.repeat_seconds() is None
    reports.report([DeviceHealth("pool", "b", Health.UNHEALTHY, "hot"), healthy("a", 6)], NOW)
    reports.report([healthy("b")], NOW)
    assert reports.repeat_seconds() == 2.0
    assert reports.list(later(100)) == ((healthy("a", 6), later(100)), (healthy("b"), later(100)))


@pytest.mark.behaviour("N-22")
def test_without_repeats_a_report_expires_and_keeps_its_time() -> None:
    reports = HealthReports(repeats=False)
    reports.report([healthy("a", 6), healthy("b")], NOW)
    assert reports.repeat_seconds() is None
    assert reports.list(later(6)) == ((healthy("a", 6), NOW), (healthy("b"), NOW))
    assert reports.list(later(7)) == ((healthy("b"), NOW),)


@pytest.mark.behaviour("N-22")
@pytest.mark.parametrize(
    ("timeouts", "seconds"),
    [((), 30), ((0,), 30), ((-1, 60), 30), ((5, 60), 5), ((60,), 60)],
)
def test_a_driver_is_overdue_after_the_shortest_timeout_of_its_last_report(
    timeouts: tuple[int, ...], seconds: int
) -> None:
    reports = HealthReports(repeats=False)
    reports.report([healthy("first", 1)], NOW)
    reports.report([healthy(f"d{number}", timeout) for number, timeout in enumerate(timeouts)], NOW)
    assert reports.overdue_seconds(later(seconds)) is None
    assert reports.overdue_seconds(later(seconds + 1)) == seconds + 1


@pytest.mark.behaviour("N-22")
def test_overdue_is_reported_once_until_the_next_report() -> None:
    reports = HealthReports(repeats=False)
    assert reports.overdue_seconds(later(1000)) is None
    reports.report([healthy("a")], NOW)
    assert reports.overdue_seconds(later(31)) == 31
    assert reports.overdue_seconds(later(60)) is None
    reports.report([healthy("a")], later(60))
    assert reports.overdue_seconds(later(91)) == 31
