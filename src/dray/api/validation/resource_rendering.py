"""How the server prints a rejected structure: with the names and the order of Kubernetes' internal types.

An error that shows a whole structure (an immutable spec, say) prints every field, unset ones as null. The tables
hold the fields of resource.k8s.io's internal types that can appear in such an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dray.api.field_errors import ErrorType, FieldError, Path

# A field: its printed name, its JSON name, and the shape of its value ("" for a plain value).
_Field = tuple[str, str, str]

# What an unset field of the shape prints; shapes that are not here print null.
_UNSET: Final[Mapping[str, object]] = {"text": "", "number": 0}

_SHAPES: Final[Mapping[str, Sequence[_Field]]] = {
    "ClaimSpec": (("Devices", "devices", "DeviceClaim!"),),
    "DeviceClaim": (
        ("Requests", "requests", "Request[]"),
        ("Constraints", "constraints", "Constraint[]"),
        ("Config", "config", "ClaimConfig[]"),
    ),
    "Request": (
        ("Name", "name", "text"),
        ("Exactly", "exactly", "Exactly"),
        ("FirstAvailable", "firstAvailable", "SubRequest[]"),
    ),
    "Exactly": (
        ("DeviceClassName", "deviceClassName", "text"),
        ("Selectors", "selectors", "Selector[]"),
        ("AllocationMode", "allocationMode", "text"),
        ("Count", "count", "number"),
        ("AdminAccess", "adminAccess", ""),
        ("Tolerations", "tolerations", "Toleration[]"),
        ("Capacity", "capacity", "Capacity"),
    ),
    "SubRequest": (
        ("Name", "name", "text"),
        ("DeviceClassName", "deviceClassName", "text"),
        ("Selectors", "selectors", "Selector[]"),
        ("AllocationMode", "allocationMode", "text"),
        ("Count", "count", "number"),
        ("Tolerations", "tolerations", "Toleration[]"),
        ("Capacity", "capacity", "Capacity"),
    ),
    "Selector": (("CEL", "cel", "CEL"),),
    "CEL": (("Expression", "expression", "text"),),
    "Toleration": (
        ("Key", "key", "text"),
        ("Operator", "operator", "text"),
        ("Value", "value", "text"),
        ("Effect", "effect", "text"),
        ("TolerationSeconds", "tolerationSeconds", ""),
    ),
    "Capacity": (("Requests", "requests", "map"),),
    "Constraint": (
        ("Requests", "requests", ""),
        ("MatchAttribute", "matchAttribute", ""),
        ("DistinctAttribute", "distinctAttribute", ""),
    ),
    "ClaimConfig": (("Requests", "requests", ""), ("Opaque", "opaque", "Opaque")),
    "Opaque": (("Driver", "driver", "text"), ("Parameters", "parameters", "")),
    "Allocation": (
        ("Devices", "devices", "DeviceAllocation!"),
        ("NodeSelector", "nodeSelector", "NodeSelector"),
        ("AllocationTimestamp", "allocationTimestamp", ""),
    ),
    "DeviceAllocation": (("Results", "results", "Result[]"), ("Config", "config", "AllocationConfig[]")),
    "Result": (
        ("Request", "request", "text"),
        ("Driver", "driver", "text"),
        ("Pool", "pool", "text"),
        ("Device", "device", "text"),
        ("AdminAccess", "adminAccess", ""),
        ("Tolerations", "tolerations", "Toleration[]"),
        ("BindingConditions", "bindingConditions", ""),
        ("BindingFailureConditions", "bindingFailureConditions", ""),
        ("ShareID", "shareID", ""),
        ("ConsumedCapacity", "consumedCapacity", "map"),
    ),
    "AllocationConfig": (
        ("Source", "source", "text"),
        ("Requests", "requests", ""),
        ("Opaque", "opaque", "Opaque"),
    ),
    "NodeSelector": (("NodeSelectorTerms", "nodeSelectorTerms", "NodeSelectorTerm[]"),),
    "NodeSelectorTerm": (
        ("MatchExpressions", "matchExpressions", "NodeRequirement[]"),
        ("MatchFields", "matchFields", "NodeRequirement[]"),
    ),
    "NodeRequirement": (("Key", "key", "text"), ("Operator", "operator", "text"), ("Values", "values", "")),
    "Attribute": (
        ("IntValue", "int", ""),
        ("BoolValue", "bool", ""),
        ("StringValue", "string", ""),
        ("VersionValue", "version", ""),
        ("IntValues", "ints", ""),
        ("BoolValues", "bools", ""),
        ("StringValues", "strings", ""),
        ("VersionValues", "versions", ""),
    ),
    "PodClaim": (
        ("Name", "name", "text"),
        ("ResourceClaimName", "resourceClaimName", ""),
        ("ResourceClaimTemplateName", "resourceClaimTemplateName", ""),
    ),
}


def internal_form(shape: str, value: Any) -> Any:
    """The value as the server prints it.

    `shape` is a name of the table; `X[]` is a list of X, and `X!` an X that prints even when it is unset.
    """
    if shape.endswith("!"):
        return internal_form(shape[:-1], value or {})
    if value is None:
        return _UNSET.get(shape)
    if shape.endswith("[]"):
        return [internal_form(shape[:-2], item) for item in value]
    if shape == "map":
        return {key: value[key] for key in sorted(value)}
    fields = _SHAPES.get(shape)
    if fields is None:
        return value
    return {name: internal_form(inner, value.get(key)) for name, key, inner in fields}


def template_spec_form(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A claim template's spec: its metadata prints in line, beside the claim's spec."""
    return {**(spec.get("metadata") or {}), "Spec": internal_form("ClaimSpec!", spec.get("spec"))}


@dataclass(frozen=True, slots=True)
class BareValueError(FieldError):
    """A field error whose value prints without quotes, as identifiers with a text form of their own do."""

    @property
    def body(self) -> str:
        """The text without the field path."""
        label = "Duplicate value" if self.type is ErrorType.DUPLICATE else "Invalid value"
        return f"{label}: {self.value}: {self.detail}" if self.detail else f"{label}: {self.value}"


def device_id_invalid(path: Path, device_id: str, detail: str) -> FieldError:
    """A device that does not belong here."""
    return BareValueError(ErrorType.INVALID, str(path), device_id, detail)


def device_id_duplicate(path: Path, device_id: str) -> FieldError:
    """A device that is listed twice."""
    return BareValueError(ErrorType.DUPLICATE, str(path), device_id)
