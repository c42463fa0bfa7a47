"""What is wrong with a configuration's types, in the words of structured merge; checked before it is merged."""

from __future__ import annotations

from typing import Any, Final

from dray.api.document import Document
from dray.api.schema.model import ListOf, MapOf, Scalar, StructType, Type
from dray.apiserver.patch import go_text
from dray.apiserver.patch.managed_fields.field_set import element_text
from dray.apiserver.patch.managed_fields.shape import Form, ItemKeyError, shape_of

_NUMBERS: Final = frozenset({Scalar.INT32, Scalar.INT64, Scalar.DOUBLE})
_ANY_SCALAR: Final = frozenset({Scalar.QUANTITY, Scalar.INT_OR_STRING})


def type_errors(document: Document, struct: StructType) -> list[str]:
    """Every mistake, each with its path."""
    return _errors(document, struct, "")


def joined(errors: list[str]) -> str:
    """All mistakes in one text."""
    return errors[0] if len(errors) == 1 else "\n  ".join(["errors:", *errors])


def _errors(value: Any, kind: Type, path: str) -> list[str]:
    if value is None or kind is Scalar.ANY:
        return []
    if isinstance(kind, Scalar):
        complaint = _scalar_error(value, kind)
        return [_at(path, complaint)] if complaint else []
    if isinstance(kind, ListOf):
        if not isinstance(value, list):
            return [_at(path, f"expected list, got &{{{go_text.plain(value)}}}")]
        return _list_errors(value, kind, path)
    if not isinstance(value, dict):
        return [_at(path, f"expected map, got &{{{go_text.plain(value)}}}")]
    return _map_errors(value, kind, path)


def _at(path: str, complaint: str) -> str:
    return f"{path}: {complaint}" if path else complaint


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


def _map_errors(value: Document, kind: StructType | MapOf, path: str) -> list[str]:
    errors: list[str] = []
    for name, item in value.items():
        if isinstance(kind, MapOf):
            child: Type = kind.element
        else:
            field = kind.fields.get(name)
            if field is None and not kind.open:
                return [*errors, f"{path}.{name}: field not declared in schema"]
            child = Scalar.ANY if field is None else field.type
        errors += _errors(item, child, f"{path}.{name}")
    return errors


def _list_errors(value: list[Any], kind: ListOf, path: str) -> list[str]:
    shape = shape_of(kind)
    errors: list[str] = []
    seen: set[str] = set()
    for position, item in enumerate(value):
        element = f"i:{position}"
        if shape.form is not Form.LEAF:
            try:
                element = shape.item_element(item)
            except ItemKeyError as error:
                return [*errors, _at(path, f"element {position}: {error}")]
            if element in seen:
                errors.append(_at(path, f"duplicate entries for key {element_text(element)}"))
            seen.add(element)
        errors += _errors(item, kind.element, path + element_text(element))
    return errors
