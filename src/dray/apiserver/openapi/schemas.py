"""Types of the schema as OpenAPI schemas, for v3 (`components/schemas`) and for v2 (`definitions`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from dray.api.document import Document, GroupVersionKind
from dray.api.schema import load
from dray.api.schema.model import Field, ListOf, ListType, MapOf, Scalar, StructType, Type
from dray.apiserver.openapi.descriptions import describe, fold
from dray.lib.processor_time import tick

_MACHINERY: Final = "io.k8s.apimachinery.pkg"
_META: Final = f"{_MACHINERY}.apis.meta.v1"
_APIEXTENSIONS: Final = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"

_INLINE: Final[dict[Scalar, Document]] = {
    Scalar.STRING: {"type": "string"},
    Scalar.INT32: {"type": "integer", "format": "int32"},
    Scalar.INT64: {"type": "integer", "format": "int64"},
    Scalar.DOUBLE: {"type": "number", "format": "double"},
    Scalar.BOOL: {"type": "boolean"},
    Scalar.BYTES: {"type": "string", "format": "byte"},
}
_NAMED: Final[dict[Scalar, str]] = {
    Scalar.TIME: f"{_META}.Time",
    Scalar.MICRO_TIME: f"{_META}.MicroTime",
    Scalar.DURATION: f"{_META}.Duration",
    Scalar.QUANTITY: f"{_MACHINERY}.api.resource.Quantity",
    Scalar.INT_OR_STRING: f"{_MACHINERY}.util.intstr.IntOrString",
}
_BY_WIRE: Final = {
    "schema-or-array": f"{_APIEXTENSIONS}.JSONSchemaPropsOrArray",
    "schema-or-bool": f"{_APIEXTENSIONS}.JSONSchemaPropsOrBool",
    "schema-or-strings": f"{_APIEXTENSIONS}.JSONSchemaPropsOrStringArray",
}
_RAW_EXTENSION: Final = f"{_MACHINERY}.runtime.RawExtension"
PATCH: Final = f"{_META}.Patch"

# Definitions that are not structs in our schema, with descriptions.
_LEAF_DEFINITIONS: Final[dict[str, Document]] = {
    f"{_META}.Time": {"description": "A moment, RFC 3339 with seconds.", "type": "string", "format": "date-time"},
    f"{_META}.MicroTime": {
        "description": "A moment, RFC 3339 with microseconds.",
        "type": "string",
        "format": "date-time",
    },
    f"{_META}.Duration": {"description": "A span of time such as 1h30m.", "type": "string"},
    f"{_META}.FieldsV1": {
        "description": "A set of fields as nested maps: `f:` names a field, `k:` and `v:` an item of a list.",
        "type": "object",
    },
    PATCH: {"description": "A change to an object, in the form its media type says.", "type": "object"},
    _RAW_EXTENSION: {"description": "An object of any kind.", "type": "object"},
    f"{_APIEXTENSIONS}.JSON": {"description": "Any JSON value."},
    f"{_APIEXTENSIONS}.JSONSchemaPropsOrArray": {"description": "A schema, or a list of schemas."},
    f"{_APIEXTENSIONS}.JSONSchemaPropsOrBool": {"description": "A schema, or a boolean."},
    f"{_APIEXTENSIONS}.JSONSchemaPropsOrStringArray": {"description": "A schema, or a list of field names."},
}
_QUANTITY_TEXT: Final = "An exact amount with a suffix: 1500m, 2Gi, 3."
_INT_OR_STRING_TEXT: Final = "An integer or a string."


@dataclass(frozen=True, slots=True)
class Dialect:
    """Differences between the two versions of OpenAPI."""

    v3: bool
    prefix: str

    def reference(self, name: str) -> Document:
        """Return a reference to a definition."""
        return {"$ref": f"{self.prefix}{name}"}

    def described_reference(self, name: str, extra: Document) -> Document:
        """Return a reference with further keywords, which v3 allows only around `allOf`."""
        if self.v3 and extra:
            return extra | {"allOf": [self.reference(name)]}
        return self.reference(name) | extra

    def quantity(self) -> Document:
        """Return the schema of a quantity: a string or a number."""
        if self.v3:
            return {"description": _QUANTITY_TEXT, "oneOf": [{"type": "string"}, {"type": "number"}]}
        return {"description": _QUANTITY_TEXT, "type": "string"}

    def int_or_string(self) -> Document:
        """Return the schema of an integer or a string."""
        form = {"description": _INT_OR_STRING_TEXT, "format": "int-or-string"}
        if self.v3:
            return form | {"oneOf": [{"type": "integer"}, {"type": "string"}]}
        return form | {"type": "string"}


V3: Final = Dialect(v3=True, prefix="#/components/schemas/")
V2: Final = Dialect(v3=False, prefix="#/definitions/")


class Definitions:
    """Collects the schemas of structs and of everything they refer to."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect: Final = dialect
        self.found: dict[str, Document] = {}

    def add(self, struct_type: StructType, kinds: Iterable[GroupVersionKind] = ()) -> None:
        """Add a struct; `kinds` are the kinds it is the schema of."""
        if struct_type.name not in self.found:
            self._add_struct(struct_type)
        for gvk in kinds:
            self.mark(struct_type.name, gvk)

    def mark(self, name: str, gvk: GroupVersionKind) -> None:
        """Mark a definition as the schema of a kind."""
        marks = self.found[name].setdefault("x-kubernetes-group-version-kind", [])
        mark = {"group": gvk.group, "kind": gvk.kind, "version": gvk.version}
        if mark not in marks:
            marks.append(mark)

    def reference(self, name: str) -> Document:
        """Return a reference to a leaf definition, which is added."""
        if name not in self.found:
            self.found[name] = self._leaf_definition(name)
        return self.dialect.reference(name)

    def _leaf_definition(self, name: str) -> Document:
        if name == _NAMED[Scalar.QUANTITY]:
            return self.dialect.quantity()
        if name == _NAMED[Scalar.INT_OR_STRING]:
            return self.dialect.int_or_string()
        return dict(_LEAF_DEFINITIONS[name])

    def _add_struct(self, struct_type: StructType) -> None:
        tick(len(struct_type.fields))
        schema: Document = {}
        # Registered before its fields: types are recursive.
        self.found[struct_type.name] = schema
        texts = describe(struct_type.name)
        if own := texts.own or load.description(struct_type.name):
            schema["description"] = own
        schema["type"] = "object"
        described = load.field_descriptions(struct_type.name)
        properties = {
            name: self._field(struct_type, field, texts.fields.get(fold(name)) or described.get(name, ""))
            for name, field in sorted(struct_type.fields.items())
        }
        if properties:
            schema["properties"] = properties
        listed = (field for field in struct_type.fields.values() if field.required and not field.unlisted)
        if required := sorted(field.name for field in listed):
            schema["required"] = required
        if struct_type.atomic:
            schema["x-kubernetes-map-type"] = "atomic"

    def _field(self, struct_type: StructType, field: Field, text: str) -> Document:
        extra: Document = {"description": text} if text else {}
        if self.dialect.v3 and (default := _default(field)) is not None:
            extra["default"] = default
        extra |= _patch_rules(field)
        if isinstance(field.type, StructType):
            self.add(field.type)
            return self.dialect.described_reference(field.type.name, extra)
        if isinstance(field.type, Scalar) and field.type not in _INLINE:
            name = _leaf_name(field.type, field.wire, struct_type.name, field.name)
            self.reference(name)
            return self.dialect.described_reference(name, extra)
        return extra | self._type(field.type, field, struct_type)

    def _type(self, kind: Type, field: Field, struct_type: StructType) -> Document:
        if isinstance(kind, ListOf):
            return {"type": "array", "items": self._element(kind.element, field, struct_type)} | _list_rules(kind)
        if isinstance(kind, MapOf):
            rules: Document = {"x-kubernetes-map-type": "atomic"} if kind.atomic else {}
            return {"type": "object", "additionalProperties": self._element(kind.element, field, struct_type)} | rules
        if isinstance(kind, StructType):
            self.add(kind)
            return self.dialect.reference(kind.name)
        if kind in _INLINE:
            return dict(_INLINE[kind])
        return self.reference(_leaf_name(kind, field.wire, struct_type.name, field.name))

    def _element(self, kind: Type, field: Field, struct_type: StructType) -> Document:
        made = self._type(kind, field, struct_type)
        if not self.dialect.v3:
            return made
        if isinstance(kind, StructType):
            return {"allOf": [made], "default": {}}
        return made | {"default": ""} if kind is Scalar.STRING else made


def _leaf_name(kind: Scalar, wire: str, struct: str, field: str) -> str:
    if kind in _NAMED:
        return _NAMED[kind]
    if wire in _BY_WIRE:
        return _BY_WIRE[wire]
    if struct.startswith(_APIEXTENSIONS):
        return f"{_APIEXTENSIONS}.JSON"
    return f"{_META}.FieldsV1" if field == "fieldsV1" else _RAW_EXTENSION


def _default(field: Field) -> Any:
    if field.default is not None:
        return field.default
    if isinstance(field.type, StructType):
        return {} if field.always or field.required or field.name == "metadata" else None
    if not field.required or not isinstance(field.type, Scalar):
        return None
    return {Scalar.STRING: "", Scalar.INT32: 0, Scalar.INT64: 0, Scalar.BOOL: False}.get(field.type)


def _list_rules(kind: ListOf) -> Document:
    rules: Document = {"x-kubernetes-list-type": kind.list_type.value}
    if kind.list_type is ListType.MAP:
        rules["x-kubernetes-list-map-keys"] = list(kind.map_keys)
    return rules


def _patch_rules(field: Field) -> Document:
    rules: Document = {}
    if field.patch_merge_key:
        rules["x-kubernetes-patch-merge-key"] = field.patch_merge_key
    if field.patch_strategies:
        rules["x-kubernetes-patch-strategy"] = ",".join(field.patch_strategies)
    return rules
