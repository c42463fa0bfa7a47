"""Decoder of protobuf messages: documents as Go would write the same object in JSON.

Go sends every plain scalar, zero or not; zero values of fields that JSON omits are therefore dropped, and
only fields that are Go pointers keep them.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, TypeAlias

from dray.api.document import Document
from dray.api.limits import DEPTH_EXCEEDED
from dray.api.parse import ParseError
from dray.api.protobuf.wire import (
    CONTINUATION,
    DELIMITED,
    VARINT,
    ProtobufError,
    read_length,
    read_varint,
    signed,
    skip,
    wire_type_of,
)
from dray.api.raw_numbers import load_raw
from dray.api.schema import load
from dray.api.schema.model import Field, ListOf, MapOf, Scalar, StructType, Type
from dray.api.timestamps import format_duration_nanoseconds, format_micro_time, format_time
from dray.lib.processor_time import tick

# Reads a value: buffer, position, end of the enclosing message -> value, position after it.
_Read: TypeAlias = Callable[[bytes, int, int], tuple[Any, int]]
# Reads a field into a document and returns the position after it.
_Store: TypeAlias = Callable[[Document, bytes, int, int], int]

# Larger whole numbers stay floats: integers have 64 bits.
_WHOLE_MAX: Final = 2.0**63
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SCHEMA: Final = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"


def decode_message(body: bytes, struct_type: StructType) -> Document:
    """Return the document of a message without envelope."""
    try:
        return _compile_struct(struct_type)(body, 0, len(body))
    except RecursionError:
        raise ProtobufError(f"proto: {DEPTH_EXCEEDED}") from None
    except UnicodeDecodeError:
        raise ProtobufError("proto: string field contains invalid UTF-8") from None
    except (struct.error, OverflowError, ParseError) as error:
        raise ProtobufError(f"proto: {error}") from None


def _read_into(document: Document, table: dict[int, _Store], buffer: bytes, position: int, end: int) -> Document:
    while position < end:
        key = buffer[position]
        # Most tags take one byte.
        if key < CONTINUATION:
            position += 1
        else:
            key, position = read_varint(buffer, position, end)
        store = table.get(key)
        position = store(document, buffer, position, end) if store else skip(buffer, position, end, key & 7)
    return document


@cache
def _compile_struct(struct_type: StructType) -> Callable[[bytes, int, int], Document]:
    table: dict[int, _Store] = {}

    def read(buffer: bytes, position: int, end: int) -> Document:
        if not table:
            # Compiled on first use: types are recursive.
            table.update(_stores(struct_type))
        tick()
        return _read_into({}, table, buffer, position, end)

    return read


def _stores(struct_type: StructType) -> dict[int, _Store]:
    return _stores_of(struct_type.fields.values(), 0)


def _stores_of(fields: Iterable[Field], depth: int) -> dict[int, _Store]:
    """Return the table of a message, or of one embedded in it at a depth."""
    stores: dict[int, _Store] = {}
    embedded: dict[int, list[Field]] = {}
    for field in fields:
        if len(field.via) > depth:
            embedded.setdefault(field.via[depth], []).append(field)
        elif field.number:
            _add_field(stores, field)
    for number, inner in embedded.items():
        stores[number << 3 | DELIMITED] = _store_embedded(_stores_of(inner, depth + 1))
    return stores


def _add_field(target: dict[int, _Store], field: Field) -> None:
    kind = field.type
    if isinstance(kind, MapOf):
        target[field.number << 3 | DELIMITED] = _store_entry(field, kind.element)
    elif isinstance(kind, ListOf) and field.wire != "string-list":
        wire_type = wire_type_of(kind.element)
        target[field.number << 3 | wire_type] = _store_item(field.name, _compile(kind.element, field.wire))
        if wire_type != DELIMITED:
            target[field.number << 3 | DELIMITED] = _store_packed(field.name, _compile(kind.element, ""))
    else:
        target[field.number << 3 | wire_type_of(kind)] = _store_value(field)


def _store_value(field: Field) -> _Store:
    read = _compile(field.type, field.wire)
    name = field.name
    if isinstance(field.type, StructType) or field.pointer or (field.required and field.type not in _TIMES):

        def store(document: Document, buffer: bytes, position: int, end: int) -> int:
            document[name], position = read(buffer, position, end)
            return position

        return store

    keeps_false = field.type in (Scalar.ANY, Scalar.INT_OR_STRING)

    def store_unless_zero(document: Document, buffer: bytes, position: int, end: int) -> int:
        value, position = read(buffer, position, end)
        if value or (keeps_false and value is not None):
            document[name] = value
        return position

    return store_unless_zero


_TIMES: Final = frozenset({Scalar.TIME, Scalar.MICRO_TIME})


def _store_item(name: str, read: _Read) -> _Store:
    def store(document: Document, buffer: bytes, position: int, end: int) -> int:
        tick()
        value, position = read(buffer, position, end)
        document.setdefault(name, []).append(value)
        return position

    return store


def _store_packed(name: str, read: _Read) -> _Store:
    def store(document: Document, buffer: bytes, position: int, end: int) -> int:
        position, stop = read_length(buffer, position, end)
        values = document.setdefault(name, [])
        while position < stop:
            value, position = read(buffer, position, stop)
            values.append(value)
        return stop

    return store


def _store_entry(field: Field, element: Type) -> _Store:
    read = _compile(element, field.wire)
    name = field.name
    value_key = 2 << 3 | wire_type_of(element)
    zero = _zero(element, field.wire)

    def store(document: Document, buffer: bytes, position: int, end: int) -> int:
        tick()
        position, stop = read_length(buffer, position, end)
        key, value = "", zero()
        while position < stop:
            field_key, position = read_varint(buffer, position, stop)
            if field_key == value_key:
                value, position = read(buffer, position, stop)
            elif field_key == 1 << 3 | DELIMITED:
                key, position = _read_string(buffer, position, stop)
            else:
                position = skip(buffer, position, stop, field_key & 7)
        document.setdefault(name, {})[key] = value
        return stop

    return store


def _store_embedded(table: dict[int, _Store]) -> _Store:
    def store(document: Document, buffer: bytes, position: int, end: int) -> int:
        position, stop = read_length(buffer, position, end)
        _read_into(document, table, buffer, position, stop)
        return stop

    return store


def _zero(element: Type, wire: str) -> Callable[[], Any]:
    if wire == "string-list" or isinstance(element, ListOf):
        return list
    if isinstance(element, StructType):
        return dict
    if element in (Scalar.INT32, Scalar.INT64):
        return int
    return bool if element is Scalar.BOOL else str


def _compile(kind: Type, wire: str) -> _Read:
    if wire:
        return _BY_WIRE[wire]
    if isinstance(kind, Scalar):
        return _SCALARS[kind]
    if isinstance(kind, StructType):
        return _read_struct(_compile_struct(kind))
    raise AssertionError(f"protobuf has no {kind}")


# --- Leaves.


def _read_struct(read_message: Callable[[bytes, int, int], Document]) -> _Read:
    def read(buffer: bytes, position: int, end: int) -> tuple[Any, int]:
        position, stop = read_length(buffer, position, end)
        return read_message(buffer, position, stop), stop

    return read


def _read_string(buffer: bytes, position: int, end: int) -> tuple[Any, int]:
    start, stop = read_length(buffer, position, end)
    return buffer[start:stop].decode(), stop


def _read_int32(buffer: bytes, position: int, end: int) -> tuple[Any, int]:
    number, position = read_varint(buffer, position, end)
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number, position


def _read_int64(buffer: bytes, position: int, end: int) -> tuple[Any, int]:
    number, position = read_varint(buffer, position, end)
    return signed(number), position


def _read_bool(buffer: bytes, position: int, end: int) -> tuple[Any, int]:
    number, position = read_varint(buffer, position, end)
    return number != 0, position


def _read_double(buffer: bytes, position: int, end: int) -> tuple[Any, int]:
    if position + 8 > end:
        raise ProtobufError("unexpected EOF")
    number = struct.unpack_from("<d", buffer, position)[0]
    if not math.isfinite(number):
        raise ProtobufError(f"json: unsupported value: {number}")
    return int(number) if number.is_integer() and abs(number) < _WHOLE_MAX else number, position + 8


def _read_bytes(buffer: bytes, position: int, end: int) -> tuple[Any, int]:
    start, stop = read_length(buffer, position, end)
    return base64.b64encode(buffer[start:stop]).decode(), stop


def _number(field: int) -> int:
    """Return the key of an integer field."""
    return field << 3 | VARINT


def _text(field: int) -> int:
    """Return the key of a field of text or bytes."""
    return field << 3 | DELIMITED


def _read_pieces(buffer: bytes, position: int, end: int) -> tuple[dict[int, list[Any]], int]:
    """Return the values of a small message by key (`_number`, `_text`); values of another wire type are ignored."""
    position, stop = read_length(buffer, position, end)
    found: dict[int, list[Any]] = {}
    while position < stop:
        key, position = read_varint(buffer, position, stop)
        if key & 7 == VARINT:
            value, position = read_varint(buffer, position, stop)
            found.setdefault(key, []).append(signed(value))
        elif key & 7 == DELIMITED:
            start, position = read_length(buffer, position, stop)
            found.setdefault(key, []).append(buffer[start:position])
        else:
            position = skip(buffer, position, stop, key & 7)
    return found, stop


def _read_moment(buffer: bytes, position: int, end: int) -> tuple[datetime | None, int]:
    pieces, position = _read_pieces(buffer, position, end)
    seconds, nanos = pieces.get(_number(1), (0,))[-1], pieces.get(_number(2), (0,))[-1]
    if not seconds and not nanos:
        # Go encodes the zero time as an empty message.
        return None, position
    return _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000), position


def _read_time(buffer: bytes, position: int, end: int) -> tuple[Any, int]:
    moment, position = _read_moment(buffer, position, end)
    return None if moment is None else format_time(moment), position


def _read_micro_time(buffer: bytes, position: int, end: int) -> tuple[Any, int]:
    moment, position = _read_moment(buffer, position, end)
    return None if moment is None else format_micro_time(moment), position


def _read_duration(buffer: bytes, position: int, end: int) -> tuple[Any, int]:
    pieces, position = _read_pieces(buffer, position, end)
    return format_duration_nanoseconds(pieces.get(_number(1), (0,))[-1]), position


def _read_quantity(buffer: bytes, position: int, end: int) -> tuple[Any, int]:
    pieces, position = _read_pieces(buffer, position, end)
    return pieces.get(_text(1), (b"0",))[-1].decode() or "0", position


def _read_int_or_string(buffer: bytes, position: int, end: int) -> tuple[Any, int]:
    pieces, position = _read_pieces(buffer, position, end)
    if pieces.get(_number(1), (0,))[-1]:
        return pieces.get(_text(3), (b"",))[-1].decode(), position
    return pieces.get(_number(2), (0,))[-1], position


def _read_raw(buffer: bytes, position: int, end: int) -> tuple[Any, int]:
    pieces, position = _read_pieces(buffer, position, end)
    raw = pieces.get(_text(1), (b"",))[-1]
    return load_raw(raw) if raw else None, position


def _read_string_list(buffer: bytes, position: int, end: int) -> tuple[Any, int]:
    pieces, position = _read_pieces(buffer, position, end)
    return [piece.decode() for piece in pieces.get(_text(1), ())], position


def _schema(body: bytes) -> Document:
    return _compile_struct(load.struct(_SCHEMA))(body, 0, len(body))


def _read_schema_or_array(buffer: bytes, position: int, end: int) -> tuple[Any, int]:
    pieces, position = _read_pieces(buffer, position, end)
    if _text(1) in pieces:
        return _schema(pieces[_text(1)][-1]), position
    return [_schema(piece) for piece in pieces.get(_text(2), ())], position


def _read_schema_or_bool(buffer: bytes, position: int, end: int) -> tuple[Any, int]:
    pieces, position = _read_pieces(buffer, position, end)
    if _text(2) in pieces:
        return _schema(pieces[_text(2)][-1]), position
    return bool(pieces.get(_number(1), (0,))[-1]), position


def _read_schema_or_strings(buffer: bytes, position: int, end: int) -> tuple[Any, int]:
    pieces, position = _read_pieces(buffer, position, end)
    if _text(1) in pieces:
        return _schema(pieces[_text(1)][-1]), position
    return [piece.decode() for piece in pieces.get(_text(2), ())], position


_SCALARS: Final[dict[Scalar, _Read]] = {
    Scalar.STRING: _read_string,
    Scalar.INT32: _read_int32,
    Scalar.INT64: _read_int64,
    Scalar.DOUBLE: _read_double,
    Scalar.BOOL: _read_bool,
    Scalar.BYTES: _read_bytes,
    Scalar.TIME: _read_time,
    Scalar.MICRO_TIME: _read_micro_time,
    Scalar.DURATION: _read_duration,
    Scalar.QUANTITY: _read_quantity,
    Scalar.INT_OR_STRING: _read_int_or_string,
    Scalar.ANY: _read_raw,
}

_BY_WIRE: Final[dict[str, _Read]] = {
    "raw": _read_raw,
    "string-list": _read_string_list,
    "schema-or-array": _read_schema_or_array,
    "schema-or-bool": _read_schema_or_bool,
    "schema-or-strings": _read_schema_or_strings,
}
