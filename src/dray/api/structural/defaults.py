"""Defaults of a structural schema, and their validation: they are set for fields that are missing or null.

A schema is compiled once into closures; a schema without effect compiles to None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from dray.api.document import Document, copy_document
from dray.api.field_errors import FieldErrors, Path
from dray.api.structural.correlation import MISSING
from dray.api.structural.values import compile_values
from dray.lib.processor_time import ticking

# Defaults the children of a container in place.
Fill: TypeAlias = Callable[[Any], None]


def compile_defaults(schema: Document) -> Fill:
    """Return the defaulter of the schema's objects; it does not touch `apiVersion`, `kind` and `metadata`."""
    properties = schema.get("properties") or {}
    own = {name: inner for name, inner in properties.items() if name not in ("apiVersion", "kind", "metadata")}
    return _properties(own)


def _compile(schema: Document) -> Fill | None:
    if isinstance(schema.get("additionalProperties"), dict):
        return _values(schema["additionalProperties"])
    if schema.get("properties"):
        return _properties(schema["properties"])
    items = schema.get("items")
    return _items(items) if isinstance(items, dict) else None


def _fresh(default: Any) -> Any:
    if isinstance(default, dict):
        return copy_document(default)
    return copy_document({"": default})[""] if isinstance(default, list) else default


def _properties(properties: Mapping[str, Document]) -> Fill:
    defaults = [
        (name, inner["default"], bool(inner.get("nullable")))
        for name, inner in properties.items()
        if inner.get("default") is not None
    ]
    inner_fills = [(name, fill) for name, inner in properties.items() if (fill := _compile(inner)) is not None]

    def fill_properties(value: Any) -> None:
        if not isinstance(value, dict):
            return
        for name, default, nullable in defaults:
            if name not in value or (value[name] is None and not nullable):
                value[name] = _fresh(default)
        for name, fill in inner_fills:
            if name in value:
                fill(value[name])

    return fill_properties


def _values(schema: Document) -> Fill:
    fill, default, nullable = _compile(schema), schema.get("default"), bool(schema.get("nullable"))

    def fill_values(value: Any) -> None:
        if not isinstance(value, dict):
            return
        if default is not None and not nullable:
            for name in [name for name, item in value.items() if item is None]:
                value[name] = _fresh(default)
        if fill is not None:
            for item in ticking(value.values()):
                fill(item)

    return fill_values


def _items(schema: Document) -> Fill | None:
    fill, default, nullable = _compile(schema), schema.get("default"), bool(schema.get("nullable"))
    if fill is None and (default is None or nullable):
        return None

    def fill_items(value: Any) -> None:
        if not isinstance(value, list):
            return
        for index, item in enumerate(ticking(value)):
            if item is None and default is not None and not nullable:
                value[index] = _fresh(default)
            if fill is not None:
                fill(value[index])

    return fill_items


def validate_defaults(schema: Document, path: Path) -> FieldErrors:
    """Return the validation errors of the defaults in a structural schema."""
    errors: FieldErrors = []
    if schema.get("default") is not None:
        errors += _validate_default(schema, path.child("default"))
    for name, inner in (schema.get("properties") or {}).items():
        errors += validate_defaults(inner, path.child("properties").key(name))
    if isinstance(schema.get("additionalProperties"), dict):
        errors += validate_defaults(schema["additionalProperties"], path.child("additionalProperties"))
    if isinstance(schema.get("items"), dict):
        errors += validate_defaults(schema["items"], path.child("items"))
    return errors


def _validate_default(schema: Document, path: Path) -> FieldErrors:
    wrapped = {"properties": {"default": schema}}
    document = copy_document({"default": schema["default"]})
    compile_defaults(wrapped)(document)
    found = compile_values(wrapped)(document, MISSING)
    return [replace(error, path=_moved(error.path, path)) for error in found]


def _moved(inner: str, path: Path) -> str:
    return path.text + inner.removeprefix("default") if inner.startswith("default") else path.text
