"""Fields of disabled features: dropped on write, unless the stored object already uses the feature.

The tables list every gated field. A path's segments are separated by dots; `[]` stands for every item of a
list, `{}` for every value of a map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

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

    def path(self, name: str) -> str:
        """Return the path of one of the fields."""
        return ".".join((*self.segments, name)).replace(".[]", "[]").replace(".{}", "{}")

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


def _gated(gate: str, *paths: str) -> GatedFields:
    # Fields of the same structure are handled in one pass: a slice has thousands of attributes.
    names: dict[tuple[str, ...], list[str]] = {}
    for path in paths:
        *segments, name = path.replace("[]", ".[]").replace("{}", ".{}").split(".")
        names.setdefault(tuple(segments), []).append(name)
    return _gated_fields(gate, [FieldPaths(segments, frozenset(group)) for segments, group in names.items()])


def _gated_fields(gate: str, fields: Sequence[FieldPaths]) -> GatedFields:
    spec = tuple(field for field in fields if field.segments[0] == "spec")
    status = tuple(field for field in fields if field.segments[0] == "status")
    return GatedFields(gate, spec, status)


def _of_template(fields: Sequence[GatedFields], *place: str) -> tuple[GatedFields, ...]:
    """Return the fields of the specs of templates at a place of another spec."""
    return tuple(
        _gated_fields(
            feature.gate, [FieldPaths(("spec", *place, *paths.segments), paths.names) for paths in feature.spec]
        )
        for feature in fields
    )


_REQUESTS: Final = "spec.devices.requests[]"
_RESULTS: Final = "status.allocation.devices.results[]"
_DEVICES: Final = "spec.devices[]"

CLAIM_FIELDS: Final = (
    _gated("DRAPrioritizedList", f"{_REQUESTS}.firstAvailable"),
    _gated("DRAAdminAccess", f"{_REQUESTS}.exactly.adminAccess", f"{_RESULTS}.adminAccess"),
    _gated(
        "DRADeviceTaints",
        f"{_REQUESTS}.exactly.tolerations",
        f"{_REQUESTS}.firstAvailable[].tolerations",
    ),
    _gated("DRAResourceClaimDeviceStatus", "status.devices"),
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
CLASS_FIELDS: Final = (_gated("DRAExtendedResource", "spec.extendedResourceName"),)
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

_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")
_HEALTH: Final = tuple(
    f"status.{kind}[].allocatedResourcesStatus"
    for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
)
POD_FIELDS: Final = (
    _gated(
        "DynamicResourceAllocation",
        "spec.resourceClaims",
        *(f"spec.{kind}[].resources.claims" for kind in _CONTAINERS),
        "status.resourceClaimStatuses",
    ),
    _gated("DRAExtendedResource", "status.extendedResourceClaimStatus"),
    _gated("GenericWorkload", "spec.schedulingGroup"),
    _gated("DRANodeAllocatableResources", "status.nodeAllocatableResourceClaimStatuses"),
    _gated("ResourceHealthStatus", *_HEALTH),
    _gated("ResourceHealthStatusMessage", *(f"{path}[].resources[].message" for path in _HEALTH)),
)
# Of Deployments and other kinds with Pods.
TEMPLATE_FIELDS: Final = _of_template(POD_FIELDS, "template")
JOB_FIELDS: Final = (*TEMPLATE_FIELDS, _gated("WorkloadWithJob", "spec.scheduling"))
CRON_JOB_FIELDS: Final = (
    *_of_template(TEMPLATE_FIELDS, "jobTemplate"),
    _gated("WorkloadWithJob", "spec.jobTemplate.spec.scheduling"),
)


class _DisabledPart(NamedTuple):
    """The fields of spec or status whose gates are off."""

    # With the fields that show that the stored object uses the feature.
    features: tuple[tuple[GatedFields, Sequence[FieldPaths], Sequence[FieldPaths]], ...]
    # Their names as they are written in JSON text, which is searched first; none if no field is deep in the object.
    names: tuple[bytes, ...]

    def may_be_in(self, part: Document | None) -> bool:
        """Report whether a part may have one of the fields; nearly none has."""
        text = json_text(part) if self.names else None
        if text is not None:
            return any(map(text.__contains__, self.names))
        return bool(self.features)


# One entry for each table and server.
@lru_cache(maxsize=64)
def _disabled(fields: tuple[GatedFields, ...], disabled: frozenset[str]) -> tuple[_DisabledPart, _DisabledPart]:
    """Return the disabled fields of the spec and of the status."""
    features = [feature for feature in fields if feature.gate in disabled]
    spec = [(feature, feature.spec, feature.spec) for feature in features if feature.spec]
    status = [(feature, feature.status, feature.spec + feature.status) for feature in features if feature.status]
    return _disabled_part(spec), _disabled_part(status)


def _disabled_part(
    features: Sequence[tuple[GatedFields, Sequence[FieldPaths], Sequence[FieldPaths]]],
) -> _DisabledPart:
    fields = [paths for _, own, _ in features for paths in own]
    is_deep = any(len(paths.segments) > 1 for paths in fields)
    names = sorted({name for paths in fields for name in paths.names}) if is_deep else ()
    return _DisabledPart(tuple(features), tuple(f'"{name}"'.encode() for name in names))


def drop_disabled_fields(
    fields: tuple[GatedFields, ...], obj: Document, old: Document | None, gates: FeatureGates
) -> list[str]:
    """Drop the spec's fields of disabled features that the stored spec does not use; `old` is None on create.

    Returns what to tell the client.
    """
    part, _ = _disabled(fields, gates.disabled)
    if not part.may_be_in(obj.get("spec")):
        return []
    return [
        f"{path}: dropped, because the feature gate {feature.gate} is disabled"
        for feature, own, using in part.features
        for path in _drop_unused(own, obj, using, old)
    ]


def drop_disabled_status_fields(
    fields: tuple[GatedFields, ...], obj: Document, old: Document, gates: FeatureGates
) -> None:
    """Drop the status's fields of disabled features that the stored object, spec or status, does not use."""
    _, part = _disabled(fields, gates.disabled)
    if part.may_be_in(obj.get("status")):
        for _, own, using in part.features:
            _drop_unused(own, obj, using, old)


def _drop_unused(
    fields: Sequence[FieldPaths], obj: Document, all_fields: Sequence[FieldPaths], old: Document | None
) -> list[str]:
    """Drop the fields from the object, unless the stored one uses any of all fields; return their paths."""
    # The stored one is looked at last.
    found = [(paths, holders) for paths in fields if (holders := paths.holders(obj))]
    if not found or (old is not None and any(paths.is_any_set(old) for paths in all_fields)):
        return []
    dropped: list[str] = []
    for paths, holders in found:
        present = [name for name in sorted(paths.names) if any(name in holder for holder in holders)]
        for holder in holders:
            for name in present:
                holder.pop(name, None)
        dropped += [paths.path(name) for name in present]
    return dropped


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
