"""Traversal of an object with its schema, for rules outside of OpenAPI: list types, embedded objects, CEL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from dray.api.document import Document, copy_document
from dray.api.field_errors import FieldErrors, Path, duplicate, invalid, required
from dray.api.names import dns1035_label
from dray.api.schema import load
from dray.api.strict import DecodeError, unknown_fields
from dray.api.structural.correlation import MISSING, OldItems, correlates_members, old_member
from dray.api.structural.types import EMBEDDED, LIST_TYPE, MAP_KEYS
from dray.api.validation.meta_v1 import validate_object_meta
from dray.lib.processor_time import ticking

# Visits a value at a path, given the old value (or MISSING), and appends errors.
Visitor: TypeAlias = Callable[[Any, Path, Any, FieldErrors], None]
# Returns the visitor of one schema's values, None when it needs none.
Maker: TypeAlias = Callable[[Document], Visitor | None]


def compile_visitor(schema: Document, maker: Maker) -> Visitor | None:
    """Return a visitor of a value and everything below it; None when no schema below needs one."""
    parts = (maker(schema), _members(schema, maker), _items(schema, maker))
    visits = [visit for visit in parts if visit is not None]
    if len(visits) <= 1:
        return visits[0] if visits else None

    def visit_all(value: Any, path: Path, old: Any, errors: FieldErrors) -> None:
        for visit in visits:
            visit(value, path, old, errors)

    return visit_all


def _members(schema: Document, maker: Maker) -> Visitor | None:
    found = {name: compile_visitor(inner, maker) for name, inner in (schema.get("properties") or {}).items()}
    visits = {name: visit for name, visit in found.items() if visit is not None}
    additional = schema.get("additionalProperties")
    other = compile_visitor(additional, maker) if isinstance(additional, dict) else None
    if not visits and other is None:
        return None
    correlates = correlates_members(schema)

    def visit_members(value: Any, path: Path, old: Any, errors: FieldErrors) -> None:
        if not isinstance(value, dict):
            return
        for name, item in ticking(value.items()):
            visit = visits.get(name, other)
            if visit is not None:
                inner = path.child(name) if name in visits else path.key(name)
                visit(item, inner, old_member(old, name) if correlates else MISSING, errors)

    return visit_members


def _items(schema: Document, maker: Maker) -> Visitor | None:
    items = schema.get("items")
    inner = compile_visitor(items, maker) if isinstance(items, dict) else None
    if inner is None:
        return None
    visit, old_items = inner, OldItems(schema)

    def visit_items(value: Any, path: Path, old: Any, errors: FieldErrors) -> None:
        if not isinstance(value, list):
            return
        index = old_items.by_key(old)
        for position, item in enumerate(ticking(value)):
            visit(item, path.index(position), old_items.find(index, item), errors)

    return visit_items


def list_type_rules(schema: Document) -> Visitor | None:
    """Return the visitor that rejects duplicates in sets and duplicate keys in lists of type map."""
    if schema.get(LIST_TYPE) not in ("set", "map"):
        return None
    keys = tuple(schema.get(MAP_KEYS) or ())

    def visit(value: Any, path: Path, _old: Any, errors: FieldErrors) -> None:
        if not isinstance(value, list):
            return
        odd = next((index for index, item in enumerate(value) if not isinstance(item, dict | None)), None)
        if keys and odd is not None:
            detail = "must be an object for an array of list-type map"
            errors.append(invalid(path.index(odd), value[odd], detail))
            return
        seen: Counter[str] = Counter()
        for position, item in enumerate(ticking(value)):
            shown = {name: item[name] for name in keys if name in (item or ())} if keys else item
            text = _identity(shown)
            seen[text] += 1
            # Further ones are not reported.
            if seen[text] == 2:  # noqa: PLR2004 - the second
                errors.append(duplicate(path.index(position), shown))

    return visit


def _identity(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{name!r}:{_identity(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_identity, value)) + "]"
    return repr(value)


def embedded_rules(schema: Document) -> Visitor | None:
    """Return the visitor that validates `apiVersion`, `kind` and `metadata` of an embedded object."""
    if not schema.get(EMBEDDED):
        return None

    def visit(value: Any, path: Path, _old: Any, errors: FieldErrors) -> None:
        if not isinstance(value, dict):
            return
        errors.extend(required(path.child(name)) for name in ("apiVersion", "kind") if name not in value)
        for name, problem in (("apiVersion", _version_problem), ("kind", _kind_problem)):
            if name in value and (detail := problem(value[name])):
                errors.append(invalid(path.child(name), value[name], detail))
        if "metadata" in value:
            errors.extend(_metadata_errors(value["metadata"], path.child("metadata")))

    return visit


def _version_problem(version: Any) -> str:
    if not isinstance(version, str):
        return "must be a string"
    if not version:
        return "must not be empty"
    return f"unexpected GroupVersion string: {version}" if version.count("/") > 1 else ""


def _kind_problem(kind: Any) -> str:
    if not isinstance(kind, str):
        return "must be a string"
    if not kind:
        return "must not be empty"
    problems = dns1035_label(kind.lower())
    return f"may have mixed case, but should otherwise match: {','.join(problems)}" if problems else ""


def _metadata_errors(given: Any, path: Path) -> FieldErrors:
    metadata = copy_document({"metadata": {} if given is None else given})["metadata"]
    try:
        unknown_fields(metadata, load.object_meta())
    except DecodeError as error:
        return [invalid(path, given, str(error))]
    metadata["name"] = metadata.get("name") or "any"
    errors = validate_object_meta(metadata, namespaced="namespace" in metadata, name_rule="path-segment")
    return [replace(error, path=path.text + error.path.removeprefix("metadata")) for error in errors]
