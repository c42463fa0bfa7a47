"""Consumable capacity: the request policy of a device's capacity."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, duplicate, forbidden, invalid, required, too_many
from dray.api.quantity import Quantity

VALID_VALUES_MAX: Final = 10
_INT64_MAX: Final = 2**63 - 1
_NANOS: Final = 10**9
_NANOS_PER_MILLI: Final = 10**6


def validate_capacity(capacity: Document, path: Path, *, shareable: bool, fractional: bool) -> FieldErrors:
    """Validate a capacity; only a device that allows multiple allocations can have a request policy.

    Without `fractional`, steps and duplicates are compared in whole numbers, rounded up.
    """
    policy = capacity.get("requestPolicy")
    if policy is None:
        return []
    path = path.child("requestPolicy")
    if not shareable:
        return [forbidden(path, "allowMultipleAllocations must be true")]
    return _policy(policy, Quantity.parse(capacity.get("value") or 0), path, fractional=fractional)


def _policy(policy: Document, capacity: Quantity, path: Path, *, fractional: bool) -> FieldErrors:
    values, value_range, default = policy.get("validValues"), policy.get("validRange"), policy.get("default")
    if values and value_range is not None:
        text = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'
        return [forbidden(path, text)]
    if not values and value_range is None:
        return []
    if default is None:
        kind = "validValues" if values else "validRange"
        return [required(path.child("default"), f"required when {kind} is defined")]
    if values:
        parsed = [Quantity.parse(value) for value in values]
        return _values(parsed, Quantity.parse(default), capacity, path.child("validValues"), fractional=fractional)
    at = path.child("validRange")
    return _range(value_range or {}, Quantity.parse(default), capacity, at, fractional=fractional)


def _values(
    values: list[Quantity], default: Quantity, capacity: Quantity, path: Path, *, fractional: bool
) -> FieldErrors:
    errors = [
        invalid(path.index(index + 1), str(after), "values must be sorted in ascending order")
        for index, (before, after) in enumerate(itertools.pairwise(values))
        if before > after
    ]
    bad_default = invalid(path, str(default), "default value is not valid according to the requestPolicy")
    if len(values) > VALID_VALUES_MAX:
        return [*errors, too_many(path, len(values), VALID_VALUES_MAX), bad_default]
    for index, value in enumerate(values):
        if value > capacity:
            text = f"option is larger than capacity value: {capacity}"
            errors.append(invalid(path.index(index), str(value), text))
    seen: set[int] = set()
    for index, value in enumerate(values):
        compared = value.nanos if fractional else value.value()
        if compared in seen:
            errors.append(duplicate(path.index(index), str(value if fractional else value.value())))
        seen.add(compared)
    return errors if default in values else [*errors, bad_default]


def _range(
    value_range: Document, default: Quantity, capacity: Quantity, path: Path, *, fractional: bool
) -> FieldErrors:
    if value_range.get("min") is None:
        return [required(path.child("min"), "required when validRange is defined")]
    found = {name: Quantity.parse(text) for name, text in value_range.items() if text is not None}
    smallest, largest, step = found["min"], found.get("max"), found.get("step")
    errors: FieldErrors = []
    if smallest > capacity:
        errors.append(
            invalid(path.child("min"), str(smallest), f"min is larger than capacity value: {capacity}"),
        )
    if default < smallest:
        errors.append(invalid(path.child("default"), str(default), f"default is less than min: {smallest}"))
    if largest is not None:
        errors += _maximum(largest, smallest, default, capacity, path)
    compared = {**found, "default": default}
    in_milli = fractional and any(value.nanos % _NANOS for value in compared.values())
    if in_milli:
        unrepresentable = _not_in_milli(compared, path)
        if unrepresentable:
            return errors + unrepresentable
    if step is not None:
        bounds = [default] if largest is None else [default, largest]
        errors += _step(step, smallest, bounds, capacity, path, in_milli=in_milli)
    return errors


def _not_in_milli(values: Mapping[str, Quantity], path: Path) -> FieldErrors:
    return [
        invalid(path.child(name), str(value), "value cannot be represented as a milli value")
        for name, value in sorted(values.items())
        if value.nanos % _NANOS_PER_MILLI or abs(value.nanos) > _INT64_MAX * _NANOS_PER_MILLI
    ]


def _maximum(largest: Quantity, smallest: Quantity, default: Quantity, capacity: Quantity, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    if smallest > largest:
        errors.append(invalid(path.child("max"), str(smallest), f"min is larger than max: {largest}"))
    if largest > capacity:
        errors.append(invalid(path.child("max"), str(largest), f"max is larger than capacity value: {capacity}"))
    if default > largest:
        errors.append(invalid(path.child("default"), str(default), f"default is more than max: {largest}"))
    return errors


def _step(
    step: Quantity, smallest: Quantity, bounds: list[Quantity], capacity: Quantity, path: Path, *, in_milli: bool
) -> FieldErrors:
    at = path.child("step")
    # A step of zero or less makes no progress.
    if step.sign <= 0:
        return [invalid(at, str(step), "must be greater than zero")]
    if not in_milli:
        outside = _not_whole({"min": smallest, **dict(zip(("default", "max"), bounds, strict=False))}, path)
        if outside:
            return outside
    errors: FieldErrors = []
    one_step = smallest + step
    if one_step > capacity:
        errors.append(invalid(at, str(step), f"one step {one_step} is larger than capacity value: {capacity}"))

    def number(value: Quantity) -> int:
        return value.milli_value() if in_milli else value.value()

    for bound in bounds:
        if (number(bound) - number(smallest)) % number(step):
            text = f"value is not a multiple of a given step ({step}) from ({smallest})"
            errors.append(invalid(at, str(bound), text))
    return errors


def _not_whole(values: Mapping[str, Quantity], path: Path) -> FieldErrors:
    """Return the errors of values that steps of whole numbers cannot reach."""
    errors: FieldErrors = []
    for name, value in values.items():
        if value.sign < 0:
            errors.append(invalid(path.child(name), str(value), "must be greater than or equal to 0"))
        elif value.value() > _INT64_MAX:
            errors.append(invalid(path.child(name), str(value), f"must not be larger than {_INT64_MAX}"))
    return errors
