"""Strict decoding as in Go: one pass over a parsed document and its type, which normalizes the document in place.

Unknown fields are reported and dropped, `null` is treated as unset, zero values of plain fields are removed, structs
that are always present are added, and a value of the wrong JSON type raises Go's error. Each type is compiled once into
closures, since this runs for every write.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from dray.api.document import Document
from dray.api.normal_form import unless_normal
from dray.api.parse import ParseError, parse_json, parse_yaml
from dray.api.schema.model import Field, ListOf, MapOf, Scalar, StructType, Type
from dray.api.shorthands import SHORTHANDS
from dray.api.spec_cache import TEXT_LENGTH_MAX, json_text
from dray.api.strict_order import STRICT_ERRORS_MAX
from dray.api.strict_scalars import SCALARS, Check, DecodeError, MismatchError, go_kind
from dray.lib.lru import LRUSet
from dray.lib.processor_time import tick, ticking

__all__ = [
    "DecodeError",
    "ParseError",
    "check_changed_fields",
    "check_fields",
    "parse_json",
    "parse_yaml",
]

# Returned by a check for a value that is dropped.
_DROP: Final = object()

_OBJECT_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_POD_STATUS: Final = "io.k8s.api.core.v1.PodStatus"
# Lists that a writer clears with an empty one; leaving them out keeps what is stored.
_CLEARED_BY_EMPTY: Final = frozenset(
    {
        (_OBJECT_META, "managedFields"),
        (_POD_STATUS, "resourceClaimStatuses"),
        (_POD_STATUS, "nodeAllocatableResourceClaimStatuses"),
    }
)


def check_fields(document: Document, struct_type: StructType) -> list[str]:
    """Normalize the document to its built-in type in place; return the errors `unknown field "path"`."""
    unknown = unknown_fields(document, struct_type)
    # Most documents have none.
    return [f'unknown field "{path}"' for path in unknown] if unknown else unknown


def unknown_fields(document: Document, struct_type: StructType) -> list[str]:
    """Normalize the document to its built-in type in place; return the paths of unknown fields, a bounded number."""
    unknown: list[str] = []
    try:
        _compile_struct(struct_type)(document, unknown)
    except MismatchError as error:
        raise DecodeError(error.text()) from None
    return unknown[:STRICT_ERRORS_MAX] if unknown else unknown


def check_changed_fields(document: Document, stored: Document, struct_type: StructType) -> list[str]:
    """Like `check_fields`, for a document that was made of a stored one.

    Members that are still the same objects as there are left as they are: a release before may have stored them.
    """
    changed = {name: value for name, value in document.items() if stored.get(name, _DROP) is not value}
    asked = tuple(changed)
    unknown = check_fields(changed, struct_type)
    for name in asked:
        if name not in changed:
            del document[name]
    for name, value in changed.items():
        # Structs that are always present were added to the part; the document has them.
        if name in asked or name not in document:
            document[name] = value
    return unknown


# --- Messages.


@cache
def _compile_struct(struct_type: StructType) -> Check:
    check, shorthand = _compile_full(struct_type), SHORTHANDS.get(struct_type.name)
    return check if shorthand is None else lambda value, unknown: check(shorthand(value), unknown)


def _compile_full(struct_type: StructType) -> Check:
    table: dict[str, Check] = {}
    texts: set[str] = set()
    flags: set[str] = set()
    always: list[tuple[str, Callable[[], Any]]] = []
    name = struct_type.name.rpartition(".")[2]
    go_type = _go_type(struct_type)

    def check(document: Any, unknown: list[str]) -> Any:
        if type(document) is not dict:
            raise MismatchError(go_kind(document), go_type)
        if not table:
            # Compiled on first use: types are recursive.
            _fill_tables(struct_type, table, texts, flags, always)
        tick()
        changed: Document = {}
        mark = len(unknown)
        key = ""
        try:
            for key, value in document.items():
                # Most fields are of these kinds; handled here to save a call.
                if (type(value) is str and value and key in texts) or (value is True and key in flags):
                    continue
                kept = _DROP if value is None and key in table else table.get(key, _report)(value, unknown)
                if kept is not value:
                    changed[key] = kept
                if unknown and len(unknown) != mark:
                    mark = _prefix(unknown, mark, key)
        except MismatchError as error:
            error.struct = error.struct or name
            error.fields.append(key)
            raise
        if changed or always:
            _complete(document, changed, always)
        return document

    return check


def _report(value: Any, unknown: list[str]) -> Any:
    """Record an unknown field; the enclosing structs prefix its path."""
    unknown.append("")
    return _DROP


def _complete(document: Document, changed: Document, always: list[tuple[str, Callable[[], Any]]]) -> None:
    for key, kept in changed.items():
        if kept is _DROP:
            del document[key]
        else:
            document[key] = kept
    for key, make in always:
        if key not in document:
            document[key] = make()


def _fill_tables(
    struct_type: StructType,
    table: dict[str, Check],
    texts: set[str],
    flags: set[str],
    always: list[tuple[str, Callable[[], Any]]],
) -> None:
    for field in struct_type.fields.values():
        emptied = (struct_type.name, field.name) in _CLEARED_BY_EMPTY
        table[field.name] = _compile(field.type) if emptied else _compile_field(field)
        if isinstance(field.type, StructType) and "kind" in struct_type.fields:
            skip_check = _remembering if field.name == "spec" else _recognizing
            table[field.name] = skip_check(field.type, table[field.name])
        if field.type in _TEXTS:
            texts.add(field.name)
        if field.type is Scalar.BOOL:
            flags.add(field.name)
        if field.always and isinstance(field.type, StructType):
            always.append((field.name, _maker(field.type)))


# Specs of objects that a check leaves as they are: those of Pods from one template are checked once, and that of a
# claim is not checked again by every write. By the name of the type, since custom resources are not checked.
_NORMAL_SPECS: Final[LRUSet[tuple[str, bytes]]] = LRUSet(1024)


def _remembering(spec_type: StructType, check: Check) -> Check:
    """Return the check of an object's spec, which is left out for a spec that is known to need no change."""
    name = spec_type.name

    def check_spec(spec: Any, unknown: list[str]) -> Any:
        text = json_text(spec)
        if text is None:
            return check(spec, unknown)
        if (name, text) in _NORMAL_SPECS:
            return spec
        mark = len(unknown)
        kept = check(spec, unknown)
        if kept is spec and len(unknown) == mark and len(text) <= TEXT_LENGTH_MAX and json_text(spec) == text:
            _NORMAL_SPECS.add((name, text))
        return kept

    return check_spec


def _recognizing(part_type: StructType, check: Check) -> Check:
    """Return the check of another part of an object, which is left out for a part in normal form."""
    return unless_normal(part_type, _CLEARED_BY_EMPTY, check)


def _maker(struct_type: StructType) -> Callable[[], Document]:
    nested = [
        (field.name, _maker(field.type))
        for field in struct_type.fields.values()
        if field.always and isinstance(field.type, StructType)
    ]

    def make() -> Document:
        return {name: make_nested() for name, make_nested in nested}

    return dict if not nested else make


def _prefix(unknown: list[str], mark: int, name: str) -> int:
    """Prefix the paths recorded since the mark with the name; return the new mark."""
    for index in ticking(range(mark, len(unknown))):
        tail = unknown[index]
        unknown[index] = f"{name}.{tail}" if tail and tail[0] != "[" else f"{name}{tail}"
    return len(unknown)


def _compile_field(field: Field) -> Check:
    kind = field.type
    if isinstance(kind, StructType):
        return _compile_struct(kind)
    if isinstance(kind, Scalar):
        plain = kind in _WITH_ZERO and not field.required and not field.pointer and field.default is None
        return _dropping_zero(SCALARS[kind]) if plain else SCALARS[kind]
    if isinstance(kind, MapOf):
        return _compile_map(kind, drops_empty=not field.required)
    return _compile_list(kind, drops_empty=not field.required)


# Any text is valid for these.
_TEXTS: Final = (Scalar.STRING, Scalar.DURATION)
# Types whose zero value Go omits; a zero quantity is written as "0", and there is no text of a zero time.
_WITH_ZERO: Final = frozenset({Scalar.STRING, Scalar.INT32, Scalar.INT64, Scalar.DOUBLE, Scalar.BOOL, Scalar.BYTES})


def _dropping_zero(check: Check) -> Check:
    def check_and_drop(value: Any, unknown: list[str]) -> Any:
        return check(value, unknown) or _DROP

    return check_and_drop


# --- Lists and maps.


def _compile(kind: Type) -> Check:
    if isinstance(kind, Scalar):
        return SCALARS[kind]
    if isinstance(kind, StructType):
        return _compile_struct(kind)
    if isinstance(kind, MapOf):
        return _compile_map(kind)
    return _compile_list(kind)


def _compile_list(kind: ListOf, *, drops_empty: bool = False) -> Check:
    check, zero, go_type = _compile(kind.element), _zero(kind.element), _go_type(kind)
    of_texts = kind.element in _TEXTS

    def check_list(value: Any, unknown: list[str]) -> Any:
        if type(value) is not list:
            raise MismatchError(go_kind(value), go_type)
        mark = len(unknown)
        for index, item in enumerate(ticking(value)):
            if of_texts and type(item) is str:
                continue
            kept = zero() if item is None else check(item, unknown)
            if kept is not item:
                value[index] = kept
            if unknown and len(unknown) != mark:
                mark = _prefix(unknown, mark, f"[{index}]")
        return _DROP if drops_empty and not value else value

    return check_list


def _compile_map(kind: MapOf, *, drops_empty: bool = False) -> Check:
    check, zero, go_type = _compile(kind.element), _zero(kind.element), _go_type(kind)
    of_texts = kind.element in _TEXTS

    def check_map(value: Any, unknown: list[str]) -> Any:
        if type(value) is not dict:
            raise MismatchError(go_kind(value), go_type)
        mark = len(unknown)
        for key, item in ticking(value.items()):
            if of_texts and type(item) is str:
                continue
            kept = zero() if item is None else check(item, unknown)
            if kept is not item:
                value[key] = kept
            if unknown and len(unknown) != mark:
                mark = _prefix(unknown, mark, key)
        return _DROP if drops_empty and not value else value

    return check_map


def _zero(kind: Type) -> Callable[[], Any]:
    """Return the value that Go uses for `null` in a list or map."""
    if isinstance(kind, StructType):
        # With the structs that are always present in it.
        return lambda: _compile_struct(kind)({}, [])
    if isinstance(kind, MapOf):
        return dict
    if isinstance(kind, ListOf):
        return list
    return _ZEROES.get(kind, lambda: None)


_ZEROES: Final[dict[Scalar, Callable[[], Any]]] = {
    Scalar.STRING: str,
    Scalar.BYTES: str,
    Scalar.INT32: int,
    Scalar.INT64: int,
    Scalar.DOUBLE: int,
    Scalar.BOOL: bool,
    Scalar.QUANTITY: lambda: "0",
    Scalar.INT_OR_STRING: int,
}


# --- Go type names.


_GO_SCALARS: Final = {
    Scalar.DOUBLE: "float64",
    Scalar.BYTES: "[]uint8",
    Scalar.TIME: "v1.Time",
    Scalar.MICRO_TIME: "v1.MicroTime",
    Scalar.QUANTITY: "resource.Quantity",
    Scalar.INT_OR_STRING: "intstr.IntOrString",
    Scalar.ANY: "interface {}",
}


def _go_type(kind: Type) -> str:
    if isinstance(kind, ListOf):
        return f"[]{_go_type(kind.element)}"
    if isinstance(kind, MapOf):
        return "v1.ResourceList" if kind.element is Scalar.QUANTITY else f"map[string]{_go_type(kind.element)}"
    if isinstance(kind, StructType):
        return ".".join(kind.name.split(".")[-2:])
    return _GO_SCALARS.get(kind, kind.value)
