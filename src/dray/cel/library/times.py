"""Timestamps and durations: parsing, formatting and components."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Final

from dray.cel.errors import CELRuntimeError
from dray.cel.runtime import fail
from dray.cel.values import NANOS, Duration, Timestamp

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9})[0-9]*)?"
    r"(?:([Zz])|([+-])([0-9]{2}):([0-9]{2}))",
    re.ASCII,
)
_DURATION: Final = re.compile(r"[+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+")
_DURATION_PART: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")
_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": NANOS,
    "m": 60 * NANOS,
    "h": 3600 * NANOS,
}
_OFFSET: Final = re.compile(r"([+-]?)([0-9]{2}):([0-9]{2})", re.ASCII)
# Longer texts are never durations that fit int64.
_DURATION_LENGTH_MAX: Final = 256
_ZONE_CACHE_SIZE: Final = 64


def parse_timestamp(text: str) -> Timestamp:
    """Parse an RFC 3339 time."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise _timestamp_error()
    year, month, day, hour, minute, second = (int(match[i]) for i in range(1, 7))
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        raise _timestamp_error() from None
    nanos = int((match[7] or "").ljust(9, "0"))
    offset = 0
    if match[8] is None:
        offset = int(match[10]) * 60 + int(match[11])
        offset = -offset if match[9] == "-" else offset
    seconds = (moment - _EPOCH) // timedelta(seconds=1) - offset * 60
    return Timestamp(seconds * NANOS + nanos)


def _timestamp_error() -> CELRuntimeError:
    return CELRuntimeError("type conversion error from 'string' to 'google.protobuf.Timestamp'")


def timestamp_to_string(moment: Timestamp) -> str:
    """Format as RFC 3339 in UTC, with as much fraction as needed."""
    seconds, nanos = divmod(moment.nanos, NANOS)
    text = (_EPOCH + timedelta(seconds=seconds)).strftime("%m-%dT%H:%M:%S")
    year = (_EPOCH + timedelta(seconds=seconds)).year
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    return f"{year:04d}-{text}{fraction}Z"


def parse_duration(text: str) -> Duration:
    """Parse a Go duration such as `1h30m` or `1.5s`."""
    if text in ("0", "+0", "-0"):
        return Duration(0)
    if len(text) > _DURATION_LENGTH_MAX or _DURATION.fullmatch(text) is None:
        raise CELRuntimeError("type conversion error from 'string' to 'google.protobuf.Duration'")
    nanos = 0
    for part in _DURATION_PART.finditer(text):
        unit = _UNITS[part[3]]
        fraction = part[2] or ""
        nanos += int(part[1] or 0) * unit + int(fraction or 0) * unit // 10 ** len(fraction)
    return Duration(-nanos if text[0] == "-" else nanos)


def duration_to_string(span: Duration) -> str:
    """Format in seconds."""
    whole, nanos = divmod(abs(span.nanos), NANOS)
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    return f"{'-' if span.nanos < 0 else ''}{whole}{fraction}s"


@lru_cache(maxsize=_ZONE_CACHE_SIZE)
def _zone(name: str) -> tzinfo:
    match = _OFFSET.fullmatch(name)
    if match is not None:
        minutes = int(match[2]) * 60 + int(match[3])
        return timezone(timedelta(minutes=-minutes if match[1] == "-" else minutes))
    if name in ("", "UTC"):
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise CELRuntimeError(f"unknown time zone {name}") from None


def _local(moment: Timestamp, zone: str) -> datetime:
    try:
        return (_EPOCH + timedelta(seconds=moment.nanos // NANOS)).astimezone(_zone(zone))
    except (OverflowError, ValueError):
        return fail("range error: timestamp overflow")


def _getter(read: Callable[[datetime], int]) -> Callable[..., int]:
    return lambda moment, zone="UTC": read(_local(moment, zone))


GETTERS: Final[Mapping[str, Callable[..., int]]] = {
    "getFullYear": _getter(lambda local: local.year),
    "getMonth": _getter(lambda local: local.month - 1),
    "getDayOfYear": _getter(lambda local: local.timetuple().tm_yday - 1),
    "getDayOfMonth": _getter(lambda local: local.day - 1),
    "getDate": _getter(lambda local: local.day),
    "getDayOfWeek": _getter(lambda local: local.isoweekday() % 7),
    "getHours": _getter(lambda local: local.hour),
    "getMinutes": _getter(lambda local: local.minute),
    "getSeconds": _getter(lambda local: local.second),
    "getMilliseconds": lambda moment, zone="UTC": moment.nanos // 1_000_000 % 1000,
}
DURATION_GETTERS: Final[Mapping[str, int]] = {
    "getHours": 3600 * NANOS,
    "getMinutes": 60 * NANOS,
    "getSeconds": NANOS,
    "getMilliseconds": 1_000_000,
}


def whole_units(span: Duration, divisor: int) -> int:
    """Return the number of whole units in the duration, rounded towards zero."""
    whole = abs(span.nanos) // divisor
    return -whole if span.nanos < 0 else whole
