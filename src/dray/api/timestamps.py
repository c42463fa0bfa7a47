"""Times and durations as Kubernetes writes them: RFC 3339 in UTC, and Go's duration text.

Nothing here reads a clock; time is an argument.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

import msgspec

_RFC3339: Final = re.compile(
    r"\d{4}-(?:0[1-9]|1[0-2])-\d{2}T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:[.,]\d+)?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
# Go's name of the layout in errors.
_LAYOUT: Final = "2006-01-02T15:04:05Z07:00"

_DURATION_PART: Final = re.compile(r"(\d*)(?:\.(\d*))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_UNIT_NANOSECONDS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
# Go's durations are signed 64-bit nanoseconds.
_DURATION_MAX: Final = (1 << 63) - 1
# Far more than any duration needs, and far less than Python takes to convert.
_DURATION_LENGTH_MAX: Final = 256
_SECOND: Final = 1_000_000_000
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)
_MINUTE_SECONDS, _HOUR_SECONDS, _DAY_SECONDS = 60, 3600, 86400


class TimeFormatError(ValueError):
    """Text that is not a time or duration."""


def format_time(moment: datetime) -> str:
    """Format with whole seconds in UTC, as `metav1.Time` does."""
    # The JSON encoder is several times faster than `isoformat`.
    text: str = msgspec.to_builtins(moment if moment.tzinfo is UTC else moment.astimezone(UTC))
    return text[:19] + "Z"


def format_micro_time(moment: datetime) -> str:
    """Format with six fractional digits in UTC, as `metav1.MicroTime` does."""
    return f"{format_time(moment)[:-1]}.{moment.microsecond:06}Z"


# An object's times recur in each of its writes.
@lru_cache(maxsize=4096)
def parse_time(text: str) -> datetime:
    """Parse an RFC 3339 time with `Z` or an offset, strictly; the result is in UTC."""
    if not _RFC3339.fullmatch(text):
        raise TimeFormatError(f'parsing time "{text}" as "{_LAYOUT}": cannot parse "{text}" as "2006"')
    try:
        moment = datetime.fromisoformat(text.replace(",", "."))
        # At the ends of the calendar, the time in UTC can be beyond it.
        return moment.astimezone(UTC)
    except ValueError:
        raise TimeFormatError(f'parsing time "{text}": day out of range') from None
    except OverflowError:
        raise TimeFormatError(f'parsing time "{text}": year out of range') from None


def seconds_after(moment: datetime, seconds: float) -> datetime:
    """Return the moment so many seconds later; the last or first one of all, if that is beyond what times can say.

    Seconds in objects have 64 bits, and times of objects go up to the last one: their sum must not stop anybody.
    """
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:
        return _LAST if seconds > 0 else _FIRST


def parse_duration_nanoseconds(text: str) -> int:
    """Parse a Go duration such as `1h30m`, `-1.5s` or `0`, exactly."""
    body = text[1:] if text[:1] in ("-", "+") else text
    if body == "0":
        return 0
    if len(body) > _DURATION_LENGTH_MAX:
        raise TimeFormatError(f'time: invalid duration "{text[:_DURATION_LENGTH_MAX]}..."')
    total, position = 0, 0
    while position < len(body):
        match = _DURATION_PART.match(body, position)
        if match is None or not (match[1] or match[2]):
            raise TimeFormatError(_duration_problem(text, body[position:]))
        unit = _UNIT_NANOSECONDS[match[3]]
        total += int(match[1] or 0) * unit
        if match[2]:
            total += int(match[2]) * unit // 10 ** len(match[2])
        position = match.end()
    if not body or total > _DURATION_MAX:
        raise TimeFormatError(f'time: invalid duration "{text}"')
    return -total if text[0] == "-" else total


def _duration_problem(text: str, rest: str) -> str:
    number = re.match(r"[\d.]+", rest)
    if number is None or number[0] == ".":
        return f'time: invalid duration "{text}"'
    unit = re.match(r"[^\d.]*", rest[number.end() :])
    if unit is None or not unit[0]:
        return f'time: missing unit in duration "{text}"'
    return f'time: unknown unit "{unit[0]}" in duration "{text}"'


def parse_duration(text: str) -> timedelta:
    """Parse a Go duration, truncated to microseconds."""
    return timedelta(microseconds=int(parse_duration_nanoseconds(text) / 1000))


def format_duration_nanoseconds(nanoseconds: int) -> str:
    """Format as Go does: `1h30m0s`, `1.5s`, `100ms`, `0s`."""
    sign, amount = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if amount == 0:
        return "0s"
    if amount < _SECOND:
        return sign + _format_small(amount)
    minutes, rest = divmod(amount, 60 * _SECOND)
    hours, minutes = divmod(minutes, 60)
    head = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{head}{_decimal(rest, _SECOND)}s"


def _format_small(amount: int) -> str:
    if amount < _UNIT_NANOSECONDS["us"]:
        return f"{amount}ns"
    if amount < _UNIT_NANOSECONDS["ms"]:
        return f"{_decimal(amount, 1_000)}µs"
    return f"{_decimal(amount, 1_000_000)}ms"


def _decimal(amount: int, unit: int) -> str:
    whole, rest = divmod(amount, unit)
    if not rest:
        return str(whole)
    digits = str(rest).rjust(len(str(unit)) - 1, "0").rstrip("0")
    return f"{whole}.{digits}"


def format_duration(duration: timedelta) -> str:
    """Format a duration as Go does."""
    return format_duration_nanoseconds(duration // timedelta(microseconds=1) * 1000)


def age(since: datetime | None, now: datetime) -> str:
    """Return the time since then in kubectl's short form: 12s, 5m, 3h, 4d."""
    if since is None:
        return ""
    seconds = max(int((now - since).total_seconds()), 0)
    for unit, letter in ((_DAY_SECONDS, "d"), (_HOUR_SECONDS, "h"), (_MINUTE_SECONDS, "m")):
        if seconds >= 2 * unit or (unit == _DAY_SECONDS and seconds >= unit):
            return f"{seconds // unit}{letter}"
    return f"{seconds}s"
