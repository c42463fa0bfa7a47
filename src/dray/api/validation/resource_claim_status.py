"""The status of a ResourceClaim: allocation, reservations and device status."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final

from dray.api.devices import results_in
from dray.api.document import Document
from dray.api.field_errors import (
    FieldErrors,
    Path,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
)
from dray.api.validation import resource_fields as fields
from dray.api.validation.meta_v1 import validate_conditions
from dray.api.validation.resource_claim import RequestNames, request_names, request_reference, request_references
from dray.api.validation.resource_rendering import device_id_duplicate, device_id_invalid

RESULTS_MAX: Final = 32
# The configuration of the class plus that of the claim.
ALLOCATION_CONFIGS_MAX: Final = 2 * fields.CONFIGS_MAX
RESERVED_FOR_MAX: Final = 256
DATA_LENGTH_MAX: Final = 10 * 1024
IPS_MAX: Final = 16
INTERFACE_NAME_LENGTH_MAX: Final = 256
HARDWARE_ADDRESS_LENGTH_MAX: Final = 128
CONFIG_SOURCES: Final = ("FromClaim", "FromClass")

STATUS: Final = Path("status")
_RESERVED_FOR: Final = STATUS.child("reservedFor")
_ALLOCATION: Final = STATUS.child("allocation")
_RESULTS: Final = _ALLOCATION.child("devices", "results")
_CONFIG: Final = _ALLOCATION.child("devices", "config")

# Driver, pool, device and share; the share is empty for a device that is not shared.
DeviceID = tuple[str, str, str, str]


def validate_claim_status_update(claim: Document, old: Document) -> FieldErrors:
    """Return the validation errors of a change of a claim's status."""
    status, old_status = claim.get("status") or {}, old.get("status") or {}
    errors = _consumers(status.get("reservedFor"))
    errors += _device_statuses(status)
    errors += _reservations(status, old_status, deleted=bool((claim.get("metadata") or {}).get("deletionTimestamp")))
    return errors + _allocation_change(status.get("allocation"), old_status.get("allocation"), claim.get("spec") or {})


def device_id(item: Document) -> DeviceID:
    """Return the device of an allocation result or a device status."""
    return item.get("driver") or "", item.get("pool") or "", item.get("device") or "", item.get("shareID") or ""


def _consumers(items: Sequence[Document] | None) -> FieldErrors:
    if not items:
        return []
    # Most claims are reserved for one Pod.
    if len(items) == 1 and items[0].get("resource") and items[0].get("name") and items[0].get("uid"):
        return []
    return fields.bounded_set(items, RESERVED_FOR_MAX, _consumer, lambda item: item.get("uid") or "", _RESERVED_FOR)


def _consumer(item: Document, path: Path) -> FieldErrors:
    return [required(path.child(name)) for name in ("resource", "name", "uid") if not item.get(name)]


def _reservations(status: Document, old_status: Document, *, deleted: bool) -> FieldErrors:
    reserved_for = status.get("reservedFor")
    if not reserved_for:
        return []
    if status.get("allocation") is None:
        return [forbidden(_RESERVED_FOR, "may not be specified when `allocated` is not set")]
    if deleted:
        before = old_status.get("reservedFor") or ()
        if any(item not in before for item in reserved_for):
            text = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
            return [forbidden(_RESERVED_FOR, text)]
    return []


def _allocation_change(new: Document | None, old: Document | None, spec: Document) -> FieldErrors:
    # A stored allocation is not validated again: the rules may have become stricter since.
    if new is None:
        return []
    if old is None:
        return _allocation(new, request_names(spec.get("devices") or {}))
    return [] if new == old else [invalid(_ALLOCATION, None, "field cannot be modified once set")]


def _allocation(allocation: Document, requests: RequestNames) -> FieldErrors:
    devices = allocation.get("devices") or {}
    errors = fields.bounded(devices.get("results"), RESULTS_MAX, lambda item, at: _result(item, at, requests), _RESULTS)
    if devices.get("config"):
        errors += fields.bounded(
            devices["config"],
            ALLOCATION_CONFIGS_MAX,
            lambda item, at: _allocation_configuration(item, at, requests),
            _CONFIG,
        )
    if allocation.get("nodeSelector") is not None:
        errors += fields.node_selector(allocation["nodeSelector"], _ALLOCATION.child("nodeSelector"))
    return errors


def _result(item: Document, path: Path, requests: RequestNames) -> FieldErrors:
    errors = request_reference(item.get("request") or "", requests, path, "request")
    errors += fields.driver_name(item.get("driver"), path, "driver")
    errors += fields.pool_name(item.get("pool"), path, "pool")
    errors += fields.label(item.get("device"), path, "device")
    errors += fields.binding_conditions(item, path)
    if item.get("tolerations"):
        errors += fields.each(item["tolerations"], fields.toleration, path.child("tolerations"))
    if item.get("shareID") is not None:
        errors += fields.uid(item["shareID"], path.child("shareID"))
    if item.get("skipNodeOperations") is not None:
        errors += fields.skipped_operations(item["skipNodeOperations"], path.child("skipNodeOperations"))
    return errors


def _allocation_configuration(item: Document, path: Path, requests: RequestNames) -> FieldErrors:
    source = item.get("source")
    errors: FieldErrors = []
    if not source:
        errors.append(required(path.child("source")))
    elif source not in CONFIG_SOURCES:
        errors.append(not_supported(path.child("source"), source, CONFIG_SOURCES))
    errors += request_references(item.get("requests"), path.child("requests"), requests)
    return errors + fields.configuration(item, path, stored=False)


def _device_statuses(status: Document) -> FieldErrors:
    devices: Sequence[Document] = status.get("devices") or ()
    if not devices:
        return []
    path = STATUS.child("devices")
    allocated = {device_id(result) for result in results_in({"status": status})}
    errors: FieldErrors = []
    for index, item in enumerate(devices):
        errors += validate_device_status(item, path.index(index), allocated)
    seen: set[DeviceID] = set()
    for index, item in enumerate(devices):
        key = device_id(item)
        if key in seen:
            errors.append(device_id_duplicate(path.index(index), _shown(key)))
        seen.add(key)
    return errors


def _shown(key: DeviceID) -> str:
    return "/".join(key[:3]) + (f"/{key[3]}" if key[3] else "")


def validate_device_status(item: Document, path: Path, allocated: set[DeviceID]) -> FieldErrors:
    """Return the validation errors of an entry of `status.devices`."""
    errors = fields.driver_name(item.get("driver"), path, "driver")
    errors += fields.pool_name(item.get("pool"), path, "pool")
    errors += fields.label(item.get("device"), path, "device")
    if item.get("shareID") is not None:
        errors += fields.uid(item["shareID"], path.child("shareID"))
    key = device_id(item)
    if key not in allocated:
        errors.append(device_id_invalid(path, _shown(key), "must be an allocated device in the claim"))
    conditions = item.get("conditions")
    if conditions and len(conditions) > fields.CONDITIONS_MAX:
        errors.append(too_many(path.child("conditions"), len(conditions), fields.CONDITIONS_MAX))
    errors += validate_conditions(conditions or (), path.child("conditions"))
    if item.get("data") is not None:
        errors += fields.raw_object(item["data"], path.child("data"), stored=False, length_max=DATA_LENGTH_MAX)
    return errors + validate_network_data(item.get("networkData"), path.child("networkData"))


def validate_network_data(data: Document | None, path: Path) -> FieldErrors:
    """Return the validation errors of a device's `networkData`."""
    if data is None:
        return []
    errors: FieldErrors = []
    if fields.byte_length(data.get("interfaceName") or "") > INTERFACE_NAME_LENGTH_MAX:
        errors.append(too_long(path.child("interfaceName"), INTERFACE_NAME_LENGTH_MAX))
    if fields.byte_length(data.get("hardwareAddress") or "") > HARDWARE_ADDRESS_LENGTH_MAX:
        errors.append(too_long(path.child("hardwareAddress"), HARDWARE_ADDRESS_LENGTH_MAX))
    ips: list[str] = data.get("ips") or []
    if len(ips) > IPS_MAX:
        return [*errors, too_many(path.child("ips"), len(ips), IPS_MAX)]
    for index, address in enumerate(ips):
        errors += _interface_address(address, path.child("ips").index(index))
    repeated = (index for index, address in enumerate(ips) if address in ips[:index])
    return errors + [duplicate(path.child("ips").index(index), ips[index]) for index in repeated]


_has_leading_zero = re.compile(r"(^|\.)0[0-9]").search


def _interface_address(address: str, path: Path) -> FieldErrors:
    text, separator, length = address.partition("/")
    try:
        # Leading zeros are accepted while parsing, and then rejected as not canonical.
        tolerant = re.sub(r"(^|\.)0+(?=[0-9])", r"\1", text) if _has_leading_zero(text) and ":" not in text else text
        interface = ipaddress.ip_interface(f"{tolerant}/{int(length)}" if length.isdecimal() else "")
    except ValueError:
        interface = None
    if interface is None or not separator or "%" in text:
        return [invalid(path, address, "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)")]
    canonical = str(interface)
    return [] if canonical == address else [invalid(path, address, f'must be in canonical form ("{canonical}")')]
