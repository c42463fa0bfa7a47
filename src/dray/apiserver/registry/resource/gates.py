"""Fields of disabled features: dropped on write, unless the stored object already uses the feature.

The tables list every gated field. A path's segments are separated by dots; `[]` stands for every item of a
list, `{}` for every value of a map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dray.api.document import Document
from dray.api.features import FeatureGates


@dataclass(frozen=True, slots=True)
class FieldPaths:
    """Fields of one structure, and the segments that lead to it."""

    segments: tuple[str, ...]
    names: tuple[str, ...]

    def is_any_set(self, obj: Document) -> bool:
        """Report whether the object has one of the fields; an empty list or map counts as unset."""
        for holder in _holders(obj, self.segments):
            for name in self.names:
                if name in holder and holder[name] not in (None, [], {}):
                    return True
        return False

    def drop_from(self, obj: Document) -> None:
        """Remove the fields wherever the object has them."""
        for holder in _holders(obj, self.segments):
            for name in self.names:
                holder.pop(name, None)


@dataclass(frozen=True, slots=True)
class GatedFields:
    """The fields of one feature of a kind."""

    gate: str
    spec: tuple[FieldPaths, ...]
    status: tuple[FieldPaths, ...]

    def enabled(self, gates: FeatureGates) -> bool:
        """Report whether the feature is enabled."""
        return gates.enabled(self.gate)


def _gated(gate: str, *paths: str) -> GatedFields:
    # Fields of the same structure are handled in one pass: a slice has thousands of attributes.
    names: dict[tuple[str, ...], list[str]] = {}
    for path in paths:
        *segments, name = path.replace("[]", ".[]").replace("{}", ".{}").split(".")
        names.setdefault(tuple(segments), []).append(name)
    fields = [FieldPaths(segments, tuple(group)) for segments, group in names.items()]
    return GatedFields(
        gate,
        tuple(field for field in fields if field.segments[0] == "spec"),
        tuple(field for field in fields if field.segments[0] == "status"),
    )


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


def drop_disabled_fields(
    fields: Sequence[GatedFields], obj: Document, old: Document | None, gates: FeatureGates
) -> None:
    """Drop the spec's fields of disabled features that the stored spec does not use; `old` is None on create."""
    for feature in fields:
        if not feature.enabled(gates) and not _is_used(feature.spec, old):
            _drop(feature.spec, obj)


def drop_disabled_status_fields(
    fields: Sequence[GatedFields], obj: Document, old: Document, gates: FeatureGates
) -> None:
    """Drop the status's fields of disabled features that the stored object, spec or status, does not use."""
    for feature in fields:
        if not feature.enabled(gates) and not _is_used(feature.spec + feature.status, old):
            _drop(feature.status, obj)


def _is_used(fields: Sequence[FieldPaths], old: Document | None) -> bool:
    return old is not None and any(paths.is_any_set(old) for paths in fields)


def _drop(fields: Sequence[FieldPaths], obj: Document) -> None:
    for paths in fields:
        paths.drop_from(obj)


def _holders(obj: Document, segments: tuple[str, ...]) -> list[Any]:
    """Return the structures at the end of the segments, without those that are absent."""
    found: list[Any] = [obj]
    for segment in segments:
        if segment == "[]":
            found = [item for items in found for item in items if item]
        elif segment == "{}":
            found = [item for items in found for item in items.values() if item]
        else:
            found = [child for parent in found if (child := parent.get(segment))]
    return found
