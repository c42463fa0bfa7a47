"""How the server prints a rejected structure: with the names and the order of Kubernetes' internal types.

An error that shows a whole structure (an immutable spec, for example) prints every field, unset ones as zero or null.
The fields come from the schema: Go declares them in the order of their protobuf numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from dray.api.field_errors import ErrorType, FieldError, Path
from dray.api.schema import load
from dray.api.schema.model import Field, ListOf, MapOf, Scalar, StructType, Type

NODE_SELECTOR_TERM: Final = "io.k8s.api.core.v1.NodeSelectorTerm"
POD_CLAIM: Final = "io.k8s.api.core.v1.PodResourceClaim"

# Go names that are not the capitalized JSON name.
_GO_NAMES: Final = {"cel": "CEL"} | {
    f"{kind}{plural}": f"{kind.capitalize()}Value{plural}"
    for kind in ("int", "bool", "string", "version")
    for plural in ("", "s")
}
# The printed form of an unset field that is not a pointer; all other types print null.
_ZEROES: Final[Mapping[Type, object]] = {Scalar.STRING: "", Scalar.INT32: 0, Scalar.INT64: 0, Scalar.BOOL: False}


def internal_form(name: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the value of the named schema type as the server prints it."""
    return _struct_form(load.struct(name), value or {})


def _struct_form(struct: StructType, value: Mapping[str, Any]) -> dict[str, Any]:
    return {printed: _field_form(field, value.get(field.name)) for printed, field in _printed_fields(struct.name)}


@cache
def _printed_fields(name: str) -> tuple[tuple[str, Field], ...]:
    """Return the fields of a Go struct in order; fields without a protobuf number are extensions of Dray."""
    fields = (field for field in load.struct(name).fields.values() if field.number)
    ordered = sorted(fields, key=lambda field: (*field.via, field.number)[0])
    return tuple((_GO_NAMES.get(field.name, field.name[0].upper() + field.name[1:]), field) for field in ordered)


def _field_form(field: Field, value: Any) -> Any:
    if value is not None:
        return _form(field.type, value)
    if isinstance(field.type, StructType) and field.always:
        return _struct_form(field.type, {})
    return _ZEROES.get(field.type) if isinstance(field.type, Scalar) and not field.pointer else None


def _form(type_: Type, value: Any) -> Any:
    if isinstance(type_, StructType):
        return _struct_form(type_, value)
    if isinstance(type_, ListOf):
        return [_form(type_.element, item) for item in value]
    if isinstance(type_, MapOf):
        return {key: _form(type_.element, value[key]) for key in sorted(value)}
    return value


@dataclass(frozen=True, slots=True)
class BareValueError(FieldError):
    """A field error whose value prints without quotes, as types with their own string form do."""

    @property
    def body(self) -> str:
        """Return the text without the field path."""
        label = "Duplicate value" if self.type is ErrorType.DUPLICATE else "Invalid value"
        return f"{label}: {self.value}: {self.detail}" if self.detail else f"{label}: {self.value}"


def device_id_invalid(path: Path, device_id: str, detail: str) -> FieldError:
    """Return the error for a device that the claim does not have."""
    return BareValueError(ErrorType.INVALID, str(path), device_id, detail)


def device_id_duplicate(path: Path, device_id: str) -> FieldError:
    """Return the error for a device that is listed twice."""
    return BareValueError(ErrorType.DUPLICATE, str(path), device_id)
