"""Brings a custom resource into the form of stored ones: unknown fields, and null where it is no value, are dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import orjson

from dray.api.document import Document
from dray.api.field_errors import Path, invalid
from dray.api.schema import load
from dray.api.schema.model import Field, StructType
from dray.api.strict import DecodeError, unknown_fields
from dray.api.strict_order import STRICT_ERRORS_MAX
from dray.api.structural.types import EMBEDDED, PRESERVE
from dray.lib.processor_time import ticking

_TYPE_FIELDS: Final = ("apiVersion", "kind")
_METADATA: Final = StructType("custom.Object", {"metadata": Field("metadata", load.object_meta())})
_CONTAINERS: Final = (dict, list)


class _Traversal:
    """One traversal; `strict` refuses embedded objects whose type or metadata cannot be decoded."""

    __slots__ = ("strict", "unknown", "unknown_metadata")

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        # Paths of dropped fields.
        self.unknown: list[str] = []
        # The same below the metadata of embedded objects.
        self.unknown_metadata: list[str] = []


# Prunes the children of an object or list in place; the path is the one of unknown fields.
_Prune: TypeAlias = Callable[[Any, str, _Traversal], None]


class _RefusedError(Exception):
    """A part of an embedded object that cannot be decoded; the elements of its path are added on the way up."""

    def __init__(self, field: str, value: Any, detail: str) -> None:
        super().__init__()
        self.path = field
        self.value = value
        self.detail = detail

    def below(self, element: str) -> None:
        """Note that it is below a field, an entry or an item."""
        dot = "" if self.path.startswith("[") else "."
        self.path = f"{element}{dot}{self.path}"


class Pruner:
    """Prunes the objects of a kind; without a schema they keep all fields."""

    def __init__(self, schema: Document | None) -> None:
        self._prune: Final = _compile_members(schema or {PRESERVE: True}, is_root=True)

    def normalize(self, document: Document) -> list[str]:
        """Prune what a client sent, in place, and return the errors of unknown fields, a bounded number.

        Those of the metadata are first, then those of the schema, then those of the metadata of embedded objects.
        Raises `DecodeError` for metadata that cannot be decoded. Other values of a wrong type are left to validation.
        """
        unknown, found = normalize_metadata(document), _Traversal(strict=True)
        try:
            self._prune(document, "", found)
        except _RefusedError as error:
            # Go sorts the fields of what it shows.
            shown = orjson.loads(orjson.dumps(error.value, option=orjson.OPT_SORT_KEYS))
            raise DecodeError(str(invalid(Path(error.path), shown, error.detail))) from None
        unknown += [*sorted(found.unknown), *sorted(found.unknown_metadata)]
        return [f'unknown field "{path}"' for path in unknown[:STRICT_ERRORS_MAX]]

    def prune(self, document: Document) -> None:
        """Prune an object of another schema, in place; what is malformed is dropped or stays."""
        self._prune(document, "", _Traversal(strict=False))


def normalize_metadata(document: Document) -> list[str]:
    """Normalize the metadata of an object in place, and return the paths of its unknown fields."""
    if "metadata" not in document:
        return []
    whole = {"metadata": document.pop("metadata")}
    unknown = unknown_fields(whole, _METADATA)
    document.update(whole)
    return unknown


def _compile(schema: Document | None, *, preserves: bool = False) -> _Prune:
    """Return what prunes the values of a schema, none of which has a field if there is no schema."""
    if schema is None:
        return _keep if preserves else _clear
    # Items of a list that preserves unknown fields preserve them, too.
    preserves = preserves or bool(schema.get(PRESERVE))
    members, prune_item = (
        _compile_members(schema, preserves=preserves),
        _compile(schema.get("items"), preserves=preserves),
    )

    def prune(value: Any, path: str, found: _Traversal) -> None:
        if type(value) is dict:
            members(value, path, found)
        else:
            _prune_items(prune_item, value, path, found)

    return prune


def _prune_items(prune: _Prune, value: list[Any], path: str, found: _Traversal) -> None:
    for index, item in enumerate(ticking(value)):
        if type(item) in _CONTAINERS:
            _descend(prune, item, (path + f"[{index}]", f"[{index}]"), found)


def _descend(prune: _Prune, value: Any, place: tuple[str, str], found: _Traversal) -> None:
    """Prune a value of an object or list, given its path and the last element of it in errors."""
    path, element = place
    try:
        prune(value, path, found)
    except _RefusedError as error:
        error.below(element)
        raise


def _keep(_value: Any, _path: str, _found: _Traversal) -> None:
    """Leave a value as it is."""


def _clear(value: Any, path: str, found: _Traversal) -> None:
    """Drop all fields of a value that is to have none."""
    pending = [(value, path)]
    while pending:
        value, path = pending.pop()
        if type(value) is list:
            items = enumerate(ticking(value))
            pending += [(item, f"{path}[{index}]") for index, item in items if type(item) in _CONTAINERS]
        else:
            found.unknown += [f"{path}.{name}" for name in value]
            value.clear()


def _compile_members(schema: Document, *, is_root: bool = False, preserves: bool = False) -> _Prune:
    properties, additional = schema.get("properties") or {}, schema.get("additionalProperties")
    members = {name: _Member(inner) for name, inner in properties.items()}
    other = _Member(additional if isinstance(additional, dict) else None) if additional else None
    if other is None and (preserves or schema.get(PRESERVE)):
        other = _AS_IT_IS
    is_embedded = bool(schema.get(EMBEDDED)) and not is_root
    if is_root or is_embedded:
        members |= dict.fromkeys((*_TYPE_FIELDS, "metadata"), _AS_IT_IS)

    def prune_members(value: Document, path: str, found: _Traversal) -> None:
        prefix, dropped = f"{path}." if path else "", []
        for name, item in ticking(value.items()):
            member = members.get(name, other)
            if member is None:
                dropped.append(name)
                found.unknown.append(prefix + name)
            elif item is None and member.drops_null:
                dropped.append(name)
            elif type(item) in _CONTAINERS:
                _descend(member.prune, item, (prefix + name, name if name in members else f"[{name}]"), found)
        for name in dropped:
            del value[name]
        if is_embedded:
            _normalize_embedded(value, prefix, found)

    return prune_members


class _Member:
    """A field or entry of an object."""

    __slots__ = ("drops_null", "prune")

    def __init__(self, schema: Document | None, prune: _Prune | None = None) -> None:
        self.prune: Final = prune or _compile(schema)
        self.drops_null: Final = schema is not None and not schema.get("nullable") and schema.get("default") is None


_AS_IT_IS: Final = _Member(None, _keep)


def _normalize_embedded(value: Document, prefix: str, found: _Traversal) -> None:
    """Bring type and metadata of an embedded object into the form that they have in every object."""
    for name in _TYPE_FIELDS:
        if not isinstance(value.get(name, ""), str):
            if found.strict:
                raise _RefusedError(name, value[name], "must be a string")
            del value[name]
    if "metadata" not in value:
        return
    given = value["metadata"]
    metadata = {} if given is None else given
    try:
        unknown = unknown_fields(metadata, load.object_meta())
    except DecodeError as error:
        if found.strict:
            raise _RefusedError("metadata", given, str(error)) from None
        if not isinstance(metadata, dict):
            return
        unknown, metadata = [], _decodable(metadata)
    value["metadata"] = metadata
    found.unknown_metadata += [f"{prefix}metadata.{path}" for path in unknown]


def _decodable(metadata: Document) -> Document:
    """Return the fields of metadata that can be decoded."""
    kept: Document = {}
    for name, value in metadata.items():
        field = {name: value}
        try:
            unknown_fields(field, load.object_meta())
        except DecodeError:
            continue
        kept |= field
    return kept
