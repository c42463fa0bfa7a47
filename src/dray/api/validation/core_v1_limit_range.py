"""LimitRanges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, duplicate, forbidden, invalid, required
from dray.api.names import qualified_name
from dray.api.quantity import Quantity
from dray.api.validation.core_v1_resources import (
    is_extended,
    is_huge_pages,
    parse_quantity,
    validate_container_resource_name,
    validate_resource_name,
)

_LIMITS: Final = Path("spec.limits")
_FIELDS: Final = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")
_TYPES: Final = frozenset({"Pod", "Container", "PersistentVolumeClaim"})
_ONE: Final = Quantity.parse("1")


def validate_limit_range(limit_range: Document) -> FieldErrors:
    """Validate a LimitRange: one item of a type, and amounts that do not contradict each other."""
    errors: FieldErrors = []
    seen: set[str] = set()
    for i, item in enumerate((limit_range.get("spec") or {}).get("limits") or ()):
        path, kind = _LIMITS.index(i), item.get("type") or ""
        errors += _validate_type(kind, path.child("type"))
        if kind in seen:
            errors.append(duplicate(path.child("type"), kind))
        seen.add(kind)
        errors += _validate_item(item, kind, path)
    return errors


def _validate_type(kind: str, path: Path) -> FieldErrors:
    if problems := qualified_name(kind):
        return [invalid(path, kind, problem) for problem in problems]
    if "/" not in kind and kind not in _TYPES:
        return [invalid(path, kind, "must be a standard limit type or fully qualified")]
    return []


def _validate_item(item: Document, kind: str, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    amounts: dict[str, dict[str, Quantity]] = {}
    for field in _FIELDS:
        values = item.get(field) or {}
        if kind == "Pod" and field in ("default", "defaultRequest") and values:
            errors.append(forbidden(path.child(field), "may not be specified when `type` is 'Pod'"))
            continue
        amounts[field] = _validate_amounts(values, kind, path.child(field), errors)
    if kind == "PersistentVolumeClaim" and not any("storage" in (item.get(field) or {}) for field in ("min", "max")):
        text = "either minimum or maximum storage value is required, but neither was provided"
        errors.append(required(path.child("limits"), text))
    for name in sorted({name for values in amounts.values() for name in values}):
        errors += _compare(name, {field: values[name] for field, values in amounts.items() if name in values}, path)
    return errors


def _validate_amounts(values: Document, kind: str, path: Path, errors: FieldErrors) -> dict[str, Quantity]:
    parsed: dict[str, Quantity] = {}
    for name, value in values.items():
        if kind in ("Pod", "Container"):
            errors += validate_container_resource_name(name, path.key(name))
        else:
            errors += validate_resource_name(name, path.key(name))
        quantity = parse_quantity(value, path.key(name), errors)
        if quantity is not None:
            parsed[name] = quantity
    return parsed


# Smaller field, larger field, the field of the error, and the words for both.
_ORDERS: Final = (
    ("min", "max", "min", "min value", "max value"),
    ("min", "defaultRequest", "defaultRequest", "min value", "default request value"),
    ("defaultRequest", "max", "defaultRequest", "default request value", "max value"),
    ("defaultRequest", "default", "defaultRequest", "default request value", "default limit value"),
    ("min", "default", "default", "min value", "default value"),
    ("default", "max", "default", "default value", "max value"),
)


def _compare(name: str, amounts: Mapping[str, Quantity], path: Path) -> FieldErrors:
    errors: FieldErrors = []
    for low, high, field, low_word, high_word in _ORDERS:
        if low in amounts and high in amounts and amounts[low] > amounts[high]:
            text = f"{low_word} {amounts[low]} is greater than {high_word} {amounts[high]}"
            errors.append(invalid(path.child(field).key(name), str(amounts[field]), text))
    ratio = amounts.get("maxLimitRequestRatio")
    if ratio is not None:
        errors += _validate_ratio(ratio, amounts, path.child("maxLimitRequestRatio").key(name))
    request, limit = amounts.get("defaultRequest"), amounts.get("default")
    if (is_huge_pages(name) or is_extended(name)) and request is not None and limit is not None and request != limit:
        text = f"default value {limit} must equal to defaultRequest value {request} in {name}"
        errors.append(invalid(path.child("defaultRequest").key(name), str(request), text))
    return errors


def _validate_ratio(ratio: Quantity, amounts: Mapping[str, Quantity], path: Path) -> FieldErrors:
    errors: FieldErrors = []
    if ratio < _ONE:
        errors.append(invalid(path, str(ratio), f"ratio {ratio} is less than 1"))
    low, high = amounts.get("min"), amounts.get("max")
    if low and high:
        limit = high.ratio_to(low)
        if ratio.as_float() > limit:
            errors.append(invalid(path, str(ratio), f"ratio {ratio} is greater than max/min = {limit:f}"))
    return errors
