"""Conversion of a structural schema to the type model of decoding and server-side apply."""

from __future__ import annotations

from typing import Any, Final

from dray.api.document import Document
from dray.api.schema import load
from dray.api.schema.model import Field, ListOf, ListType, MapOf, Scalar, StructType, Type
from dray.api.strict import check_fields

PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
EMBEDDED: Final = "x-kubernetes-embedded-resource"
INT_OR_STRING: Final = "x-kubernetes-int-or-string"
LIST_TYPE: Final = "x-kubernetes-list-type"
MAP_KEYS: Final = "x-kubernetes-list-map-keys"
MAP_TYPE: Final = "x-kubernetes-map-type"
RULES: Final = "x-kubernetes-validations"

_SCALARS: Final = {
    "string": Scalar.STRING,
    "integer": Scalar.INT64,
    "number": Scalar.DOUBLE,
    "boolean": Scalar.BOOL,
}


def object_type(schema: Document | None, name: str) -> StructType:
    """Return the type of a custom kind; without a schema it keeps all fields.

    `name` identifies the type in messages by its last part.
    """
    struct = _struct(schema or {PRESERVE: True}, name)
    struct.fields.update(_object_fields())
    return struct


def _object_fields() -> dict[str, Field]:
    return {
        "apiVersion": Field("apiVersion", Scalar.STRING),
        "kind": Field("kind", Scalar.STRING),
        "metadata": Field("metadata", load.object_meta()),
    }


def _struct(schema: Document, name: str) -> StructType:
    struct = StructType(name, atomic=schema.get(MAP_TYPE) == "atomic", open=bool(schema.get(PRESERVE)))
    required = frozenset(schema.get("required") or ())
    for key, inner in (schema.get("properties") or {}).items():
        kind = _type(inner, f"{name}.{key}")
        struct.fields[key] = Field(key, kind, required=key in required, default=inner.get("default"))
    if schema.get(EMBEDDED):
        struct.fields.update(_object_fields())
    return struct


def _type(schema: Document, name: str) -> Type:
    if schema.get(INT_OR_STRING):
        # Validation finds what is neither.
        return Scalar.ANY
    kind = schema.get("type")
    if kind == "object":
        return _object(schema, name)
    if kind == "array":
        return _list(schema, name)
    return _SCALARS.get(kind or "", Scalar.ANY)


def _object(schema: Document, name: str) -> Type:
    additional = schema.get("additionalProperties")
    # `additionalProperties: true` without or beside properties allows every field.
    if additional and not schema.get("properties"):
        element: Type = _type(additional, name) if isinstance(additional, dict) else Scalar.ANY
        return MapOf(element, atomic=schema.get(MAP_TYPE) == "atomic")
    struct = _struct(schema, name)
    struct.open = struct.open or bool(additional)
    return struct


def _list(schema: Document, name: str) -> Type:
    items: Any = schema.get("items")
    element: Type = _type(items, name) if isinstance(items, dict) else Scalar.ANY
    return ListOf(element, ListType(schema.get(LIST_TYPE) or "atomic"), tuple(schema.get(MAP_KEYS) or ()))


_SCHEMA: Final = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"
_INSIDE: Final = ("items", "additionalProperties")


def normalize_schema(schema: Document) -> None:
    """Decode the schemas nested in a schema in place, which its own type has as any value; raises `DecodeError`."""
    for keyword in _INSIDE:
        if isinstance(schema.get(keyword), dict):
            check_fields(schema[keyword], load.struct(_SCHEMA))
            normalize_schema(schema[keyword])
    for inner in (schema.get("properties") or {}).values():
        normalize_schema(inner)
    for keyword in ("allOf", "oneOf", "anyOf"):
        for inner in schema.get(keyword) or ():
            normalize_schema(inner)
    if schema.get("not") is not None:
        normalize_schema(schema["not"])
