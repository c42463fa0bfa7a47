"""Strict decoding of scalars as in Go: each check returns the value to keep, or raises Go's error."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, TypeAlias

from dray.api.quantity import Quantity, QuantityError
from dray.api.schema.model import Scalar
from dray.api.timestamps import TimeFormatError, format_micro_time, format_time, parse_time

# A value checked against a type: gives the value to keep, notes unknown fields in the list.
Check: TypeAlias = Callable[[Any, list[str]], Any]

_INT32: Final = (-(2**31), 2**31 - 1)
_INT64: Final = (-(2**63), 2**63 - 1)


class DecodeError(ValueError):
    """A document that does not match its type; the text is that of Go's JSON decoder."""


class MismatchError(Exception):
    """A value of the wrong type, raised to where its path is known."""

    def __init__(self, go_kind: str, go_type: str) -> None:
        super().__init__()
        self.go_kind = go_kind
        self.go_type = go_type
        self.struct = ""
        self.fields: list[str] = []

    def text(self) -> str:
        """Return the text of Go's error."""
        if not self.struct:
            return f"json: cannot unmarshal {self.go_kind} into Go value of type {self.go_type}"
        path = ".".join(reversed(self.fields))
        return f"json: cannot unmarshal {self.go_kind} into Go struct field {self.struct}.{path} of type {self.go_type}"


def _keep(value: Any, unknown: list[str]) -> Any:
    return value


def _check_string(value: Any, unknown: list[str]) -> Any:
    if type(value) is str:
        return value
    raise MismatchError(go_kind(value), "string")


def _check_bool(value: Any, unknown: list[str]) -> Any:
    if type(value) is bool:
        return value
    raise MismatchError(go_kind(value), "bool")


def _check_integer(low: int, high: int, go_type: str) -> Check:
    def check(value: Any, unknown: list[str]) -> Any:
        if type(value) is int and low <= value <= high:
            return value
        number = type(value) is int or type(value) is float
        raise MismatchError(f"number {value}" if number else go_kind(value), go_type)

    return check


def _check_double(value: Any, unknown: list[str]) -> Any:
    if type(value) is int or type(value) is float:
        return value
    raise MismatchError(go_kind(value), "float64")


def _check_bytes(value: Any, unknown: list[str]) -> Any:
    if type(value) is not str:
        raise MismatchError(go_kind(value), "[]uint8")
    try:
        base64.b64decode(value.encode(), validate=True)
    except (binascii.Error, ValueError):
        # Go ignores line breaks inside base64.
        stripped = value.replace("\r", "").replace("\n", "")
        if stripped == value:
            raise DecodeError(f"illegal base64 data at input byte {_base64_fault(value)}") from None
        return _check_bytes(stripped, unknown)
    return value


def _base64_fault(text: str) -> int:
    match = re.search(r"[^A-Za-z0-9+/]", text)
    if match is None:
        return len(text) - len(text) % 4 if len(text) % 4 else len(text)
    return match.start()


def _check_quantity(value: Any, unknown: list[str]) -> Any:
    try:
        text = _quantity_text(value) if type(value) is str else str(Quantity.parse(_number(value)))
    except QuantityError as error:
        raise DecodeError(str(error)) from None
    return value if text == value else text


# The same quantities recur in most objects.
@lru_cache(maxsize=4096)
def _quantity_text(text: str) -> str:
    return str(Quantity.parse(text))


def _number(value: Any) -> Any:
    return value if type(value) is int or type(value) is float else str(value)


def _check_int_or_string(value: Any, unknown: list[str]) -> Any:
    if type(value) is str:
        return value
    return _check_int32(value, unknown)


_TIME_TEXT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_MICRO_TIME_TEXT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)


def _check_time(value: Any, unknown: list[str]) -> Any:
    if type(value) is not str:
        raise DecodeError(f"json: cannot unmarshal {go_kind(value)} into Go value of type string")
    text = _time_text(value)
    return value if text == value else text


def _check_micro_time(value: Any, unknown: list[str]) -> Any:
    if type(value) is not str:
        raise DecodeError(f"json: cannot unmarshal {go_kind(value)} into Go value of type string")
    text = _micro_time_text(value)
    return value if text == value else text


# An object's times recur in each of its writes.
@lru_cache(maxsize=4096)
def _time_text(text: str) -> str:
    moment = _moment(text)
    return text if _TIME_TEXT.fullmatch(text) else format_time(moment)


@lru_cache(maxsize=4096)
def _micro_time_text(text: str) -> str:
    moment = _moment(text)
    return text if _MICRO_TIME_TEXT.fullmatch(text) else format_micro_time(moment)


def _moment(text: str) -> datetime:
    try:
        return parse_time(text)
    except TimeFormatError as error:
        raise DecodeError(str(error)) from None


_check_int32: Final = _check_integer(*_INT32, "int32")

SCALARS: Final[dict[Scalar, Check]] = {
    Scalar.STRING: _check_string,
    Scalar.INT32: _check_int32,
    Scalar.INT64: _check_integer(*_INT64, "int64"),
    Scalar.DOUBLE: _check_double,
    Scalar.BOOL: _check_bool,
    Scalar.BYTES: _check_bytes,
    Scalar.TIME: _check_time,
    Scalar.MICRO_TIME: _check_micro_time,
    Scalar.DURATION: _check_string,
    Scalar.QUANTITY: _check_quantity,
    Scalar.INT_OR_STRING: _check_int_or_string,
    Scalar.ANY: _keep,
}


def go_kind(value: Any) -> str:
    """Return Go's name for the JSON type of a value."""
    return _GO_KINDS.get(type(value), "number")


_GO_KINDS: Final[dict[type, str]] = {str: "string", bool: "bool", list: "array", dict: "object"}
