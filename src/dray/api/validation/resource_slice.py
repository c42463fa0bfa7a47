"""ResourceSlices and DeviceTaintRules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, invalid, required, too_many
from dray.api.validation import resource_fields as fields
from dray.api.validation.meta_v1 import validate_conditions
from dray.api.validation.resource_claim import SPEC
from dray.api.validation.resource_claim_status import STATUS
from dray.api.validation.resource_device import counter_set_name, counters, has_list, validate_device

DEVICES_MAX: Final = 128
# Applies when a device has taints, consumes counters or has list attributes.
DEVICES_WITH_EXTRAS_MAX: Final = 64
COUNTER_SETS_MAX: Final = 8

_ONE_NODE_CHOICE: Final = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"


def validate_slice(resource_slice: Document, old: Document | None = None, *, fractional: bool = False) -> FieldErrors:
    """Return the validation errors of a new or changed slice.

    `fractional` is the feature DRAFractionalCapacityRange.
    """
    spec = resource_slice.get("spec") or {}
    old_spec = None if old is None else old.get("spec") or {}
    errors = fields.driver_name(spec.get("driver"), SPEC, "driver")
    errors += _pool(spec.get("pool") or {}, SPEC.child("pool"))
    if old_spec is not None:
        errors += _immutable(spec, old_spec)
    errors += _nodes(spec)
    if spec.get("sharedCounters") is not None and spec.get("devices") is not None:
        errors.append(invalid(SPEC, "", "only one of `sharedCounters` or `devices` is allowed"))
    errors += _devices(spec, old_spec, fractional=fractional)
    errors += fields.bounded_set(
        spec.get("sharedCounters"), COUNTER_SETS_MAX, _counter_set, _name_of, SPEC.child("sharedCounters")
    )
    if spec.get("partitionTypeAttribute") is not None:
        errors += _partition_type(spec, spec["partitionTypeAttribute"])
    return errors + fields.skipped_operations(spec.get("skipNodeOperations"), SPEC.child("skipNodeOperations"))


def _partition_type(spec: Document, name: str) -> FieldErrors:
    """Validate the attribute with the type of partitions, which every device that consumes counters must have."""
    path = SPEC.child("partitionTypeAttribute")
    errors = fields.fully_qualified_id(name, path)
    if errors:
        return errors
    devices = [(index, item) for index, item in enumerate(spec.get("devices") or ()) if item.get("consumesCounters")]
    if not devices:
        text = "may only be set on a slice which declares devices that consume counters"
        return [invalid(path, name, text)]
    for index, device in devices:
        at = SPEC.child("devices").index(index).child("attributes").key(name)
        attribute = attribute_of(device, name, spec.get("driver") or "")
        if attribute is None:
            errors.append(required(at, "must be set on a device that consumes counters"))
        elif attribute.get("string") is None:
            errors.append(invalid(at, "", "must be a string attribute"))
    return errors


def attribute_of(device: Document, name: str, driver: str) -> Document | None:
    """Return an attribute by its full name; the driver's own domain may be left out in the device."""
    attributes: Mapping[str, Document] = device.get("attributes") or {}
    domain, _, identifier = name.partition("/")
    return attributes.get(name) or (attributes.get(identifier) if domain == driver else None)


def _name_of(item: Document) -> str:
    name: str = item.get("name") or ""
    return name


def _pool(pool: Document, path: Path) -> FieldErrors:
    errors = fields.pool_name(pool.get("name"), path, "name")
    count, generation = pool.get("resourceSliceCount") or 0, pool.get("generation") or 0
    if count <= 0:
        errors.append(invalid(path.child("resourceSliceCount"), count, "must be greater than zero"))
    if generation < 0:
        errors.append(invalid(path.child("generation"), generation, "must be greater than or equal to zero"))
    return errors


def _immutable(spec: Document, old_spec: Document) -> FieldErrors:
    pool, old_pool = ((item.get("pool") or {}).get("name") or "" for item in (spec, old_spec))
    pairs = (
        (("pool", "name"), pool, old_pool),
        (("driver",), spec.get("driver") or "", old_spec.get("driver") or ""),
        (("nodeName",), spec.get("nodeName"), old_spec.get("nodeName")),
    )
    return [invalid(SPEC.child(*names), new, fields.IMMUTABLE) for names, new, old in pairs if new != old]


def _nodes(spec: Document) -> FieldErrors:
    chosen: list[str] = []
    errors: FieldErrors = []
    name = spec.get("nodeName")
    if name:
        chosen.append("`nodeName`")
        errors += fields.node_name(name, SPEC, "nodeName")
    elif name is not None:
        errors.append(invalid(SPEC.child("nodeName"), name, "must be either unset or set to a non-empty string"))
    if spec.get("nodeSelector") is not None:
        chosen.append("`nodeSelector`")
        errors += fields.single_term(spec["nodeSelector"], SPEC.child("nodeSelector"))
    for switch in ("allNodes", "perDeviceNodeSelection"):
        value = spec.get(switch)
        if value:
            chosen.append(f"`{switch}`")
        elif value is not None:
            errors.append(invalid(SPEC.child(switch), value, "must be either unset or set to true"))
    if not chosen:
        errors.append(required(SPEC, _ONE_NODE_CHOICE))
    elif len(chosen) > 1:
        text = f"{_ONE_NODE_CHOICE}, but multiple fields are set"
        errors.append(invalid(SPEC, f"{{{', '.join(chosen)}}}", text))
    return errors


def _devices(spec: Document, old_spec: Document | None, *, fractional: bool) -> FieldErrors:
    devices: Sequence[Document] = spec.get("devices") or ()
    if not devices:
        return []
    limit = DEVICES_WITH_EXTRAS_MAX if any(_has_extras(device) for device in devices) else DEVICES_MAX
    before: Mapping[str, Document] = {_name_of(item): item for item in (old_spec or {}).get("devices") or ()}
    per_device_nodes = bool(spec.get("perDeviceNodeSelection"))
    return fields.bounded_set(
        devices,
        limit,
        lambda item, at: validate_device(
            item, before.get(_name_of(item)), at, per_device_nodes=per_device_nodes, fractional=fractional
        ),
        _name_of,
        SPEC.child("devices"),
    )


def _has_extras(device: Document) -> bool:
    if device.get("taints") or device.get("consumesCounters"):
        return True
    return any(has_list(attribute) for attribute in (device.get("attributes") or {}).values())


def _counter_set(item: Document, path: Path) -> FieldErrors:
    errors = counter_set_name(item.get("name"), path.child("name"))
    return errors + counters(item.get("counters"), path.child("counters"))


def validate_taint_rule(rule: Document, old: Document | None = None) -> FieldErrors:
    """Return the validation errors of a new or changed rule."""
    spec = rule.get("spec") or {}
    selector, path = spec.get("deviceSelector") or {}, SPEC.child("deviceSelector")
    errors: FieldErrors = []
    if selector.get("driver") is not None:
        errors += fields.driver_name(selector["driver"], path, "driver")
    if selector.get("pool") is not None:
        errors += fields.pool_name(selector["pool"], path, "pool")
    if selector.get("device") is not None:
        errors += fields.label(selector["device"], path, "device")
    old_taint = None if old is None else (old.get("spec") or {}).get("taint") or {}
    return errors + fields.taint(spec.get("taint") or {}, SPEC.child("taint"), old_taint)


def validate_taint_rule_status(rule: Document) -> FieldErrors:
    """Return the validation errors of a rule's status."""
    conditions, path = (rule.get("status") or {}).get("conditions") or (), STATUS.child("conditions")
    errors = validate_conditions(conditions or (), path)
    if len(conditions) > fields.CONDITIONS_MAX:
        errors.append(too_many(path, len(conditions), fields.CONDITIONS_MAX))
    return errors
