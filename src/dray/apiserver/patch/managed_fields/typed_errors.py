"""Type errors of an applied configuration, with the messages of structured merge."""

from __future__ import annotations

from typing import Any, Final

from dray.api.document import Document
from dray.api.schema.model import ListOf, Scalar, StructType
from dray.apiserver.patch import go_text
from dray.apiserver.patch.managed_fields.field_set import Path, element_text, path_text
from dray.apiserver.patch.managed_fields.shape import ItemKeyError, Shape, struct_shape
from dray.lib.processor_time import ticking

_NUMBERS: Final = frozenset({Scalar.INT32, Scalar.INT64, Scalar.DOUBLE})
_ANY_SCALAR: Final = frozenset({Scalar.QUANTITY, Scalar.INT_OR_STRING})


def type_errors(document: Document, struct: StructType) -> list[str]:
    """Return all errors, each with its path."""
    return _errors(document, struct_shape(struct), ())


def joined(errors: list[str]) -> str:
    """Return all errors in one text."""
    return errors[0] if len(errors) == 1 else "\n  ".join(["errors:", *errors])


def _errors(value: Any, shape: Shape, path: Path) -> list[str]:
    kind = shape.type
    if value is None or kind is Scalar.ANY:
        return []
    if isinstance(kind, Scalar):
        message = _scalar_error(value, kind)
        return [_at(path, message)] if message else []
    if isinstance(kind, ListOf):
        if not isinstance(value, list):
            return [_at(path, f"expected list, got &{{{go_text.plain(value)}}}")]
        return _list_errors(value, shape, path)
    if not isinstance(value, dict):
        return [_at(path, f"expected map, got &{{{go_text.plain(value)}}}")]
    return _map_errors(value, shape, path)


def _at(path: Path, message: str) -> str:
    return f"{path_text(path)}: {message}" if path else message


def _scalar_error(value: Any, kind: Scalar) -> str:
    if kind in _ANY_SCALAR:
        return f"expected any scalar, got &{{{go_text.plain(value)}}}" if isinstance(value, dict | list) else ""
    if kind in _NUMBERS:
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        return "" if numeric else f"expected numeric (int or float), got {go_text.type_name(value)}"
    if kind is Scalar.BOOL:
        return "" if isinstance(value, bool) else f"expected boolean, got &{{{go_text.plain(value)}}}"
    if isinstance(value, str):
        return ""
    return f"expected string, got &value.valueUnstructured{{Value:{go_text.syntax(value)}}}"


def _map_errors(value: Document, shape: Shape, path: Path) -> list[str]:
    errors: list[str] = []
    closed = isinstance(shape.type, StructType) and not shape.type.open
    slots = shape.slots
    for name, item in ticking(value.items()):
        slot = slots.get(name)
        if slot is None and closed:
            return [*errors, f"{path_text(path)}.{name}: field not declared in schema"]
        child = shape.item if slot is None else slot.shape
        if not (child.takes_text and isinstance(item, str)):
            errors += _errors(item, child, (*path, f"f:{name}"))
    return errors


def _list_errors(value: list[Any], shape: Shape, path: Path) -> list[str]:
    errors: list[str] = []
    seen: set[str] = set()
    for position, item in enumerate(ticking(value)):
        element = f"i:{position}"
        if shape.is_list:
            try:
                element = shape.item_element(item)
            except ItemKeyError as error:
                return [*errors, _at(path, f"element {position}: {error}")]
            if element in seen:
                errors.append(_at(path, f"duplicate entries for key {element_text(element)}"))
            seen.add(element)
        errors += _errors(item, shape.item, (*path, element))
    return errors
