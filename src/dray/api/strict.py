"""Decoding as Go does it: a parsed document against its type, in one pass that repairs the document in place.

Unknown fields are reported and dropped, `null` is absence, zero values of plain fields vanish, structs that are
always there appear, and a value of the wrong JSON type ends the request with Go's own words. Each type is
compiled once into closures, since this runs for every write.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from dray.api.document import Document
from dray.api.parse import ParseError, parse_json, parse_yaml
from dray.api.quantity import Quantity, QuantityError
from dray.api.schema.model import Field, ListOf, MapOf, Scalar, StructType, Type
from dray.api.timestamps import TimeFormatError, format_micro_time, format_time, parse_time

__all__ = ["DecodeError", "ParseError", "check_fields", "parse_json", "parse_yaml", "prune_fields"]

# Go's decoder stops collecting strict errors here.
STRICT_ERRORS_MAX: Final = 100

# A value checked against a type: gives the value to keep (or _DROP), notes unknown fields in the list.
_Check: TypeAlias = Callable[[Any, list[str]], Any]

_DROP: Final = object()

_INT32: Final = (-(2**31), 2**31 - 1)
_INT64: Final = (-(2**63), 2**63 - 1)

# Where the classic design writes plain strings, and the field they are short for (CL-14).
_SHORTHANDS: Final = {"io.k8s.api.core.v1.ResourceClaim": "name"}

_OBJECT_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


class DecodeError(ValueError):
    """A document that does not fit its type; the text is that of Go's JSON decoder."""


class _MismatchError(Exception):
    """A wrong value, on its way up to where its path is known."""

    def __init__(self, given: str, go_type: str) -> None:
        super().__init__()
        self.given = given
        self.go_type = go_type
        self.struct = ""
        self.fields: list[str] = []

    def text(self) -> str:
        """Render as Go does."""
        if not self.struct:
            return f"json: cannot unmarshal {self.given} into Go value of type {self.go_type}"
        path = ".".join(reversed(self.fields))
        return f"json: cannot unmarshal {self.given} into Go struct field {self.struct}.{path} of type {self.go_type}"


def check_fields(document: Document, struct_type: StructType) -> list[str]:
    """Make the document fit its built-in type, in place; the errors `unknown field "path"` are returned."""
    unknown: list[str] = []
    try:
        _compile_struct(struct_type)(document, unknown)
    except _MismatchError as error:
        raise DecodeError(error.text()) from None
    return [f'unknown field "{path}"' for path in unknown[:STRICT_ERRORS_MAX]]


def prune_fields(document: Document, struct_type: StructType) -> list[str]:
    """Drop unknown fields of a custom resource in place and report them; wrong values are left to validation."""
    unknown: list[str] = []
    try:
        _compile_lenient(struct_type)(document, unknown)
    except _MismatchError as error:
        raise DecodeError(error.text()) from None
    return [f'unknown field "{path}"' for path in unknown[:STRICT_ERRORS_MAX]]


# --- messages


@cache
def _compile_struct(struct_type: StructType) -> _Check:
    table: dict[str, _Check] = {}
    always: list[tuple[str, Callable[[], Any]]] = []
    name = struct_type.name.rpartition(".")[2]
    go_type = _go_type(struct_type)
    shorthand = _SHORTHANDS.get(struct_type.name)

    def check(document: Any, unknown: list[str]) -> Any:
        if not table:
            # Compiled on first use: types are recursive.
            _fill_table(struct_type, table, always)
        if type(document) is not dict:
            if shorthand is not None and type(document) is str:
                return {shorthand: document}
            raise _MismatchError(_given(document), go_type)
        for key in _walk(document, table, name, unknown):
            del document[key]
        for key, make in always:
            if key not in document:
                document[key] = make()
        return document

    return check


def _walk(document: Document, table: dict[str, _Check], struct: str, unknown: list[str]) -> Sequence[str]:
    """Check and replace every value; the keys to drop are returned."""
    drop: list[str] = []
    key = ""
    mark = len(unknown)
    try:
        for key, value in document.items():
            handler = table.get(key)
            if handler is None:
                unknown.append(key)
                drop.append(key)
                mark += 1
            elif value is None:
                drop.append(key)
            else:
                kept = handler(value, unknown)
                if len(unknown) != mark:
                    _prefix(unknown, mark, key)
                    mark = len(unknown)
                if kept is _DROP:
                    drop.append(key)
                elif kept is not value:
                    document[key] = kept
    except _MismatchError as error:
        error.struct = error.struct or struct
        error.fields.append(key)
        raise
    return drop


def _fill_table(struct_type: StructType, table: dict[str, _Check], always: list[tuple[str, Callable[[], Any]]]) -> None:
    for field in struct_type.fields.values():
        table[field.name] = _compile_field(field)
        if field.always and isinstance(field.type, StructType):
            always.append((field.name, _maker(field.type)))


def _maker(struct_type: StructType) -> Callable[[], Document]:
    nested = [
        (field.name, _maker(field.type))
        for field in struct_type.fields.values()
        if field.always and isinstance(field.type, StructType)
    ]

    def make() -> Document:
        return {name: make_nested() for name, make_nested in nested}

    return dict if not nested else make


def _prefix(unknown: list[str], mark: int, name: str) -> None:
    for index in range(mark, len(unknown)):
        tail = unknown[index]
        unknown[index] = f"{name}{tail}" if tail[0] == "[" else f"{name}.{tail}"


def _compile_field(field: Field) -> _Check:
    if isinstance(field.type, Scalar):
        if field.type is Scalar.ANY:
            return _keep
        check = _SCALARS[field.type]
        plain = field.type in _WITH_ZERO and not field.required and not field.pointer and field.default is None
        if plain and field.type is Scalar.STRING:
            return _check_plain_string
        return _dropping_zero(check) if plain else check
    check = _compile(field.type)
    if isinstance(field.type, StructType) or field.required:
        return check
    return _dropping_zero(check)


# Types whose zero Go leaves out; a zero quantity is written as "0".
_WITH_ZERO: Final = frozenset(
    {
        Scalar.STRING,
        Scalar.INT32,
        Scalar.INT64,
        Scalar.DOUBLE,
        Scalar.BOOL,
        Scalar.BYTES,
        Scalar.TIME,
        Scalar.MICRO_TIME,
    }
)


def _dropping_zero(check: _Check) -> _Check:
    def check_and_drop(value: Any, unknown: list[str]) -> Any:
        return check(value, unknown) or _DROP

    return check_and_drop


# --- lists and maps


def _compile(kind: Type) -> _Check:
    if isinstance(kind, Scalar):
        return _SCALARS[kind]
    if isinstance(kind, StructType):
        return _compile_struct(kind)
    if isinstance(kind, MapOf):
        return _compile_map(kind)
    return _compile_list(kind)


def _compile_list(kind: ListOf) -> _Check:
    check = _compile(kind.element)
    zero = _zero(kind.element)
    go_type = _go_type(kind)

    def check_list(value: Any, unknown: list[str]) -> Any:
        if type(value) is not list:
            raise _MismatchError(_given(value), go_type)
        for index, item in enumerate(value):
            mark = len(unknown)
            kept = zero() if item is None else check(item, unknown)
            if kept is not item:
                value[index] = kept
            if len(unknown) != mark:
                _prefix(unknown, mark, f"[{index}]")
        return value

    return check_list


def _compile_map(kind: MapOf) -> _Check:
    check = _compile(kind.element)
    zero = _zero(kind.element)
    go_type = _go_type(kind)

    def check_map(value: Any, unknown: list[str]) -> Any:
        if type(value) is not dict:
            raise _MismatchError(_given(value), go_type)
        for key, item in value.items():
            mark = len(unknown)
            kept = zero() if item is None else check(item, unknown)
            if kept is not item:
                value[key] = kept
            if len(unknown) != mark:
                _prefix(unknown, mark, key)
        return value

    return check_map


def _zero(kind: Type) -> Callable[[], Any]:
    """What Go puts where a list or map has `null`."""
    if isinstance(kind, StructType | MapOf):
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


# --- leaves


def _keep(value: Any, unknown: list[str]) -> Any:
    return value


def _check_string(value: Any, unknown: list[str]) -> Any:
    if type(value) is str:
        return value
    raise _MismatchError(_given(value), "string")


def _check_plain_string(value: Any, unknown: list[str]) -> Any:
    """Most fields are of this sort: spared a second call."""
    if type(value) is str:
        return value or _DROP
    raise _MismatchError(_given(value), "string")


def _check_bool(value: Any, unknown: list[str]) -> Any:
    if type(value) is bool:
        return value
    raise _MismatchError(_given(value), "bool")


def _check_integer(low: int, high: int, go_type: str) -> _Check:
    def check(value: Any, unknown: list[str]) -> Any:
        if type(value) is int and low <= value <= high:
            return value
        given = f"number {value}" if type(value) is int or type(value) is float else _given(value)
        raise _MismatchError(given, go_type)

    return check


def _check_double(value: Any, unknown: list[str]) -> Any:
    if type(value) is int or type(value) is float:
        return value
    raise _MismatchError(_given(value), "float64")


def _check_bytes(value: Any, unknown: list[str]) -> Any:
    if type(value) is not str:
        raise _MismatchError(_given(value), "[]uint8")
    try:
        base64.b64decode(value.encode(), validate=True)
    except (binascii.Error, ValueError):
        # Go skips line breaks inside base64.
        stripped = value.replace("\r", "").replace("\n", "")
        if stripped == value or _check_bytes(stripped, unknown) is _DROP:
            raise DecodeError(f"illegal base64 data at input byte {_base64_fault(value)}") from None
        return stripped
    return value


def _base64_fault(text: str) -> int:
    match = re.search(r"[^A-Za-z0-9+/]", text)
    if match is None:
        return len(text) - len(text) % 4 if len(text) % 4 else len(text)
    return match.start()


def _check_quantity(value: Any, unknown: list[str]) -> Any:
    try:
        if type(value) is bool or type(value) is dict or type(value) is list:
            return str(Quantity.parse(str(value)))
        return str(Quantity.parse(value))
    except QuantityError as error:
        raise DecodeError(str(error)) from None


def _check_int_or_string(value: Any, unknown: list[str]) -> Any:
    if type(value) is str:
        return value
    return _check_int32(value, unknown)


_TIME_TEXT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_MICRO_TIME_TEXT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)


def _check_time(value: Any, unknown: list[str]) -> Any:
    if type(value) is not str:
        raise DecodeError(f"json: cannot unmarshal {_given(value)} into Go value of type string")
    try:
        moment = parse_time(value)
    except TimeFormatError as error:
        raise DecodeError(str(error)) from None
    return value if _TIME_TEXT.fullmatch(value) else format_time(moment)


def _check_micro_time(value: Any, unknown: list[str]) -> Any:
    if type(value) is not str:
        raise DecodeError(f"json: cannot unmarshal {_given(value)} into Go value of type string")
    try:
        moment = parse_time(value)
    except TimeFormatError as error:
        raise DecodeError(str(error)) from None
    return value if _MICRO_TIME_TEXT.fullmatch(value) else format_micro_time(moment)


_check_int32: Final = _check_integer(*_INT32, "int32")

_SCALARS: Final[dict[Scalar, _Check]] = {
    Scalar.STRING: _check_string,
    Scalar.INT32: _check_int32,
    Scalar.INT64: _check_integer(*_INT64, "int64"),
    Scalar.DOUBLE: _check_double,
    Scalar.BOOL: _check_bool,
    Scalar.BYTES: _check_bytes,
    Scalar.TIME: _check_time,
    Scalar.MICRO_TIME: _check_micro_time,
    Scalar.DURATION: _check_string,
    Scalar.QUANTITY: _check_quantity,
    Scalar.INT_OR_STRING: _check_int_or_string,
    Scalar.ANY: _keep,
}


def _given(value: Any) -> str:
    return _GIVEN.get(type(value), "number")


_GIVEN: Final[dict[type, str]] = {str: "string", bool: "bool", list: "array", dict: "object"}

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


# --- custom resources


@cache
def _compile_lenient(struct_type: StructType) -> _Check:
    if struct_type.name == _OBJECT_META:
        # Metadata is a Go struct for custom resources too.
        return _compile_struct(struct_type)
    table: dict[str, _Check | None] = {}
    name = struct_type.name.rpartition(".")[2]

    def check(document: Any, unknown: list[str]) -> Any:
        if type(document) is not dict:
            return document
        if not table and struct_type.fields:
            table.update({field.name: _compile_inner(field.type) for field in struct_type.fields.values()})
        drop = [key for key in document if key not in table] if not struct_type.open else []
        for key in drop:
            del document[key]
            unknown.append(key)
        for key, value in document.items():
            handler = table.get(key)
            if handler is None:
                continue
            mark = len(unknown)
            try:
                handler(value, unknown)
            except _MismatchError as error:
                error.struct = error.struct or name
                error.fields.append(key)
                raise
            _prefix(unknown, mark, key)
        return document

    return check


def _compile_inner(kind: Type) -> _Check | None:
    """A check that goes down to the structs below, None when there are none."""
    if isinstance(kind, StructType):
        return _compile_lenient(kind)
    if isinstance(kind, Scalar):
        return None
    inner = _compile_inner(kind.element)
    if inner is None:
        return None
    return _lenient_map(inner) if isinstance(kind, MapOf) else _lenient_list(inner)


def _lenient_map(inner: _Check) -> _Check:
    def check(value: Any, unknown: list[str]) -> Any:
        if type(value) is dict:
            for key, item in value.items():
                mark = len(unknown)
                inner(item, unknown)
                _prefix(unknown, mark, key)
        return value

    return check


def _lenient_list(inner: _Check) -> _Check:
    def check(value: Any, unknown: list[str]) -> Any:
        if type(value) is list:
            for index, item in enumerate(value):
                mark = len(unknown)
                inner(item, unknown)
                _prefix(unknown, mark, f"[{index}]")
        return value

    return check
