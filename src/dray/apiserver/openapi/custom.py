"""OpenAPI schemas of custom resources, from the structural schema in their definition."""

from __future__ import annotations

from typing import Any, Final

from dray.api.document import Document, GroupVersionKind
from dray.api.schema import load
from dray.apiserver.openapi.descriptions import describe
from dray.apiserver.openapi.schemas import Definitions

# Keywords that OpenAPI v2 does not have; its clients see the rest of the schema.
_V3_ONLY: Final = frozenset({"anyOf", "oneOf", "allOf", "not", "nullable", "x-kubernetes-validations"})
# Keywords with schemas by name, and those with one schema or a list.
_BY_NAME: Final = frozenset({"properties", "patternProperties", "definitions"})
_NESTED: Final = frozenset({"items", "additionalProperties"})
_OF_CONTENT: Final = frozenset({"items", "properties"})
_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"


def custom_name(gvk: GroupVersionKind) -> str:
    """Return the definition name of a custom kind: `example.com/v1, Kind=Gadget` is `com.example.v1.Gadget`."""
    return ".".join((*reversed(gvk.group.split(".")), gvk.version, gvk.kind))


def add_custom(definitions: Definitions, gvk: GroupVersionKind, list_kind: str, schema: Document | None) -> None:
    """Add a custom kind and its list to the definitions."""
    name = custom_name(gvk)
    list_name = custom_name(GroupVersionKind(gvk.group, gvk.version, list_kind))
    definitions.add(load.object_meta())
    definitions.add(load.list_meta())
    definitions.found[name] = _object_schema(definitions, schema)
    definitions.found[list_name] = _list_schema(definitions, gvk.kind, name)
    definitions.mark(name, gvk)
    definitions.mark(list_name, GroupVersionKind(gvk.group, gvk.version, list_kind))


def _object_schema(definitions: Definitions, schema: Document | None) -> Document:
    # With properties, kubectl would refuse all other fields.
    if schema is None or (schema.get(_PRESERVE) and not definitions.dialect.v3):
        return {"type": "object"}
    made = dict(schema) if definitions.dialect.v3 else _reduced(schema)
    extra: Document = {"description": "Standard object metadata."}
    own = made.get("properties", {})
    metadata = definitions.dialect.described_reference(load.object_meta().name, extra)
    return made | {"properties": own | _type_meta() | {"metadata": metadata}}


def _list_schema(definitions: Definitions, kind: str, name: str) -> Document:
    list_meta = definitions.dialect.described_reference(
        load.list_meta().name, {"description": "Standard list metadata."}
    )
    items = {"type": "array", "items": definitions.dialect.reference(name), "description": f"The {kind} objects."}
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
