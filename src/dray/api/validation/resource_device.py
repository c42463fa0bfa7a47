"""Devices of a ResourceSlice."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, invalid, itself, required, too_long, too_many
from dray.api.validation import resource_fields as fields
from dray.api.validation.resource_capacity import validate_capacity
from dray.api.validation.resource_node_allocatable import validate_node_allocatable_resources

ATTRIBUTES_AND_CAPACITIES_MAX: Final = 32
ATTRIBUTE_VALUES_MAX: Final = 48
ATTRIBUTE_VALUE_LENGTH_MAX: Final = 64
TAINTS_MAX: Final = 16
COUNTER_CONSUMPTIONS_MAX: Final = 2
COUNTERS_MAX: Final = 32
COMPATIBILITY_GROUPS_MAX: Final = 2

LIST_VALUES: Final = ("bools", "ints", "strings", "versions")
_SINGLE_VALUES: Final = ("bool", "int", "string", "version")
# In the order of the API.
_VALUES: Final = ("int", "bool", "string", "version", "ints", "bools", "strings", "versions")
_VALUE_NAMES: Final = ", ".join(f"`{name}`" for name in _VALUES)
# A domain, a slash and an identifier.
_KEY_LENGTH_MAX: Final = fields.DRIVER_NAME_LENGTH_MAX + 1 + fields.DEVICE_ID_LENGTH_MAX

_NUMBER = r"(?:0|[1-9]\d*)"
_PRERELEASE = r"(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_BUILD = r"[0-9a-zA-Z-]+"
# https://semver.org/spec/v2.0.0.html
_matches_version = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-{_PRERELEASE}(?:\.{_PRERELEASE})*)?(?:\+{_BUILD}(?:\.{_BUILD})*)?", re.ASCII
).fullmatch

_NODES_OF_DEVICE: Final = (
    "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required "
    "when `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
)
_NO_NODES_OF_DEVICE: Final = (
    "`nodeName`, `nodeSelector` and `allNodes` can only be set "
    "if `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
)


def validate_device(
    device: Document, old: Document | None, path: Path, *, per_device_nodes: bool, fractional: bool = False
) -> FieldErrors:
    """Return the validation errors of a device; unchanged capacity and taints are ratcheted.

    `fractional` is the feature DRAFractionalCapacityRange.
    """
    errors = fields.label(device.get("name"), path, "name")
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    errors += _sizes(attributes, capacity, path)
    for key, attribute in attributes.items():
        if not (_is_good_key(key) and _is_plain(attribute)):
            errors += fields.qualified_id(key, path.child("attributes"))
            errors += _attribute(attribute, path, key)
    if capacity and (old is None or (old.get("capacity") or {}) != capacity):
        shareable = bool(device.get("allowMultipleAllocations"))
        errors += _capacities(capacity, path, shareable=shareable, fractional=fractional)
    if device.get("taints") and (old is None or old.get("taints") != device["taints"]):
        errors += fields.bounded(device["taints"], TAINTS_MAX, fields.taint, path.child("taints"))
    if device.get("consumesCounters"):
        errors += fields.bounded_set(
            device["consumesCounters"],
            COUNTER_CONSUMPTIONS_MAX,
            _counter_consumption,
            lambda item: item.get("counterSet") or "",
            path.child("consumesCounters"),
        )
    errors += _nodes(device, path) if per_device_nodes else _no_nodes(device, path)
    errors += fields.binding_conditions(device, path)
    if device.get("nodeAllocatableResources"):
        errors += validate_node_allocatable_resources(
            device["nodeAllocatableResources"], capacity, path.child("nodeAllocatableResources")
        )
    return errors


def counters(items: Mapping[str, Any] | None, path: Path) -> FieldErrors:
    """Validate a map of counters; the values are any quantity."""
    if not items:
        return [required(path)]
    if len(items) > COUNTERS_MAX:
        return [too_many(path, len(items), COUNTERS_MAX)]
    return [error for name in items for error in fields.label(name, path)]


def counter_set_name(name: str | None, path: Path) -> FieldErrors:
    """Validate the name of a counter set."""
    return fields.label(name, path) if name else [required(path)]


def _sizes(attributes: Mapping[str, Document], capacity: Mapping[str, Any], path: Path) -> FieldErrors:
    errors: FieldErrors = []
    count = len(attributes) + len(capacity)
    if count > ATTRIBUTES_AND_CAPACITIES_MAX:
        text = f"the total number of attributes and capacities must not exceed {ATTRIBUTES_AND_CAPACITIES_MAX}"
        errors.append(invalid(path, count, text))
    if count <= ATTRIBUTE_VALUES_MAX and not any(has_list(attribute) for attribute in attributes.values()):
        return errors
    values = sum(_value_count(attribute) for attribute in attributes.values())
    if values > ATTRIBUTE_VALUES_MAX:
        errors.append(
            invalid(path, values, f"the total number of attribute values must not exceed {ATTRIBUTE_VALUES_MAX}")
        )
    return errors


def has_list(attribute: Document) -> bool:
    """Report whether the attribute has a list value, even an empty one."""
    if _LIST_VALUES.isdisjoint(attribute):
        return False
    return any(attribute.get(name) is not None for name in LIST_VALUES)


def _value_count(attribute: Document) -> int:
    """Return the number of values; anything but a list counts as one."""
    return sum(len(attribute.get(name) or ()) for name in LIST_VALUES) or 1


_LIST_VALUES: Final = frozenset(LIST_VALUES)
_KEY_CACHE_SIZE: Final = 8192


@lru_cache(_KEY_CACHE_SIZE)
def _is_good_key(key: str) -> bool:
    """Report whether the key is valid; cached because devices of one type have the same keys."""
    return not fields.qualified_id(key, Path())


def _is_plain(attribute: Document) -> bool:
    """Report whether the attribute is one valid scalar, as nearly all are."""
    if len(attribute) != 1:
        return False
    ((name, value),) = attribute.items()
    if name == "string":
        return value is not None and len(value) <= ATTRIBUTE_VALUE_LENGTH_MAX and value.isascii()
    if name == "version":
        return value is not None and len(value) <= ATTRIBUTE_VALUE_LENGTH_MAX and bool(_matches_version(value))
    return value is not None and name in ("bool", "int")


def _key_path(path: Path, field: str, key: str) -> Path:
    return path.child(field).key(fields.shortened(key, _KEY_LENGTH_MAX))


def _attribute(attribute: Document, path: Path, key: str) -> FieldErrors:
    """Validate that there is exactly one value of one type; the path is built only for an error."""
    present = [name for name in (*_SINGLE_VALUES, *LIST_VALUES) if attribute.get(name) is not None]
    errors: FieldErrors = []
    for name in present:
        errors += _attribute_value(attribute[name], name, path, key)
    if len(present) == 1:
        return errors
    at = _key_path(path, "attributes", key)
    if not present:
        return [*errors, invalid(at, "", f"must specify one of: {_VALUE_NAMES}")]
    shown = f"{{{', '.join(name for name in _VALUES if name in present)}}}"
    return [*errors, invalid(at, shown, f"must specify exactly one of: {_VALUE_NAMES}")]


def _attribute_value(value: Any, name: str, path: Path, key: str) -> FieldErrors:
    if name in ("string", "version"):
        return _text_value(value, name, lambda: _key_path(path, "attributes", key).child(name))
    if name not in LIST_VALUES:
        return []
    at = _key_path(path, "attributes", key).child(name)
    if not value:
        return [invalid(at, value, "must not be empty if specified")]
    if name not in ("strings", "versions"):
        return []
    kind = name.removesuffix("s")
    return [error for index, item in enumerate(value) for error in _text_value(item, kind, lambda i=index: at.index(i))]


def _text_value(value: str, kind: str, path_of: Any) -> FieldErrors:
    errors: FieldErrors = []
    if kind == "version" and not _matches_version(value):
        errors.append(invalid(path_of(), value, "must be a string compatible with semver.org spec 2.0.0"))
    if fields.byte_length(value) > ATTRIBUTE_VALUE_LENGTH_MAX:
        errors.append(too_long(path_of(), ATTRIBUTE_VALUE_LENGTH_MAX))
    return errors


def _capacities(capacity: Mapping[str, Document], path: Path, *, shareable: bool, fractional: bool) -> FieldErrors:
    errors: FieldErrors = []
    for key, item in capacity.items():
        if not _is_good_key(key):
            errors += fields.qualified_id(key, path.child("capacity"))
        if item.get("requestPolicy") is not None:
            at = _key_path(path, "capacity", key)
            errors += validate_capacity(item, at, shareable=shareable, fractional=fractional)
    return errors


def _counter_consumption(item: Document, path: Path) -> FieldErrors:
    errors = counter_set_name(item.get("counterSet"), path.child("counterSet"))
    errors += counters(item.get("counters"), path.child("counters"))
    if not item.get("compatibilityGroups"):
        return errors
    return errors + fields.bounded_set(
        item["compatibilityGroups"],
        COMPATIBILITY_GROUPS_MAX,
        fields.label,
        itself,
        path.child("compatibilityGroups"),
    )


def _nodes(device: Document, path: Path) -> FieldErrors:
    chosen: list[str] = []
    errors: FieldErrors = []
    if device.get("nodeName"):
        chosen.append("`nodeName`")
        errors += fields.node_name(device["nodeName"], path, "nodeName")
    elif device.get("nodeName") is not None:
        errors.append(invalid(path.child("nodeName"), "", "must not be empty"))
    if device.get("nodeSelector") is not None:
        chosen.append("`nodeSelector`")
        errors += fields.node_selector(device["nodeSelector"], path.child("nodeSelector"))
    if device.get("allNodes"):
        chosen.append("`allNodes`")
    elif device.get("allNodes") is not None:
        errors.append(invalid(path.child("allNodes"), device["allNodes"], "must be either unset or set to true"))
    if not chosen:
        errors.append(required(path, _NODES_OF_DEVICE))
    elif len(chosen) > 1:
        errors.append(invalid(path, f"{{{', '.join(chosen)}}}", _NODES_OF_DEVICE))
    return errors


def _no_nodes(device: Document, path: Path) -> FieldErrors:
    if device.get("nodeName") is device.get("nodeSelector") is device.get("allNodes") is None:
        return []
    return [invalid(path, None, _NO_NODES_OF_DEVICE)]
