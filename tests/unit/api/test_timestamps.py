from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from dray.api.timestamps import (
    TimeFormatError,
    format_duration,
    format_duration_nanoseconds,
    format_micro_time,
    format_time,
    parse_duration,
    parse_duration_nanoseconds,
    parse_time,
    seconds_after,
)

MOMENT = datetime(2026, 11, 15, 21, 37, 1, 250_000, tzinfo=UTC)


def test_format() -> None:
    assert format_time(MOMENT) == "2026-11-15T21:37:01Z"
    assert format_micro_time(MOMENT) == "2026-11-15T21:37:01.250000Z"
    elsewhere = MOMENT.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert format_time(elsewhere) == "2026-11-15T21:37:01Z"
    assert format_time(datetime(1, 1, 1, tzinfo=UTC)) == "0001-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "text", ["2026-11-15T21:37:01.25Z", "2026-11-15T23:37:01.250+02:00", "2026-11-15T21:37:01.250000999Z"]
)
def test_parse(text: str) -> None:
    assert parse_time(text) == MOMENT


@pytest.mark.parametrize(
    "text",
    ["", "2026-11-15", "2026-11-15 21:37:01Z", "2026-11-15T21:37:01", "2026-11-15t21:37:01z", "2026-02-30T00:00:00Z"],
)
def test_parse_is_strict(text: str) -> None:
    with pytest.raises(TimeFormatError):
        parse_time(text)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_beyond_the_calendar_in_utc_is_none(text: str) -> None:
    with pytest.raises(TimeFormatError, match="year out of range"):
        parse_time(text)


@pytest.mark.parametrize(
    ("text", "nanoseconds", "canonical"),
    [
        ("0", 0, "0s"),
        ("1h30m", 5_400_000_000_000, "1h30m0s"),
        ("-1.5s", -1_500_000_000, "-1.5s"),
        ("100ms", 100_000_000, "100ms"),
        ("1500us", 1_500_000, "1.5ms"),
        (".5m", 30_000_000_000, "30s"),
        ("3ns", 3, "3ns"),
        ("90s", 90_000_000_000, "1m30s"),
    ],
)
def test_durations(text: str, nanoseconds: int, canonical: str) -> None:
    assert parse_duration_nanoseconds(text) == nanoseconds
    assert format_duration_nanoseconds(nanoseconds) == canonical


def test_durations_as_timedelta() -> None:
    assert parse_duration("1h0.5s") == timedelta(hours=1, milliseconds=500)
    assert format_duration(timedelta(minutes=2, seconds=3)) == "2m3s"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", 'time: invalid duration ""'),
        ("1", 'time: missing unit in duration "1"'),
        ("1x", 'time: unknown unit "x" in duration "1x"'),
        ("s", 'time: invalid duration "s"'),
        ("9999999h", 'time: invalid duration "9999999h"'),
    ],
)
def test_duration_errors(text: str, error: str) -> None:
    with pytest.raises(TimeFormatError) as caught:
        parse_duration_nanoseconds(text)
    assert str(caught.value) == error


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (1.5, datetime(2026, 1, 1, 0, 0, 1, 500_000, UTC)),
        (-86400, datetime(2025, 12, 31, tzinfo=UTC)),
        (1e12, datetime.max.replace(tzinfo=UTC)),
        ((1 << 63) - 1, datetime.max.replace(tzinfo=UTC)),
        (-(1 << 63), datetime.min.replace(tzinfo=UTC)),
    ],
)
def test_seconds_after_end_with_the_times(seconds: float, expected: datetime) -> None:
    assert seconds_after(datetime(2026, 1, 1, tzinfo=UTC), seconds) == expected
