"""Defaults must themselves be what the schema asks for."""

from __future__ import annotations

from dataclasses import replace

from dray.api.document import Document, copy_document
from dray.api.field_errors import FieldErrors, Path
from dray.api.structural.defaults import compile_defaults
from dray.api.structural.sameness import MISSING
from dray.api.structural.values import compile_values


def validate_defaults(schema: Document, path: Path) -> FieldErrors:
    """What is wrong with the defaults of a structural schema, and of everything below it."""
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
