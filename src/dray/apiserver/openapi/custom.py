"""OpenAPI schemas of custom resources, from the structural schema in their definition."""

from __future__ import annotations

from typing import Any, Final

from dray.api.document import Document, GroupVersionKind
from dray.api.schema import load
from dray.api.structural.types import EMBEDDED, INT_OR_STRING
from dray.apiserver.openapi.descriptions import describe
from dray.apiserver.openapi.schemas import Definitions
from dray.apiserver.registry.strategy import ResourceDefinition
from dray.lib.processor_time import tick

# Keywords that OpenAPI v2 does not have; its clients see the rest of the schema.
_V3_ONLY: Final = frozenset({"anyOf", "oneOf", "allOf", "not", "nullable", "x-kubernetes-validations"})
# Keywords with schemas by name, and those with one schema or a list.
_BY_NAME: Final = frozenset({"properties", "patternProperties", "definitions"})
_NESTED: Final = frozenset({"items", "additionalProperties"})
_OF_CONTENT: Final = frozenset({"items", "properties"})
_CONVENTIONS: Final = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md"
_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"


def custom_name(gvk: GroupVersionKind) -> str:
    """Return the definition name of a custom kind: `example.com/v1, Kind=Gadget` is `com.example.v1.Gadget`."""
    return ".".join((*reversed(gvk.group.split(".")), gvk.version, gvk.kind))


def add_custom(
    definitions: Definitions,
    gvk: GroupVersionKind,
    definition: ResourceDefinition,
    schema: Document | None,
) -> None:
    """Add a custom kind and its list to the definitions."""
    name, list_kind = custom_name(gvk), definition.list_kind
    list_name = custom_name(GroupVersionKind(gvk.group, gvk.version, list_kind))
    definitions.add(load.object_meta())
    definitions.add(load.list_meta())
    selectable = [{"fieldPath": path} for path in definition.selectable_fields]
    more = {"x-kubernetes-selectable-fields": selectable} if selectable else {}
    definitions.found[name] = _object_schema(definitions, schema) | more
    definitions.found[list_name] = _list_schema(definitions, definition, name) | more
    definitions.mark(name, gvk)
    definitions.mark(list_name, GroupVersionKind(gvk.group, gvk.version, list_kind))


def _object_schema(definitions: Definitions, schema: Document | None) -> Document:
    # With properties, kubectl would refuse all other fields.
    if schema is None or (schema.get(_PRESERVE) and not definitions.dialect.v3):
        return {"type": "object"}
    made: Document = _completed(schema, definitions) if definitions.dialect.v3 else _reduced(schema)
    return made | {"properties": made.get("properties", {}) | _object_properties(definitions)}


def _object_properties(definitions: Definitions) -> Document:
    """Return the properties of every object."""
    extra: Document = {"description": f"Standard object's metadata. More info: {_CONVENTIONS}#metadata"}
    return _type_meta() | {"metadata": definitions.dialect.described_reference(load.object_meta().name, extra)}


def _completed(schema: Any, definitions: Definitions) -> Any:
    """Return a copy of a schema with what its extensions say: types of numbers or text, and embedded objects."""
    if not isinstance(schema, dict):
        return schema
    made: Document = {}
    for keyword, value in schema.items():
        if keyword in _BY_NAME:
            made[keyword] = {name: _completed(inner, definitions) for name, inner in value.items()}
        else:
            made[keyword] = _completed(value, definitions) if keyword in _NESTED else value
    if made.get(INT_OR_STRING) and not {"anyOf", "allOf"} & made.keys():
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if made.get(EMBEDDED):
        made["properties"] = made.get("properties", {}) | _object_properties(definitions)
        made["required"] = list(dict.fromkeys((*made.get("required", ()), "kind", "apiVersion")))
    return made


def _list_schema(definitions: Definitions, definition: ResourceDefinition, name: str) -> Document:
    kind = definition.kind
    list_meta = definitions.dialect.described_reference(
        load.list_meta().name, {"description": f"Standard list metadata. More info: {_CONVENTIONS}#types-kinds"}
    )
    text = f"List of {definition.resource}. More info: {_CONVENTIONS}"
    items = {"type": "array", "items": definitions.dialect.reference(name), "description": text}
    return {
        "description": f"{kind}List is a list of {kind}",
        "type": "object",
        "required": ["items"],
        "properties": _type_meta() | {"metadata": list_meta, "items": items},
    }


def _type_meta() -> Document:
    texts = describe(f"{load.object_meta().name.rpartition('.')[0]}.Status").fields
    return {
        "apiVersion": {"description": texts.get("apiversion", ""), "type": "string"},
        "kind": {"description": texts.get("kind", ""), "type": "string"},
    }


def _reduced(schema: Any) -> Any:
    """Return a copy of a schema that v2 and kubectl can read; names of properties are not keywords."""
    if not isinstance(schema, dict):
        return schema
    tick()
    dropped = _V3_ONLY | _unreadable(schema)
    made: Document = {}
    for keyword, value in schema.items():
        if keyword in dropped:
            continue
        if keyword in _BY_NAME:
            made[keyword] = {name: _reduced(inner) for name, inner in value.items()}
        else:
            made[keyword] = _reduced(value) if keyword in _NESTED else value
    if made.get("type") == "array" and "items" not in made:
        del made["type"]
    required = [name for name in made.get("required") or () if not _nullable(schema.get("properties"), name)]
    if required and not _nullable(schema, "additionalProperties"):
        made["required"] = required
    else:
        made.pop("required", None)
    return made


def _unreadable(schema: Document) -> frozenset[str]:
    """Return the keywords with which kubectl misreads a value that may be null, or may have unknown fields."""
    if schema.get("nullable"):
        return _OF_CONTENT | {"type"}
    if schema.get(_PRESERVE):
        return _OF_CONTENT | ({"type"} if schema.get("type") == "object" else frozenset())
    return frozenset()


def _nullable(schemas: Any, name: str) -> bool:
    schema = (schemas or {}).get(name)
    return isinstance(schema, dict) and bool(schema.get("nullable"))
