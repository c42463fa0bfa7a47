"""The functions and operators of the language definition."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

from dray.cel import runtime, types
from dray.cel.errors import CELRuntimeError
from dray.cel.library import times
from dray.cel.runtime import fail, size_of, traversal
from dray.cel.signatures import Registry, kind_of_class, opaque_name
from dray.cel.types import Kind, Type
from dray.cel.values import INT_MAX, INT_MIN, UINT_MAX, Duration, Timestamp, Uint

REGISTRY: Final = Registry()
_declare = REGISTRY.declare

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_DOUBLE: Final = re.compile(
    r"[+-]?([0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?|inf(inity)?|nan)", re.I
)
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})
# From here on Go prints doubles with an exponent.
_EXPONENT_FROM: Final = 6
_EXPONENT_BELOW: Final = -4


def _conversion_error(source: str, target: str) -> CELRuntimeError:
    return CELRuntimeError(f"type conversion error from '{source}' to '{target}'")


def _double_to_int(value: float) -> int:
    if math.isnan(value) or not INT_MIN < value < INT_MAX:
        fail("integer overflow")
    return int(value)


def _double_to_uint(value: float) -> Uint:
    if math.isnan(value) or not 0 <= value < UINT_MAX:
        fail("unsigned integer overflow")
    return Uint(value)


def _string_to_int(text: str) -> int:
    if _INTEGER.fullmatch(text) is None or not INT_MIN <= int(text) <= INT_MAX:
        raise _conversion_error("string", "int")
    return int(text)


def _string_to_uint(text: str) -> Uint:
    if _INTEGER.fullmatch(text) is None or text[0] in "+-" or int(text) > UINT_MAX:
        raise _conversion_error("string", "uint")
    return Uint(text)


def _string_to_double(text: str) -> float:
    if _DOUBLE.fullmatch(text) is None:
        raise _conversion_error("string", "double")
    return float(text)


def _string_to_bool(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise _conversion_error("string", "bool")


def _bytes_to_string(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CELRuntimeError("invalid UTF-8 in bytes, cannot convert to string") from None


def double_to_string(value: float) -> str:
    """Return the shortest text that parses to the same double, formatted as Go's %g."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    mantissa, _, exponent_text = f"{value!r}".partition("e")
    digits, exponent = _decompose(mantissa, int(exponent_text or 0))
    sign = "-" if value < 0 else ""
    if exponent < _EXPONENT_BELOW or exponent >= _EXPONENT_FROM:
        tail = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{tail}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    fraction = digits[exponent + 1 :]
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"


def _decompose(mantissa: str, exponent: int) -> tuple[str, int]:
    """Return the significant digits, and the power of ten of the first one."""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    fraction = fraction.rstrip("0")
    digits = (whole + fraction).lstrip("0")
    leading = len(whole + fraction) - len(digits)
    return digits.rstrip("0") or "0", exponent + len(whole) - 1 - leading


def type_of_value(value: Any) -> Type:
    """Evaluate `type(value)`."""
    kind = kind_of_class(type(value))
    if kind is Kind.OPAQUE:
        name = opaque_name(type(value))
        return types.TYPE_NAMES.get(name) or Type(Kind.OPAQUE, name)
    return _TYPE_OF_KIND[kind]


_TYPE_OF_KIND: Final = {shown.kind: shown for shown in types.TYPE_NAMES.values() if shown.kind is not Kind.OPAQUE}


def _traverse_first(value: Any, *_: Any) -> int:
    return traversal(size_of(value))


def _traverse_smaller(left: Any, right: Any) -> int:
    return traversal(min(size_of(left), size_of(right)))


def _traverse_both(left: Any, right: Any) -> int:
    return traversal(size_of(left) + size_of(right))


def _traverse_longer(text: str, part: str) -> int:
    """Return the cost of a prefix test, which Kubernetes charges by the text and not by the prefix."""
    return traversal(max(len(text), len(part)))


def _product(text: str, part: str) -> int:
    return traversal(len(text)) * traversal(len(part))


_declare("!_(bool) -> bool", lambda value: not value)
_declare("-_(int) -> int", runtime.negate_int)
_declare("-_(double) -> double", lambda value: -value)
_declare("_==_(A, A) -> bool", runtime.equals, budgeted=True)
_declare("_!=_(A, A) -> bool", runtime.not_equals, budgeted=True)
_declare("@in(A, list(A)) -> bool", runtime.contains_in_list, budgeted=True)
_declare("@in(A, map(A, B)) -> bool", runtime.contains_in_map)
_declare("_[_](list(A), int) -> A", runtime.index_list)
_declare("_[_](map(A, B), A) -> B", runtime.index_map)
_declare("_[_](optional(list(A)), int) -> optional(A)", runtime.optional_index)
_declare("_[_](optional(map(A, B)), A) -> optional(B)", runtime.optional_index)
_declare("_[?_](list(A), int) -> optional(A)", runtime.optional_index)
_declare("_[?_](map(A, B), A) -> optional(B)", runtime.optional_index)
_declare("_[?_](optional(list(A)), int) -> optional(A)", runtime.optional_index)
_declare("_[?_](optional(map(A, B)), A) -> optional(B)", runtime.optional_index)

_declare("_+_(int, int) -> int", runtime.add_int)
_declare("_+_(uint, uint) -> uint", lambda left, right: runtime.check_uint(left + right))
_declare("_+_(double, double) -> double", lambda left, right: left + right)
_declare("_+_(string, string) -> string", lambda left, right: left + right, charge=_traverse_both)
_declare("_+_(bytes, bytes) -> bytes", lambda left, right: left + right, charge=_traverse_both)
_declare("_+_(list(A), list(A)) -> list(A)", runtime.concat_lists, budgeted=True)
_declare("_+_(timestamp, duration) -> timestamp", runtime.add_time)
_declare("_+_(duration, timestamp) -> timestamp", runtime.add_time)
_declare("_+_(duration, duration) -> duration", runtime.add_time)
_declare("_-_(int, int) -> int", runtime.subtract_int)
_declare("_-_(uint, uint) -> uint", lambda left, right: runtime.check_uint(left - right))
_declare("_-_(double, double) -> double", lambda left, right: left - right)
_declare("_-_(timestamp, timestamp) -> duration", runtime.subtract_time)
_declare("_-_(timestamp, duration) -> timestamp", runtime.subtract_time)
_declare("_-_(duration, duration) -> duration", runtime.subtract_time)
_declare("_*_(int, int) -> int", runtime.multiply_int)
_declare("_*_(uint, uint) -> uint", lambda left, right: runtime.check_uint(left * right))
_declare("_*_(double, double) -> double", lambda left, right: left * right)
_declare("_/_(int, int) -> int", runtime.divide_int)
_declare("_/_(uint, uint) -> uint", runtime.divide_uint)
_declare("_/_(double, double) -> double", runtime.divide_double)
_declare("_%_(int, int) -> int", runtime.modulo_int)
_declare("_%_(uint, uint) -> uint", runtime.modulo_uint)


def _declare_order() -> None:
    compare = {
        "_<_": lambda left, right: left < right,
        "_<=_": lambda left, right: left <= right,
        "_>_": lambda left, right: left > right,
        "_>=_": lambda left, right: left >= right,
    }
    numbers = ("int", "uint", "double")
    for name, implementation in compare.items():
        for kind in ("bool", "timestamp", "duration"):
            _declare(f"{name}({kind}, {kind}) -> bool", implementation)
        for kind in ("string", "bytes"):
            _declare(f"{name}({kind}, {kind}) -> bool", implementation, charge=_traverse_smaller)
        for left in numbers:
            for right in numbers:
                mixed = (left == "double") is not (right == "double")
                _declare(f"{name}({left}, {right}) -> bool", _rounded(implementation) if mixed else implementation)


def _rounded(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Return a comparison of an integer with a double, for which Go rounds the integer."""
    return lambda left, right: compare(float(left), float(right))


_declare_order()

for _kind in ("string", "bytes", "list(A)", "map(A, B)"):
    _declare(f"size({_kind}) -> int", len)
    _declare(f"{_kind}::size() -> int", len)

_declare("type(A) -> type(A)", type_of_value)
_declare("dyn(A) -> dyn", lambda value: value)

_declare("bool(bool) -> bool", lambda value: value)
_declare("bool(string) -> bool", _string_to_bool)
_declare("bytes(bytes) -> bytes", lambda value: value)
_declare("bytes(string) -> bytes", lambda value: value.encode(), charge=_traverse_first)
_declare("double(double) -> double", lambda value: value)
_declare("double(int) -> double", float)
_declare("double(uint) -> double", float)
_declare("double(string) -> double", _string_to_double, charge=_traverse_first)
_declare("int(int) -> int", lambda value: value)
_declare("int(uint) -> int", lambda value: runtime.check_int(int(value)))
_declare("int(double) -> int", _double_to_int)
_declare("int(string) -> int", _string_to_int)
_declare("int(timestamp) -> int", lambda value: value.nanos // 1_000_000_000)
_declare("int(duration) -> int", lambda value: value.nanos)
_declare("uint(uint) -> uint", lambda value: value)
_declare("uint(int) -> uint", runtime.check_uint)
_declare("uint(double) -> uint", _double_to_uint)
_declare("uint(string) -> uint", _string_to_uint)
_declare("string(string) -> string", lambda value: value)
_declare("string(bool) -> string", lambda value: "true" if value else "false")
_declare("string(int) -> string", str)
_declare("string(uint) -> string", lambda value: str(int(value)))
_declare("string(double) -> string", double_to_string)
_declare("string(bytes) -> string", _bytes_to_string, charge=_traverse_first)
_declare("string(timestamp) -> string", times.timestamp_to_string)
_declare("string(duration) -> string", times.duration_to_string)
_declare("timestamp(timestamp) -> timestamp", lambda value: value)
_declare("timestamp(string) -> timestamp", times.parse_timestamp)
_declare("timestamp(int) -> timestamp", lambda value: Timestamp(value * 1_000_000_000))
_declare("duration(duration) -> duration", lambda value: value)
_declare("duration(string) -> duration", times.parse_duration)
_declare("duration(int) -> duration", Duration)

_declare("string::contains(string) -> bool", lambda text, part: part in text, charge=_product)
_declare("string::startsWith(string) -> bool", lambda text, part: text.startswith(part), charge=_traverse_longer)
_declare("string::endsWith(string) -> bool", lambda text, part: text.endswith(part), charge=_traverse_longer)

for _name, _getter in times.GETTERS.items():
    _declare(f"timestamp::{_name}() -> int", _getter)
    _declare(f"timestamp::{_name}(string) -> int", _getter)
for _name, _divisor in times.DURATION_GETTERS.items():
    _declare(f"duration::{_name}() -> int", lambda value, divisor=_divisor: times.whole_units(value, divisor))
