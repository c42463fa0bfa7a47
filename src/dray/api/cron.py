"""Cron schedules: five fields or a descriptor, with the errors of robfig/cron, which Kubernetes uses. Pure."""

from __future__ import annotations

import re
from datetime import MAXYEAR, UTC, datetime, timedelta, tzinfo
from typing import Final, NamedTuple

from dray.api.timestamps import seconds_after


class CronError(ValueError):
    """The text is not a schedule."""


class Schedule(NamedTuple):
    """The values that each field matches; `every` seconds for a schedule of constant delay."""

    minutes: frozenset[int] = frozenset()
    hours: frozenset[int] = frozenset()
    days_of_month: frozenset[int] = frozenset()
    months: frozenset[int] = frozenset()
    days_of_week: frozenset[int] = frozenset()
    # Whether a day must match both day fields, since one of them is `*`.
    is_any_day: bool = True
    every_seconds: int = 0


class _Bounds(NamedTuple):
    low: int
    high: int
    names: tuple[str, ...] = ()


_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: Final = (_Bounds(0, 59), _Bounds(0, 23), _Bounds(1, 31), _Bounds(1, 12, _MONTHS), _Bounds(0, 6, _DAYS))
_DESCRIPTORS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EVERY: Final = "@every "
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:h|m|s))+")
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(h|m|s)")
_UNITS: Final = {"h": 3600, "m": 60, "s": 1}


def parse_schedule(text: str) -> Schedule:
    """Parse a schedule; raises `CronError`."""
    if not text:
        raise CronError("empty spec string")
    if text.startswith("@"):
        if text.startswith(_EVERY):
            return _every(text)
        if text not in _DESCRIPTORS:
            raise CronError(f"unrecognized descriptor: {text}")
        text = _DESCRIPTORS[text]
    parts = text.split()
    if len(parts) != len(_FIELDS):
        raise CronError(f"expected exactly {len(_FIELDS)} fields, found {len(parts)}: [{' '.join(parts)}]")
    minutes, hours, days, months, weekdays = (_field(part, bounds) for part, bounds in zip(parts, _FIELDS, strict=True))
    stars = any(part[0] in "*?" for part in (parts[2], parts[4]))
    return Schedule(minutes, hours, days, months, weekdays, is_any_day=stars)


def _every(text: str) -> Schedule:
    duration = text.removeprefix(_EVERY)
    if not _DURATION.fullmatch(duration):
        raise CronError(f'failed to parse duration {text}: time: invalid duration "{duration}"')
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _DURATION_PART.findall(duration))
    return Schedule(every_seconds=max(int(seconds), 1))


def _field(text: str, bounds: _Bounds) -> frozenset[int]:
    return frozenset(value for part in filter(None, text.split(",")) for value in _range(part, bounds))


def _range(text: str, bounds: _Bounds) -> range:
    ends, *steps = text.split("/")
    low, *high = ends.split("-")
    if low in ("*", "?"):
        start, end = bounds.low, bounds.high
    else:
        start = _number(low, bounds)
        if len(high) > 1:
            raise CronError(f"too many hyphens: {text}")
        end = _number(high[0], bounds) if high else start
    if len(steps) > 1:
        raise CronError(f"too many slashes: {text}")
    step = 1
    if steps:
        step = _integer(steps[0])
        if not high and low not in ("*", "?"):
            # `N/step` means from N to the maximum.
            end = bounds.high
    _check(start, end, step, bounds, text)
    return range(start, end + 1, step)


def _check(start: int, end: int, step: int, bounds: _Bounds, text: str) -> None:
    if start < bounds.low:
        raise CronError(f"beginning of range ({start}) below minimum ({bounds.low}): {text}")
    if end > bounds.high:
        raise CronError(f"end of range ({end}) above maximum ({bounds.high}): {text}")
    if start > end:
        raise CronError(f"beginning of range ({start}) beyond end of range ({end}): {text}")
    if step == 0:
        raise CronError(f"step of range should be a positive number: {text}")


def _number(text: str, bounds: _Bounds) -> int:
    name = text.lower()
    if name in bounds.names:
        return bounds.low + bounds.names.index(name)
    return _integer(text)


def _integer(text: str) -> int:
    if not re.fullmatch(r"[-+]?[0-9]{1,9}", text):
        raise CronError(f'failed to parse int from {text}: strconv.Atoi: parsing "{text}": invalid syntax')
    if text.startswith("-"):
        raise CronError(f"negative number ({int(text)}) not allowed: {text}")
    return int(text)


# --- Times. ---

# As robfig/cron: a schedule without a time in so many years has none.
_YEARS_MAX: Final = 5
_MINUTE: Final = timedelta(minutes=1)
_HOUR: Final = timedelta(hours=1)


def next_time(schedule: Schedule, after: datetime, zone: tzinfo) -> datetime | None:
    """Return the first time of the schedule after an instant; None if there is none for five years.

    Wall clock times that daylight saving time skips are skipped, those that it repeats are repeated.
    """
    if schedule.every_seconds:
        return seconds_after(after.replace(microsecond=0), schedule.every_seconds)
    if after.year + _YEARS_MAX >= MAXYEAR:
        return None
    found = (after.astimezone(zone) + _MINUTE).replace(second=0, microsecond=0)
    last_year = found.year + _YEARS_MAX
    while found.year <= last_year:
        if found.month not in schedule.months:
            found = _midnight((found.replace(day=1) + timedelta(days=32)).replace(day=1), zone)
        elif not _is_day(schedule, found):
            found = _midnight(found + timedelta(days=1), zone)
        elif found.hour not in schedule.hours:
            found = _later(found.replace(minute=0), _HOUR, zone)
        elif found.minute not in schedule.minutes:
            found = _later(found, _MINUTE, zone)
        else:
            return found
    return None


def latest_time(schedule: Schedule, after: datetime, until: datetime, zone: tzinfo) -> datetime | None:
    """Return the last time of the schedule after one instant and not after another."""
    first = next_time(schedule, after, zone)
    if first is None or first > until:
        return None
    if schedule.every_seconds:
        return first + (until - first) // timedelta(seconds=schedule.every_seconds) * timedelta(
            seconds=schedule.every_seconds
        )
    # The next time grows with the instant that it follows: bisect for the last instant whose next time is not too late.
    low, high = after, until
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) / 2
        following = next_time(schedule, middle, zone)
        low, high = (middle, high) if following is not None and following <= until else (low, middle)
    return next_time(schedule, low, zone)


def _is_day(schedule: Schedule, day: datetime) -> bool:
    in_month = day.day in schedule.days_of_month
    in_week = day.isoweekday() % 7 in schedule.days_of_week
    return in_month and in_week if schedule.is_any_day else in_month or in_week


def _midnight(day: datetime, zone: tzinfo) -> datetime:
    """Return the beginning of a day; the first time after the gap where the wall clock skips midnight."""
    return day.replace(hour=0, minute=0, fold=0).astimezone(UTC).astimezone(zone)


def _later(time: datetime, step: timedelta, zone: tzinfo) -> datetime:
    """Add elapsed time, not wall clock time."""
    return (time.astimezone(UTC) + step).astimezone(zone)
