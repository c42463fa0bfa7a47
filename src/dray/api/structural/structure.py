"""Validation of structural schemas: every field has one type, which is specified outside of alternatives."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any, Final

import re2

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, forbidden, invalid, required
from dray.api.structural.types import EMBEDDED, INT_OR_STRING, LIST_TYPE, MAP_KEYS, MAP_TYPE, PRESERVE, RULES

_INT_OR_STRING_ANY_OF: Final = [{"type": "integer"}, {"type": "string"}]
_EMPTY: Final = "must be empty to be structural"
_FALSE: Final = "must be false to be structural"
_UNDEFINED: Final = "must be undefined to be structural"
# Keywords that define a value's type, which alternatives must not contain.
_FORBIDDEN_INSIDE: Final = {
    "type": _EMPTY,
    "additionalProperties": _UNDEFINED,
    "default": _UNDEFINED,
    "title": _EMPTY,
    "description": _EMPTY,
    "nullable": _FALSE,
    "externalDocs": _UNDEFINED,
    PRESERVE: _FALSE,
    EMBEDDED: _FALSE,
    INT_OR_STRING: _FALSE,
    MAP_KEYS: _EMPTY,
    LIST_TYPE: _UNDEFINED,
    MAP_TYPE: _UNDEFINED,
    RULES: _EMPTY,
}
# Keywords that the schema of the root's metadata may have beside properties.
_VALUE_KEYWORDS: Final = frozenset(
    {"format", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength", "minLength", "pattern"}
    | {"maxItems", "minItems", "uniqueItems", "multipleOf", "enum", "maxProperties", "minProperties", "required"}
    | {"allOf", "oneOf", "anyOf", "not"}
)


class _Level(enum.StrEnum):
    ROOT = "at the root"
    ITEM = "for specified array items"
    FIELD = "for specified object fields"


def validate_structural(schema: Document, path: Path) -> FieldErrors:
    """Return the errors of a schema that is not structural, sorted by message."""
    errors = _invariants(schema, path, _Level.ROOT) + _complete(schema, schema, path, path)
    return sorted(errors, key=str)


def _invariants(schema: Document, path: Path, level: _Level) -> FieldErrors:
    errors: FieldErrors = []
    if schema.get("type") == "array" and not isinstance(schema.get("items"), dict):
        errors.append(required(path.child("items"), "must be specified"))
    if level is _Level.ROOT and schema.get("additionalProperties") is not None:
        errors.append(forbidden(path.child("additionalProperties"), "must not be used at the root"))
    for inner, inner_path, inner_level in _children(schema, path):
        errors += _invariants(inner, inner_path, inner_level)
    errors += _validate_int_or_string(schema, path)
    errors += _validate_values(schema, path, outside=True)
    errors += _validate_type(schema, path, level)
    return errors + _validate_meta(schema, path, level)


def _children(schema: Document, path: Path) -> Iterator[tuple[Document, Path, _Level]]:
    if isinstance(schema.get("items"), dict):
        yield schema["items"], path.child("items"), _Level.ITEM
    for name, inner in (schema.get("properties") or {}).items():
        yield inner, path.child("properties").key(name), _Level.FIELD
    if isinstance(schema.get("additionalProperties"), dict):
        yield schema["additionalProperties"], path.child("additionalProperties"), _Level.FIELD


def _validate_int_or_string(schema: Document, path: Path) -> FieldErrors:
    if not schema.get(INT_OR_STRING):
        return []
    text = "must be false if x-kubernetes-int-or-string is true"
    return [invalid(path.child(name), schema[name], text) for name in (PRESERVE, EMBEDDED) if schema.get(name)]


def _validate_type(schema: Document, path: Path, level: _Level) -> FieldErrors:
    kind, at = schema.get("type") or "", path.child("type")
    errors: FieldErrors = []
    if schema.get(EMBEDDED) and kind != "object":
        text = "must be object if x-kubernetes-embedded-resource is true"
        errors.append(invalid(at, kind, text) if kind else required(at, text))
    elif not kind and not schema.get(INT_OR_STRING) and not schema.get(PRESERVE):
        errors.append(required(at, f"must not be empty {level.value}"))
    if schema.get(EMBEDDED) and schema.get("additionalProperties") is not None:
        text = "must not be used if x-kubernetes-embedded-resource is set"
        errors.append(forbidden(path.child("additionalProperties"), text))
    if level is _Level.ROOT and kind and kind != "object":
        errors.append(invalid(at, kind, "must be object at the root"))
    return errors


def _validate_meta(schema: Document, path: Path, level: _Level) -> FieldErrors:
    properties, at = schema.get("properties") or {}, path.child("properties")
    is_object = level is _Level.ROOT or bool(schema.get(EMBEDDED))
    errors: FieldErrors = []
    for name in ("kind", "apiVersion") if is_object else ():
        if name in properties and properties[name].get("type") != "string":
            kind = properties[name].get("type") or ""
            errors.append(invalid(at.key(name).child("type"), kind, "must be string"))
    if "metadata" in properties:
        errors += _validate_metadata(properties["metadata"], at.key("metadata"), level, is_object=is_object)
    if schema.get(EMBEDDED) and not schema.get(PRESERVE) and not properties:
        text = (
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields"
        )
        errors.append(required(at, text))
    return errors


def _validate_metadata(schema: Document, path: Path, level: _Level, *, is_object: bool) -> FieldErrors:
    errors: FieldErrors = []
    if is_object and schema.get("type") != "object":
        errors.append(invalid(path.child("type"), schema.get("type") or "", "must be object"))
    others = schema.keys() - _VALUE_KEYWORDS - {"type", "default", "properties"}
    restricted = (schema.get("properties") or {}).keys() - {"name", "generateName"}
    if level is _Level.ROOT and (others or restricted):
        text = "must not specify anything other than name and generateName, but metadata is implicitly specified"
        errors.append(forbidden(path, text))
    return errors


# --- Alternatives.


def _validate_values(schema: Document, path: Path, *, outside: bool = False, skip_any_of: bool = False) -> FieldErrors:
    """Validate the value keywords of a schema; `outside` of alternatives int-or-string may list its two types."""
    errors: FieldErrors = []
    is_pair = schema.get("anyOf") == _INT_OR_STRING_ANY_OF
    if not (skip_any_of or (outside and is_pair)):
        for position, inner in enumerate(schema.get("anyOf") or ()):
            errors += _validate_nested(inner, path.child("anyOf").index(position))
    for position, inner in enumerate(schema.get("allOf") or ()):
        skip = outside and position == 0 and inner.get("anyOf") == _INT_OR_STRING_ANY_OF
        errors += _validate_nested(inner, path.child("allOf").index(position), skip_any_of=skip)
    for position, inner in enumerate(schema.get("oneOf") or ()):
        errors += _validate_nested(inner, path.child("oneOf").index(position))
    if schema.get("not") is not None:
        errors += _validate_nested(schema["not"], path.child("not"))
    return errors + _validate_pattern(schema.get("pattern") or "", path.child("pattern"))


def _validate_pattern(pattern: str, path: Path) -> FieldErrors:
    if not pattern:
        return []
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        text = f"must be a valid regular expression, but isn't: error parsing regexp: {why}"
        return [invalid(path, pattern, text)]
    return []


def _validate_nested(schema: Document, path: Path, *, skip_any_of: bool = False) -> FieldErrors:
    errors = _validate_values(schema, path, skip_any_of=skip_any_of)
    items: Any = schema.get("items")
    if isinstance(items, dict):
        errors += _validate_nested(items, path.child("items"))
    properties = schema.get("properties") or {}
    for name, inner in properties.items():
        errors += _validate_nested(inner, path.child("properties").key(name))
    errors += [forbidden(path.child(name), text) for name, text in _FORBIDDEN_INSIDE.items() if schema.get(name)]
    if "metadata" in properties:
        text = "must not be specified in a nested context"
        errors.append(forbidden(path.child("properties").key("metadata"), text))
    return errors


def _complete(schema: Document, outside: Document, path: Path, outside_path: Path) -> FieldErrors:
    """Validate that whatever an alternative contains is also declared outside of it."""
    errors: FieldErrors = []
    for inner, inner_path in _alternatives(schema, path):
        errors += _complete_nested(inner, outside, inner_path, outside_path)
    return errors


def _alternatives(schema: Document, path: Path) -> Iterator[tuple[Document, Path]]:
    if schema.get("not") is not None:
        yield schema["not"], path.child("not")
    for keyword in ("allOf", "anyOf", "oneOf"):
        for position, inner in enumerate(schema.get(keyword) or ()):
            yield inner, path.child(keyword).index(position)


def _complete_nested(schema: Document, outside: Document | None, path: Path, outside_path: Path) -> FieldErrors:
    if outside is None:
        return [required(outside_path, f"because it is defined in {path}")]
    errors = _complete(schema, outside, path, outside_path)
    items: Any = schema.get("items")
    if isinstance(items, dict):
        declared = outside.get("items")
        found = declared if isinstance(declared, dict) else None
        errors += _complete_nested(items, found, path.child("items"), outside_path.child("items"))
    declared_fields = outside.get("properties") or {}
    for name, inner in (schema.get("properties") or {}).items():
        at = path.child("properties").key(name)
        errors += _complete_nested(inner, declared_fields.get(name), at, outside_path.child("properties").key(name))
    return errors
