"""Evaluation by Google's implementation, with comparable results."""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings

from dray import cel as our_cel
from dray.cel import CELError, CELRuntimeError
from dray.cel import types as ours
from dray.cel.values import Duration, Timestamp, Uint

_T = cel.Type
VARIABLES = {
    "i": (ours.INT, _T.INT),
    "j": (ours.INT, _T.INT),
    "u": (ours.UINT, _T.UINT),
    "d": (ours.DOUBLE, _T.DOUBLE),
    "s": (ours.STRING, _T.STRING),
    "t": (ours.STRING, _T.STRING),
    "raw": (ours.BYTES, _T.BYTES),
    "yes": (ours.BOOL, _T.BOOL),
    "l": (ours.list_of(ours.INT), _T.List(_T.INT)),
    "m": (ours.map_of(ours.STRING, ours.INT), _T.Map(_T.STRING, _T.INT)),
    "names": (ours.list_of(ours.STRING), _T.List(_T.STRING)),
    "any": (ours.map_of(ours.STRING, ours.DYN), _T.Map(_T.STRING, _T.DYN)),
    "x": (ours.DYN, _T.DYN),
    "when": (ours.TIMESTAMP, _T.TIMESTAMP),
    "span": (ours.DURATION, _T.DURATION),
}
_ENV = cel.NewEnv(
    variables={name: pair[1] for name, pair in VARIABLES.items()},
    extensions=[ext_bindings.ExtBindings(), ext_optional.ExtOptional(), ext_strings.ExtStrings()],
)
_OUR_TYPES = {name: pair[0] for name, pair in VARIABLES.items()}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

REFUSED = "refused"
FAILED = "failed"
UNSAID = "unsaid"
# What Kubernetes has and these bindings have not: order across numeric types, and places in lists.
_NUMBER = "(int|uint|double)"
_MORE_OURS = re.compile(
    rf"'_[<>]=?_' applied to '\({_NUMBER}, {_NUMBER}\)'|'(lastI|i)ndexOf' applied to '\(list|unsupported map key"
)
# Literals that Kubernetes refuses when it compiles.
_NEVER_WORKS = re.compile(
    r"program instantiation failed|invalid \w+ argument|formatting|out of range|too many arguments"
)
# The bindings lose track of bound names here and there, and know no number of a duration.
_UNSURE = "No matching overloads found"


def theirs(expression: str, data: dict[str, Any]) -> tuple[str, Any]:
    """Return result type and value, or the kind of failure."""
    try:
        program = _ENV.compile(expression)
    except RuntimeError as error:
        return REFUSED, str(error)
    kind = _kind(program)
    converted = {
        **data,
        "when": _EPOCH + dt.timedelta(microseconds=data["when"].nanos // 1000),
        "span": dt.timedelta(microseconds=data["span"].nanos // 1000),
        "u": int(data["u"]),
    }
    value = program.eval(data=converted)
    if str(value.type()) == "ERROR":
        return FAILED, value.plain_value()
    return kind, _normal(value.plain_value())


def _kind(program: Any) -> str:
    try:
        return str(program.return_type()).replace("<", "(").replace(">", ")").lower()
    except RuntimeError:
        # The bindings cannot express some types, such as maps with unusual keys.
        return UNSAID


def agree(expression: str, data: dict[str, Any]) -> bool:
    """Report whether both implementations agree: rejection, failure, or equal values of the same type."""
    their_kind, their_value = theirs(expression, data)
    if (their_kind == REFUSED and _MORE_OURS.search(their_value)) or (their_kind == FAILED and _UNSURE in their_value):
        return True
    my_kind, my_value = mine(expression, data)
    if my_kind == REFUSED and _NEVER_WORKS.search(my_value):
        # The bindings notice only when, and if, they evaluate the literal.
        return True
    if their_kind in (REFUSED, FAILED) or my_kind in (REFUSED, FAILED):
        return their_kind == my_kind
    return their_kind in (UNSAID, my_kind) and their_value == my_value


def mine(expression: str, data: dict[str, Any]) -> tuple[str, Any]:
    """Return the same from our implementation."""
    try:
        program = our_cel.compile_program(expression, _OUR_TYPES, homogeneous=False)
    except CELError as error:
        return REFUSED, str(error)
    try:
        value = program.evaluate(data)
    except CELRuntimeError as error:
        return FAILED, str(error)
    return str(program.result_type), _normal(value)


def _normal(value: Any) -> Any:
    """Return a comparable Python value."""
    for classes, normal in _NORMAL:
        if isinstance(value, classes):
            return normal(value)
    return value


_NORMAL: tuple[tuple[Any, Any], ...] = (
    (float, lambda value: "NaN" if math.isnan(value) else value),
    ((bytearray, bytes), bytes),
    (Timestamp, lambda value: ("timestamp", value.nanos)),
    (Duration, lambda value: ("duration", value.nanos)),
    (dt.datetime, lambda value: ("timestamp", (value - _EPOCH) // dt.timedelta(microseconds=1) * 1000)),
    (dt.timedelta, lambda value: ("duration", value // dt.timedelta(microseconds=1) * 1000)),
    ((list, tuple), lambda value: [_normal(item) for item in value]),
    (dict, lambda value: {_normal(key): _normal(item) for key, item in value.items()}),
    (ours.Type, lambda value: value.type_name),
    (cel.Type, lambda value: value.name()),
    (Uint, int),
)
