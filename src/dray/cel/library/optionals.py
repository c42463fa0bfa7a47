"""Optional values."""

from __future__ import annotations

from typing import Any, Final

from dray.cel.runtime import fail
from dray.cel.signatures import Registry
from dray.cel.values import NONE, Duration, Optional, Timestamp

REGISTRY: Final = Registry()
_declare = REGISTRY.declare


def _of_non_zero(value: Any) -> Optional:
    if isinstance(value, Duration):
        zero = value.nanos == 0
    elif isinstance(value, Timestamp):
        zero = value.nanos == Timestamp(0).nanos
    else:
        zero = isinstance(value, (bool, int, float, str, bytes, list, dict, tuple, type(None))) and not value
    return NONE if zero else Optional(value)


def _value(optional: Optional) -> Any:
    if not optional.present:
        fail("optional.none() dereference")
    return optional.value


def _unwrap(values: list[Optional]) -> list[Any]:
    if not all(isinstance(value, Optional) for value in values):
        fail()
    return [value.value for value in values if value.present]


_declare("optional.of(A) -> optional(A)", Optional)
_declare("optional.ofNonZeroValue(A) -> optional(A)", _of_non_zero)
_declare("optional.none() -> optional(A)", lambda: NONE)
_declare("optional.unwrap(list(optional(A))) -> list(A)", _unwrap, charge=lambda values: 1 + len(values))
_declare("list(optional(A))::unwrapOpt() -> list(A)", _unwrap, charge=lambda values: 1 + len(values))
_declare("optional(A)::value() -> A", _value)
_declare("optional(A)::hasValue() -> bool", lambda optional: optional.present)
_declare("optional(A)::or(optional(A)) -> optional(A)", lambda optional, other: optional if optional.present else other)
_declare("optional(A)::orValue(A) -> A", lambda optional, other: optional.value if optional.present else other)
