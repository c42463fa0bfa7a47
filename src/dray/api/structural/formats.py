"""The string formats of custom resource schemas."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable, Mapping
from datetime import date
from typing import Final
from urllib.parse import urlsplit

from dray.api.names import dns1123_label, dns1123_subdomain

_HOSTNAME: Final = re.compile(
    r"([a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)(\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*"
)
_HOSTNAME_LENGTH_MAX: Final = 255
_DATE_TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\d[T ]([01]\d|2[0-3]):[0-5]\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?", re.IGNORECASE
)
_DURATION: Final = re.compile(
    r"[-+]?(\d+(\.\d+)?\s*(ns|us|µs|μs|ms|s|m|h|d|w|nanoseconds?|microseconds?|milliseconds?|seconds?|minutes?|hours?|days?|weeks?)\s*)+"
)


def _matches(pattern: str) -> Callable[[str], bool]:
    matches = re.compile(pattern, re.IGNORECASE).fullmatch
    return lambda text: matches(text) is not None


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return len(text) == len("2006-01-02")


def _is_date_time(text: str) -> bool:
    match = _DATE_TIME.fullmatch(text)
    return match is not None and _is_date(text[:10])


def _is_bytes(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _is_address(version: int) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            return "%" not in text and ipaddress.ip_address(text).version == version
        except ValueError:
            return False

    return check


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return "/" in text and "%" not in text


def _is_uri(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return bool(parts.scheme) or text.startswith("/")


def _is_email(text: str) -> bool:
    user, _, host = text.rpartition("@")
    return bool(user) and " " not in user and _is_hostname(host)


def _is_hostname(text: str) -> bool:
    return len(text) <= _HOSTNAME_LENGTH_MAX and _HOSTNAME.fullmatch(text) is not None


_HEX4: Final = "[0-9a-f]{4}"
_UUID: Final = "[0-9a-f]{8}-?" + _HEX4 + "-?%s-?%s-?[0-9a-f]{12}"
_BYTE: Final = r"\s*(25[0-5]|2[0-4]\d|1\d\d|\d?\d)\s*"

# Other formats (int32, double, any custom one) are not validated.
FORMATS: Final[Mapping[str, Callable[[str], bool]]] = {
    "bsonobjectid": _matches("[0-9a-f]{24}"),
    "byte": _is_bytes,
    "cidr": _is_network,
    "date": _is_date,
    "date-time": _is_date_time,
    "datetime": _is_date_time,
    "duration": lambda text: text == "0" or _DURATION.fullmatch(text) is not None,
    "email": _is_email,
    "hexcolor": _matches("#?([0-9a-f]{3}|[0-9a-f]{6})"),
    "hostname": _is_hostname,
    "ipv4": _is_address(4),
    "ipv6": _is_address(6),
    "k8s-long-name": lambda text: not dns1123_subdomain(text),
    "k8s-short-name": lambda text: not dns1123_label(text),
    "mac": _matches("([0-9a-f]{2}[:-]){5}[0-9a-f]{2}|([0-9a-f]{4}[.]){2}[0-9a-f]{4}"),
    "rgbcolor": _matches(rf"rgb\({_BYTE},{_BYTE},{_BYTE}\)"),
    "ssn": _matches(r"\d{3}[- ]?\d{2}[- ]?\d{4}"),
    "uri": _is_uri,
    "uuid": _matches(_UUID % (_HEX4, _HEX4)),
    "uuid3": _matches(_UUID % ("3[0-9a-f]{3}", _HEX4)),
    "uuid4": _matches(_UUID % ("4[0-9a-f]{3}", "[89ab][0-9a-f]{3}")),
    "uuid5": _matches(_UUID % ("5[0-9a-f]{3}", "[89ab][0-9a-f]{3}")),
}
