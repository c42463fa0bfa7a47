"""Consumable capacity: the request policy of a device's capacity."""

from __future__ import annotations

import itertools
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, duplicate, forbidden, invalid, required, too_many
from dray.api.quantity import Quantity

VALID_VALUES_MAX: Final = 10


def validate_capacity(capacity: Document, path: Path, *, shareable: bool) -> FieldErrors:
    """Validate a capacity; only a device that allows multiple allocations can have a request policy."""
    policy = capacity.get("requestPolicy")
    if policy is None:
        return []
    path = path.child("requestPolicy")
    if not shareable:
        return [forbidden(path, "allowMultipleAllocations must be true")]
    return _policy(policy, Quantity.parse(capacity.get("value") or 0), path)


def _policy(policy: Document, capacity: Quantity, path: Path) -> FieldErrors:
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
        return _values(parsed, Quantity.parse(default), capacity, path.child("validValues"))
    return _range(value_range or {}, Quantity.parse(default), capacity, path.child("validRange"))


def _values(values: list[Quantity], default: Quantity, capacity: Quantity, path: Path) -> FieldErrors:
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
        if value.value() in seen:
            errors.append(duplicate(path.index(index), str(value.value())))
        seen.add(value.value())
    return errors if default in values else [*errors, bad_default]


def _range(value_range: Document, default: Quantity, capacity: Quantity, path: Path) -> FieldErrors:
    if value_range.get("min") is None:
        return [required(path.child("min"), "required when validRange is defined")]
    smallest = Quantity.parse(value_range["min"])
    errors: FieldErrors = []
    if smallest > capacity:
        errors.append(
            invalid(path.child("min"), str(smallest), f"min is larger than capacity value: {capacity}"),
        )
    if default < smallest:
        errors.append(invalid(path.child("default"), str(default), f"default is less than min: {smallest}"))
    largest = None if value_range.get("max") is None else Quantity.parse(value_range["max"])
    if largest is not None:
        errors += _maximum(largest, smallest, default, capacity, path)
    if value_range.get("step") is not None:
        bounds = [default] if largest is None else [default, largest]
        errors += _step(Quantity.parse(value_range["step"]), smallest, bounds, capacity, path.child("step"))
    return errors


def _maximum(largest: Quantity, smallest: Quantity, default: Quantity, capacity: Quantity, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    if smallest > largest:
        errors.append(invalid(path.child("max"), str(smallest), f"min is larger than max: {largest}"))
    if largest > capacity:
        errors.append(invalid(path.child("max"), str(largest), f"max is larger than capacity value: {capacity}"))
    if default > largest:
        errors.append(invalid(path.child("default"), str(default), f"default is more than max: {largest}"))
    return errors


def _step(step: Quantity, smallest: Quantity, bounds: list[Quantity], capacity: Quantity, path: Path) -> FieldErrors:
    # A step of zero or less makes no progress.
    if step.sign <= 0:
        return [invalid(path, str(step), "must be greater than zero")]
    errors: FieldErrors = []
    one_step = smallest + step
    if one_step > capacity:
        errors.append(invalid(path, str(step), f"one step {one_step} is larger than capacity value: {capacity}"))
    for bound in bounds:
        if (bound.value() - smallest.value()) % step.value():
            text = f"value is not a multiple of a given step ({step}) from ({smallest})"
            errors.append(invalid(path, str(bound), text))
    return errors
