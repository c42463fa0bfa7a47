"""CPU, memory and huge pages that devices use on their node: in ResourceSlices, and in the status of Pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, invalid, itself, not_found, required, unique
from dray.api.quantity import Quantity
from dray.api.validation import resource_fields as fields

_NODE_RESOURCES: Final = ("cpu", "memory")
_HUGE_PAGES_PREFIX: Final = "hugepages-"
_OVERHEADS: Final = ("perPod", "perContainer")


def node_resource_name(name: str, path: Path) -> FieldErrors:
    """Validate the name of a resource whose use by devices is counted."""
    if name in _NODE_RESOURCES or name.startswith(_HUGE_PAGES_PREFIX):
        return []
    return [invalid(path, name, "must be a node allocatable resource name")]


def validate_node_allocatable_resources(
    resources: Mapping[str, Document], capacity: Mapping[str, Any], path: Path
) -> FieldErrors:
    """Return the validation errors of a device's `nodeAllocatableResources`, which may refer to its capacity."""
    errors: FieldErrors = []
    for name, resource in resources.items():
        at = path.key(name)
        errors += node_resource_name(name, at)
        mapping, overhead = resource.get("mapping"), resource.get("overhead")
        if mapping is None and overhead is None:
            errors.append(required(at, "at least one of mapping or overhead must be set"))
        if mapping is not None:
            errors += _mapping(mapping, capacity, at.child("mapping"))
        if overhead is not None:
            errors += overhead_amounts(overhead, at.child("overhead"))
    return errors


def _mapping(mapping: Document, capacity: Mapping[str, Any], path: Path) -> FieldErrors:
    key, multiplier = mapping.get("capacityKey"), mapping.get("capacityMultiplier")
    per_device = mapping.get("deviceMultiplier")
    errors: FieldErrors = []
    if key is None and per_device is None:
        errors.append(required(path, "exactly one of capacityKey or deviceMultiplier must be set"))
    elif key is not None and per_device is not None:
        errors.append(
            invalid(path, "{capacityKey, deviceMultiplier}", "only one of capacityKey or deviceMultiplier may be set")
        )
    if key is not None:
        errors += _capacity_key(key, capacity, path.child("capacityKey"))
        if multiplier is None:
            text = "capacityMultiplier is required when capacityKey is set"
            errors.append(required(path.child("capacityMultiplier"), text))
    elif multiplier is not None:
        text = "capacityMultiplier may only be set together with capacityKey"
        errors.append(invalid(path.child("capacityMultiplier"), str(Quantity.parse(multiplier)), text))
    for name, value in (("capacityMultiplier", multiplier), ("deviceMultiplier", per_device)):
        if value is not None and Quantity.parse(value).sign <= 0:
            errors.append(invalid(path.child(name), str(Quantity.parse(value)), "must be positive"))
    return errors


def _capacity_key(key: str, capacity: Mapping[str, Any], path: Path) -> FieldErrors:
    if not key:
        return [invalid(path, key, "capacityKey must not be an empty string")]
    return [] if key in capacity else [not_found(path, key)]


def overhead_amounts(overhead: Document, path: Path) -> FieldErrors:
    """Validate the amounts per Pod and per container, of which one must be set."""
    if all(overhead.get(name) is None for name in _OVERHEADS):
        return [required(path, "at least one of perPod or perContainer must be set")]
    return [error for name in _OVERHEADS for error in _non_negative(overhead.get(name), path.child(name))]


def _non_negative(value: str | None, path: Path) -> FieldErrors:
    if value is None or Quantity.parse(value).sign >= 0:
        return []
    return [invalid(path, str(Quantity.parse(value)), "must be non-negative")]


def validate_node_allocatable_statuses(
    statuses: Sequence[Document] | None, claim_names: frozenset[str], path: Path
) -> FieldErrors:
    """Return the validation errors of a Pod's `nodeAllocatableResourceClaimStatuses`; the claims are the Pod's."""
    errors = fields.each(statuses, lambda item, at: _claim_status(item, claim_names, at), path)
    return errors + unique(statuses, lambda item: item.get("resourceClaimName") or "", path)


def _claim_status(item: Document, claim_names: frozenset[str], path: Path) -> FieldErrors:
    name = item.get("resourceClaimName") or ""
    errors: FieldErrors = []
    if not name:
        errors.append(required(path.child("resourceClaimName")))
    elif name not in claim_names:
        errors.append(invalid(path.child("resourceClaimName"), name, "no mapping found in pod reference"))
    errors += unique(item.get("containers"), itself, path.child("containers"))
    for field, rule in (("mapping", _mapped), ("overhead", overhead_amounts)):
        entries, at = item.get(field), path.child(field)
        for index, entry in enumerate(entries or ()):
            errors += node_resource_name(entry.get("name") or "", at.index(index).child("name"))
            errors += rule(entry, at.index(index))
        errors += unique(entries, lambda entry: entry.get("name") or "", at)
    return errors


def _mapped(entry: Document, path: Path) -> FieldErrors:
    return _non_negative(entry.get("quantity"), path.child("quantity"))
