"""Validation of the OpenAPI keywords in a custom resource schema: support, position and combination."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, forbidden, invalid, not_supported, required
from dray.api.structural.types import EMBEDDED, LIST_TYPE, MAP_KEYS, MAP_TYPE, PRESERVE, RULES

_TYPES: Final = ("array", "boolean", "integer", "number", "object", "string")
_UNSUPPORTED: Final = ("id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref")
META_FIELDS: Final = frozenset({"apiVersion", "kind", "metadata"})


@dataclass(frozen=True, slots=True)
class _Context:
    """The position of a schema within the root schema."""

    root: bool = False
    inside_meta: bool = False
    # The reason why no default may be set here.
    no_default: str | None = None


def validate_keywords(schema: Document, path: Path) -> FieldErrors:
    """Return the validation errors of the schema's keywords, whether it is structural or not."""
    return _validate(schema, path, _Context(root=True))


def _validate(schema: Document, path: Path, context: _Context) -> FieldErrors:
    errors = _own_keywords(schema, path, context)
    for inner, inner_path, inner_context in _children(schema, path, context):
        errors += _validate(inner, inner_path, inner_context)
    errors += _validate_extensions(schema, path)
    return errors + _validate_rule_texts(schema.get(RULES) or (), path.child(RULES))


def _own_keywords(schema: Document, path: Path, context: _Context) -> FieldErrors:
    errors: FieldErrors = []
    kind = schema.get("type") or ""
    if kind and kind not in _TYPES:
        errors.append(not_supported(path.child("type"), kind, _TYPES))
    if schema.get("default") is not None and context.no_default is not None:
        errors.append(forbidden(path.child("default"), f"must not be set {context.no_default}".strip()))
    errors += [forbidden(path.child(name), f"{name} is not supported") for name in _UNSUPPORTED if schema.get(name)]
    if kind == "null":
        text = "type cannot be set to null, use nullable as an alternative"
        errors.append(forbidden(path.child("type"), text))
    if isinstance(schema.get("items"), list):
        errors.append(forbidden(path.child("items"), "items must be a schema object and not an array"))
    if context.inside_meta and schema.get(EMBEDDED):
        errors.append(forbidden(path.child(EMBEDDED), "must not be used inside of resource meta"))
    if schema.get("uniqueItems"):
        text = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        errors.append(forbidden(path.child("uniqueItems"), text))
    additional = schema.get("additionalProperties")
    if additional is not None and additional is not True and schema.get("properties"):
        text = "additionalProperties and properties are mutual exclusive"
        errors.append(forbidden(path.child("additionalProperties"), text))
    return errors


def _children(schema: Document, path: Path, context: _Context) -> Iterator[tuple[Document, Path, _Context]]:
    inner = replace(context, root=False)
    additional = schema.get("additionalProperties")
    if isinstance(additional, dict):
        reason = (
            "inside additionalProperties applying to object metadata" if context.inside_meta else context.no_default
        )
        yield additional, path.child("additionalProperties"), replace(inner, no_default=reason)
    for name, value in (schema.get("properties") or {}).items():
        yield value, path.child("properties").key(name), _property_context(name, schema, context)
    if schema.get("not") is not None:
        yield schema["not"], path.child("not"), inner
    for keyword in ("allOf", "oneOf", "anyOf"):
        for position, value in enumerate(schema.get(keyword) or ()):
            yield value, path.child(keyword).index(position), inner
    if isinstance(schema.get("items"), dict):
        yield schema["items"], path.child("items"), inner


def _property_context(name: str, schema: Document, context: _Context) -> _Context:
    inner = replace(context, root=False)
    if name not in META_FIELDS or not (context.root or schema.get(EMBEDDED)):
        return inner
    if context.root:
        return replace(inner, inside_meta=True, no_default=f"in top-level {name}")
    return replace(inner, inside_meta=True)


def _validate_extensions(schema: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    if schema.get(PRESERVE) is False:
        errors.append(invalid(path.child(PRESERVE), schema[PRESERVE], "must be true or undefined"))
    errors += _wrong_type(schema, path, MAP_TYPE, "object")
    if schema.get(MAP_TYPE) not in (None, "atomic", "granular"):
        errors.append(not_supported(path.child(MAP_TYPE), schema[MAP_TYPE], ("atomic", "granular")))
    wrong = _wrong_type(schema, path, LIST_TYPE, "array")
    errors += wrong or _validate_set_items(schema, path)
    if schema.get(LIST_TYPE) not in (None, "atomic", "set", "map"):
        errors.append(not_supported(path.child(LIST_TYPE), schema[LIST_TYPE], ("atomic", "set", "map")))
    return errors + _validate_map_list(schema, path) + _validate_keyed_items(schema, path)


def _wrong_type(schema: Document, path: Path, keyword: str, wanted: str) -> FieldErrors:
    kind = schema.get("type") or ""
    if schema.get(keyword) is None or kind == wanted:
        return []
    text = f"must be {wanted} if {keyword} is specified"
    return [invalid(path.child("type"), kind, text) if kind else required(path.child("type"), text)]


def _items(schema: Document) -> Document | None:
    items: Any = schema.get("items")
    return items if isinstance(items, dict) else None


def _validate_set_items(schema: Document, path: Path) -> FieldErrors:
    items = _items(schema)
    if schema.get(LIST_TYPE) != "set" or items is None:
        return []
    text = "must be atomic as item of a list with x-kubernetes-list-type=set"
    if items.get("type") == "array" and items.get(LIST_TYPE) not in (None, "atomic"):
        return [invalid(path.child("items", LIST_TYPE), items[LIST_TYPE], text)]
    if items.get("type") == "object" and items.get(MAP_TYPE) != "atomic":
        return [invalid(path.child("items", MAP_TYPE), items.get(MAP_TYPE), text)]
    return []


def _validate_map_list(schema: Document, path: Path) -> FieldErrors:
    keys, kind, items = schema.get(MAP_KEYS) or (), schema.get(LIST_TYPE), _items(schema)
    errors: FieldErrors = []
    if keys and kind != "map":
        text = "must be map if x-kubernetes-list-map-keys is non-empty"
        at = path.child(LIST_TYPE)
        errors.append(required(at, text) if kind is None else invalid(at, kind, text))
    if kind != "map":
        return errors
    if not keys:
        errors.append(required(path.child(MAP_KEYS), "must not be empty if x-kubernetes-list-type is map"))
    if items is None:
        errors.append(required(path.child("items"), "must have a schema if x-kubernetes-list-type is map"))
    elif items.get("type") != "object":
        text = "must be object if parent array's x-kubernetes-list-type is map"
        errors.append(invalid(path.child("items", "type"), items.get("type") or "", text))
    else:
        errors += _validate_map_keys(list(keys), items, path)
    return errors


def _validate_map_keys(keys: list[str], items: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    properties = items.get("properties") or {}
    seen: set[str] = set()
    for key in keys:
        if key not in properties:
            errors.append(invalid(path.child(MAP_KEYS), keys, "entries must all be names of item properties"))
        elif properties[key].get("type") in ("array", "object"):
            text = "must be a scalar type if parent array's x-kubernetes-list-type is map"
            errors.append(invalid(path.child("items", "properties").key(key).child("type"), items["type"], text))
        if key in seen:
            errors.append(invalid(path.child(MAP_KEYS), keys, "must not contain duplicate entries"))
        seen.add(key)
    return errors


def _validate_keyed_items(schema: Document, path: Path) -> FieldErrors:
    kind, items = schema.get(LIST_TYPE), _items(schema)
    if kind not in ("set", "map") or items is None:
        return []
    errors: FieldErrors = []
    if items.get("nullable"):
        text = f"cannot be nullable when x-kubernetes-list-type is {kind}"
        errors.append(forbidden(path.child("items", "nullable"), text))
    needed, properties = items.get("required") or (), items.get("properties") or {}
    for key in (schema.get(MAP_KEYS) or ()) if kind == "map" else ():
        inner, at = properties.get(key), path.child("items", "properties").key(key)
        if inner is None:
            continue
        because = "this property is in x-kubernetes-list-map-keys, so it"
        if key not in needed and inner.get("default") is None:
            errors.append(required(at.child("default"), f"{because} must have a default or be a required property"))
        if inner.get("nullable"):
            errors.append(forbidden(at.child("nullable"), f"{because} cannot be nullable"))
    return errors


_REASONS: Final = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")


def _validate_rule_texts(rules: Any, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    for position, rule in enumerate(rules):
        at = path.index(position)
        errors += _validate_rule_text(rule, at)
        expression = rule.get("messageExpression")
        if expression is not None and expression and not expression.strip():
            errors.append(required(at.child("messageExpression"), "messageExpression must be non-empty if specified"))
        reason = rule.get("reason")
        if reason is not None and reason not in _REASONS:
            errors.append(not_supported(at.child("reason"), reason, _REASONS))
        field_path = rule.get("fieldPath") or ""
        if field_path and not field_path.strip():
            errors.append(invalid(at.child("fieldPath"), field_path, "fieldPath must be non-empty if specified"))
        if _has_newline(field_path):
            errors.append(invalid(at.child("fieldPath"), field_path, "fieldPath must not contain line breaks"))
    return errors


def _validate_rule_text(rule: Document, path: Path) -> FieldErrors:
    text, message = (rule.get("rule") or "").strip(), rule.get("message") or ""
    if not text:
        return [required(path.child("rule"), "rule is not specified")]
    if message and not message.strip():
        return [invalid(path.child("message"), message, "message must be non-empty if specified")]
    if _has_newline(message.strip()):
        return [invalid(path.child("message"), message, "message must not contain line breaks")]
    if _has_newline(text) and not message.strip():
        return [required(path.child("message"), "message must be specified if rule contains line breaks")]
    return []


def _has_newline(text: str) -> bool:
    return "\n" in text or "\r" in text
