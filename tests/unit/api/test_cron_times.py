"""When cron schedules are due, with time zones and daylight saving time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api.cron import latest_time, next_time, parse_schedule

BERLIN = ZoneInfo("Europe/Berlin")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.behaviour("ST-20", "ST-21")
@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        ("* * * * *", "2026-01-01T00:00:30", "2026-01-01T00:01:00"),
        ("*/15 * * * *", "2026-01-01T00:46:00", "2026-01-01T01:00:00"),
        ("30 9 * * mon-fri", "2026-01-02T10:00:00", "2026-01-05T09:30:00"),
        ("0 0 29 2 *", "2026-03-01T00:00:00", "2028-02-29T00:00:00"),
        # Both day fields are given: either may match.
        ("0 0 13 * fri", "2026-02-01T00:00:00", "2026-02-06T00:00:00"),
        ("@monthly", "2026-12-31T23:59:59", "2027-01-01T00:00:00"),
        ("@every 90s", "2026-01-01T00:00:00", "2026-01-01T00:01:30"),
    ],
)
def test_next_time(schedule: str, after: str, expected: str) -> None:
    assert next_time(parse_schedule(schedule), utc(after), UTC) == utc(expected)


def test_a_day_that_never_comes_has_no_time() -> None:
    assert next_time(parse_schedule("0 0 30 2 *"), utc("2026-01-01T00:00:00"), UTC) is None


@pytest.mark.behaviour("ST-20")
def test_a_time_that_daylight_saving_skips_is_skipped() -> None:
    # On 29 March 2026 the clock goes from 2:00 to 3:00.
    found = next_time(parse_schedule("30 2 * * *"), utc("2026-03-28T12:00:00"), BERLIN)
    assert found is not None
    assert found.isoformat() == "2026-03-30T02:30:00+02:00"


@pytest.mark.behaviour("ST-20")
def test_a_time_that_daylight_saving_repeats_is_repeated() -> None:
    # On 25 October 2026 the clock goes from 3:00 back to 2:00.
    first = next_time(parse_schedule("30 2 * * *"), utc("2026-10-24T12:00:00"), BERLIN)
    assert first is not None
    second = next_time(parse_schedule("30 2 * * *"), first, BERLIN)
    assert second is not None
    assert second.astimezone(UTC) - first.astimezone(UTC) == timedelta(hours=1)


@pytest.mark.behaviour("ST-21")
@settings(deadline=None)
@given(
    st.sampled_from(["* * * * *", "*/7 3-5 * * *", "0 12 1,15 * *", "0 0 * * sun", "@every 35m", "5 2 28-31 3 *"]),
    st.timedeltas(timedelta(0), timedelta(days=365)),
    st.timedeltas(timedelta(0), timedelta(days=40)),
)
def test_the_latest_time_is_the_last_of_all_times(text: str, offset: timedelta, length: timedelta) -> None:
    schedule, start = parse_schedule(text), utc("2026-01-01T00:00:00") + offset
    until = start + min(length, timedelta(days=1)) if text.startswith("* ") else start + length
    expected = None
    following = next_time(schedule, start, BERLIN)
    while following is not None and following <= until:
        expected = following
        following = next_time(schedule, following, BERLIN)
    assert latest_time(schedule, start, until, BERLIN) == expected
