"""Fields of disabled features: dropped on write, unless the stored object already uses the feature.

The tables list every gated field. A path's segments are separated by dots; `[]` stands for every item of a
list, `{}` for every value of a map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.api.spec_cache import json_text


@dataclass(frozen=True, slots=True)
class FieldPaths:
    """Fields of one structure, and the segments that lead to it."""

    segments: tuple[str, ...]
    names: frozenset[str]

    def holders(self, obj: Document) -> list[Any]:
        """Return the structures of the object that have one of the fields, even an empty one."""
        found = _structures(obj, self.segments)
        return [holder for holder in found if not self.names.isdisjoint(holder)] if found else found

    def is_any_set(self, obj: Document) -> bool:
        """Report whether the object has one of the fields; an empty list or map counts as unset."""
        return any(
            holder[name] not in (None, [], {}) for holder in self.holders(obj) for name in self.names if name in holder
        )


# Compared by identity, so that the tables are hashed fast.
@dataclass(frozen=True, slots=True, eq=False)
class GatedFields:
    """The fields of one feature of a kind."""

    gate: str
    spec: tuple[FieldPaths, ...]
    status: tuple[FieldPaths, ...]
    # The names as they are written in JSON text.
    spec_names: tuple[bytes, ...]
    status_names: tuple[bytes, ...]


def _gated(gate: str, *paths: str) -> GatedFields:
    # Fields of the same structure are handled in one pass: a slice has thousands of attributes.
    names: dict[tuple[str, ...], list[str]] = {}
    for path in paths:
        *segments, name = path.replace("[]", ".[]").replace("{}", ".{}").split(".")
        names.setdefault(tuple(segments), []).append(name)
    fields = [FieldPaths(segments, frozenset(group)) for segments, group in names.items()]
    spec = tuple(field for field in fields if field.segments[0] == "spec")
    status = tuple(field for field in fields if field.segments[0] == "status")
    return GatedFields(gate, spec, status, _quoted(spec), _quoted(status))


def _quoted(fields: Sequence[FieldPaths]) -> tuple[bytes, ...]:
    names = frozenset[str]().union(*(paths.names for paths in fields))
    return tuple(f'"{name}"'.encode() for name in sorted(names))


_REQUESTS: Final = "spec.devices.requests[]"
_RESULTS: Final = "status.allocation.devices.results[]"
_DEVICES: Final = "spec.devices[]"

CLAIM_FIELDS: Final = (
    _gated(
        "DRAConsumableCapacity",
        f"{_REQUESTS}.exactly.capacity",
        f"{_REQUESTS}.firstAvailable[].capacity",
        "spec.devices.constraints[].distinctAttribute",
        f"{_RESULTS}.shareID",
        f"{_RESULTS}.consumedCapacity",
        "status.devices[].shareID",
    ),
    _gated(
        "DRADerivedAttributes",
        f"{_REQUESTS}.exactly.derivedAttributes",
        f"{_REQUESTS}.firstAvailable[].derivedAttributes",
    ),
    _gated("DRAOptionalNodeOperations", f"{_RESULTS}.skipNodeOperations"),
    _gated("DRADeviceBindingConditions", f"{_RESULTS}.bindingConditions", f"{_RESULTS}.bindingFailureConditions"),
)
SLICE_FIELDS: Final = (
    _gated("DRADeviceTaints", f"{_DEVICES}.taints"),
    _gated(
        "DRAPartitionableDevices",
        "spec.sharedCounters",
        "spec.perDeviceNodeSelection",
        *(f"{_DEVICES}.{name}" for name in ("consumesCounters", "nodeName", "nodeSelector", "allNodes")),
    ),
    _gated(
        "DRADeviceBindingConditions",
        *(f"{_DEVICES}.{name}" for name in ("bindingConditions", "bindingFailureConditions", "bindsToNode")),
    ),
    _gated("DRAConsumableCapacity", f"{_DEVICES}.allowMultipleAllocations", f"{_DEVICES}.capacity{{}}.requestPolicy"),
    _gated("DRANodeAllocatableResources", f"{_DEVICES}.nodeAllocatableResources"),
    _gated("DRADeviceCompatibilityGroups", f"{_DEVICES}.consumesCounters[].compatibilityGroups"),
    _gated("DRAOptionalNodeOperations", "spec.skipNodeOperations"),
    _gated("DRAPartitionableDevicesType", "spec.partitionTypeAttribute"),
    _gated(
        "DRAListTypeAttributes",
        *(f"{_DEVICES}.attributes{{}}.{name}" for name in ("bools", "ints", "strings", "versions")),
    ),
)
POD_GROUP_FIELDS: Final = (
    _gated("DRAWorkloadResourceClaims", "spec.resourceClaims", "status.resourceClaimStatuses"),
    _gated("TopologyAwareWorkloadScheduling", "spec.schedulingConstraints"),
)
WORKLOAD_FIELDS: Final = (
    _gated("DRAWorkloadResourceClaims", "spec.podGroupTemplates[].resourceClaims"),
    _gated("TopologyAwareWorkloadScheduling", "spec.podGroupTemplates[].schedulingConstraints"),
)

POOL_STATUS_FIELDS: Final = (_gated("DRAPartitionableDevicesType", "spec.defaultPartitionTypeAttribute"),)


# One entry for each table and server.
@lru_cache(maxsize=64)
def _disabled(fields: tuple[GatedFields, ...], disabled: frozenset[str]) -> tuple[GatedFields, ...]:
    """Return the features of a table whose gates are off."""
    return tuple(feature for feature in fields if feature.gate in disabled)


def drop_disabled_fields(
    fields: tuple[GatedFields, ...], obj: Document, old: Document | None, gates: FeatureGates
) -> None:
    """Drop the spec's fields of disabled features that the stored spec does not use; `old` is None on create."""
    text = json_text(obj.get("spec"))
    for feature in _disabled(fields, gates.disabled):
        if _may_have(feature.spec_names, text):
            _drop_unused(feature.spec, obj, feature.spec, old)


def drop_disabled_status_fields(
    fields: tuple[GatedFields, ...], obj: Document, old: Document, gates: FeatureGates
) -> None:
    """Drop the status's fields of disabled features that the stored object, spec or status, does not use."""
    text = json_text(obj.get("status"))
    for feature in _disabled(fields, gates.disabled):
        if _may_have(feature.status_names, text):
            _drop_unused(feature.status, obj, feature.spec + feature.status, old)


def _may_have(names: Sequence[bytes], text: bytes | None) -> bool:
    """Report whether a text has one of the names; nearly none has, and it is searched faster than the object."""
    if text is None:
        return True
    for name in names:  # noqa: SIM110 - a generator costs twice as much here
        if name in text:
            return True
    return False


def _drop_unused(
    fields: Sequence[FieldPaths], obj: Document, all_fields: Sequence[FieldPaths], old: Document | None
) -> None:
    """Drop the fields from the object, unless the stored one uses any of all fields."""
    # The stored one is looked at last.
    found = [(holder, paths.names) for paths in fields for holder in paths.holders(obj)]
    if not found or (old is not None and any(paths.is_any_set(old) for paths in all_fields)):
        return
    for holder, names in found:
        for name in names:
            holder.pop(name, None)


def _structures(obj: Document, segments: tuple[str, ...]) -> list[Any]:
    """Return the structures at the end of the segments, without those that are absent."""
    found: list[Any] = [obj]
    for segment in segments:
        if not found:
            return found
        if segment == "[]":
            found = [item for items in found for item in items if item]
        elif segment == "{}":
            found = [item for items in found for item in items.values() if item]
        else:
            found = [child for parent in found if (child := parent.get(segment))]
    return found
