"""Fields of features that are off: dropped on write, unless the stored object uses the feature already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dray.api.document import Document
from dray.api.features import FeatureGates


def drop_from_claim_spec(spec: Document, old: Document | None, gates: FeatureGates) -> None:
    """Drop gated fields of a claim's spec."""
    if not gates.enabled("DRAPrioritizedList") and not _lists_alternatives(old):
        for request in _requests(spec):
            request.pop("firstAvailable", None)
    if not gates.enabled("DRAAdminAccess") and not _asks_for_admin_access(old):
        for exactly in _exactly(spec):
            exactly.pop("adminAccess", None)
    if not gates.enabled("DRAConsumableCapacity") and not _asks_for_capacity(old):
        for holder in _device_requests(spec):
            holder.pop("capacity", None)
        for constraint in _constraints(spec):
            constraint.pop("distinctAttribute", None)


def drop_from_claim_status(claim: Document, old: Document, gates: FeatureGates) -> None:
    """Drop gated fields of a claim's status."""
    status, old_status = claim.get("status") or {}, old.get("status") or {}
    if not gates.enabled("DRAResourceClaimDeviceStatus") and not old_status.get("devices"):
        status.pop("devices", None)
    if not gates.enabled("DRAAdminAccess") and not _uses_admin_access(old, old_status):
        _drop_from(_results(status), "adminAccess")
    if not gates.enabled("DRAConsumableCapacity") and not _uses_capacity(old, old_status):
        _drop_from(_results(status), "shareID", "consumedCapacity")
        _drop_from(iter(status.get("devices") or ()), "shareID")
    binding = ("bindingConditions", "bindingFailureConditions")
    if not gates.enabled("DRADeviceBindingConditions") and not _any_has(_results(old_status), *binding):
        _drop_from(_results(status), *binding)


def drop_from_slice(spec: Document, old: Document | None, gates: FeatureGates) -> None:
    """Drop gated fields of a slice's spec."""
    old_devices = list(_devices(old))
    if not gates.enabled("DRADeviceTaints") and not _any_has(iter(old_devices), "taints"):
        _drop_from(_devices(spec), "taints")
    if not gates.enabled("DRAPartitionableDevices") and not _is_partitioned(old):
        _drop_from(iter((spec,)), "sharedCounters", "perDeviceNodeSelection")
        _drop_from(_devices(spec), "consumesCounters", "nodeName", "nodeSelector", "allNodes")
    # Binding conditions are reported in the device status, so they need both features.
    binding = ("bindingConditions", "bindingFailureConditions", "bindsToNode")
    enabled = gates.enabled("DRADeviceBindingConditions") and gates.enabled("DRAResourceClaimDeviceStatus")
    if not enabled and not _any_has(iter(old_devices), *binding):
        _drop_from(_devices(spec), *binding)
    if not gates.enabled("DRAConsumableCapacity") and not _has_consumable_capacity(old_devices):
        _drop_from(_devices(spec), "allowMultipleAllocations")
        _drop_from(_values(spec, "capacity"), "requestPolicy")
    if not gates.enabled("DRANodeAllocatableResources"):
        mappings = "nodeAllocatableResourceMappings"
        if not _any_has(iter(old_devices), mappings):
            _drop_from(_devices(spec), mappings)
    lists = ("bools", "ints", "strings", "versions")
    if not gates.enabled("DRAListTypeAttributes") and not _any_has(_values(old, "attributes"), *lists):
        _drop_from(_values(spec, "attributes"), *lists)


def drop_from_class(spec: Document, old: Document | None, gates: FeatureGates) -> None:
    """Drop gated fields of a class's spec."""
    if not gates.enabled("DRAExtendedResource") and (old or {}).get("extendedResourceName") is None:
        spec.pop("extendedResourceName", None)


def _drop_from(holders: Iterator[Document], *names: str) -> None:
    for holder in holders:
        for name in names:
            holder.pop(name, None)


def _any_has(holders: Iterator[Document], *names: str) -> bool:
    """Whether a holder has one of the fields; an empty list is as good as none."""
    return any(holder.get(name) not in (None, [], {}) for holder in holders for name in names)


def _requests(spec: Document | None) -> Iterator[Document]:
    yield from ((spec or {}).get("devices") or {}).get("requests") or ()


def _constraints(spec: Document | None) -> Iterator[Document]:
    yield from ((spec or {}).get("devices") or {}).get("constraints") or ()


def _exactly(spec: Document | None) -> Iterator[Document]:
    return (request["exactly"] for request in _requests(spec) if request.get("exactly"))


def _device_requests(spec: Document | None) -> Iterator[Document]:
    yield from _exactly(spec)
    for request in _requests(spec):
        yield from request.get("firstAvailable") or ()


def _lists_alternatives(spec: Document | None) -> bool:
    return _any_has(_requests(spec), "firstAvailable")


def _asks_for_admin_access(spec: Document | None) -> bool:
    return _any_has(_exactly(spec), "adminAccess")


def _asks_for_capacity(spec: Document | None) -> bool:
    return _any_has(_device_requests(spec), "capacity") or _any_has(_constraints(spec), "distinctAttribute")


def _results(status: Document) -> Iterator[Document]:
    yield from ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()


def _uses_admin_access(claim: Document, status: Document) -> bool:
    return _asks_for_admin_access(claim.get("spec")) or _any_has(_results(status), "adminAccess")


def _uses_capacity(claim: Document, status: Document) -> bool:
    if _asks_for_capacity(claim.get("spec")) or _any_has(_results(status), "shareID", "consumedCapacity"):
        return True
    return _any_has(iter(status.get("devices") or ()), "shareID")


def _devices(spec: Document | None) -> Iterator[Document]:
    yield from (spec or {}).get("devices") or ()


def _values(spec: Document | None, name: str) -> Iterator[Any]:
    for device in _devices(spec):
        yield from (device.get(name) or {}).values()


def _is_partitioned(spec: Document | None) -> bool:
    if spec is None:
        return False
    if _any_has(iter((spec,)), "sharedCounters", "perDeviceNodeSelection"):
        return True
    return _any_has(_devices(spec), "consumesCounters", "nodeName", "nodeSelector", "allNodes")


def _has_consumable_capacity(devices: list[Document]) -> bool:
    if _any_has(iter(devices), "allowMultipleAllocations"):
        return True
    return any(_any_has(iter((device.get("capacity") or {}).values()), "requestPolicy") for device in devices)
