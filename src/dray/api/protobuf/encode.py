"""Encoder of protobuf messages: each type is compiled once to a table of fields in order of their numbers.

Only fields that the document has are written; Go reads an absent field as its zero value.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, TypeAlias

import orjson

from dray.api.document import Document
from dray.api.go_json import escape_html
from dray.api.protobuf.wire import DELIMITED, VARINT, delimited, tag, varint, wire_type_of
from dray.api.raw_numbers import fragment
from dray.api.schema import load
from dray.api.schema.model import Field, ListOf, MapOf, Scalar, StructType, Type
from dray.api.timestamps import parse_duration_nanoseconds, parse_time
from dray.lib.processor_time import ticking

# Returns the bytes of a value that follow its tag, including the length where there is one.
_Encode: TypeAlias = Callable[[Any], bytes]
# Returns the bytes of a whole field, including tags.
_EncodeField: TypeAlias = Callable[[Any], bytes]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TAG: Final = tuple(tag(number, DELIMITED) for number in range(4))
_INT_TAG: Final = tuple(tag(number, VARINT) for number in range(4))
_SCHEMA: Final = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"


def encode_message(document: Document, struct_type: StructType) -> bytes:
    """Return the message of a document, without envelope."""
    return _compile_struct(struct_type)(document)


@cache
def _compile_struct(struct_type: StructType) -> Callable[[Document], bytes]:
    table: list[tuple[str, _EncodeField]] = []

    def encode(document: Document) -> bytes:
        if not table:
            # Compiled on first use: types are recursive.
            table.extend(_table(struct_type))
        return _encode_table(document, table)

    return encode


def _encode_table(document: Document, table: list[tuple[str, _EncodeField]]) -> bytes:
    return b"".join(
        [
            encode_field(value)
            for name, encode_field in table
            # Without a name it is an embedded message with the fields of the document itself.
            if (value := document.get(name) if name else document) is not None
        ]
    )


def _table(struct_type: StructType) -> list[tuple[str, _EncodeField]]:
    return _table_of(struct_type.fields.values(), 0)


def _table_of(fields: Iterable[Field], depth: int) -> list[tuple[str, _EncodeField]]:
    """Return the table of a message, or of one embedded in it at a depth."""
    found: dict[int, tuple[str, _EncodeField]] = {}
    embedded: dict[int, list[Field]] = {}
    for field in fields:
        if len(field.via) > depth:
            embedded.setdefault(field.via[depth], []).append(field)
        elif field.number:
            found[field.number] = field.name, _compile_field(field)
    for number, inner in embedded.items():
        found[number] = "", _compile_embedded(number, _table_of(inner, depth + 1))
    return [found[number] for number in sorted(found)]


def _compile_embedded(number: int, table: list[tuple[str, _EncodeField]]) -> _EncodeField:
    key = tag(number, DELIMITED)

    def encode(document: Document) -> bytes:
        inner = _encode_table(document, table)
        return key + delimited(inner) if inner else b""

    return encode


def _compile_field(field: Field) -> _EncodeField:
    kind = field.type
    if isinstance(kind, ListOf) and field.wire != "string-list":
        return _repeated(field.number, kind.element, field.wire)
    if isinstance(kind, MapOf):
        return _map(field.number, kind.element, field.wire)
    key = tag(field.number, wire_type_of(kind))
    encode = _compile(kind, field.wire)
    return lambda value: key + encode(value)


def _repeated(number: int, element: Type, wire: str) -> _EncodeField:
    key = tag(number, wire_type_of(element))
    encode = _compile(element, wire)
    return lambda values: b"".join([key + encode(value) for value in ticking(values)])


def _map(number: int, element: Type, wire: str) -> _EncodeField:
    key = tag(number, DELIMITED)
    value_key = tag(2, wire_type_of(element))
    encode = _compile(element, wire)

    def encode_map(values: Document) -> bytes:
        return b"".join(
            [
                key + delimited(_TAG[1] + delimited(name.encode()) + value_key + encode(values[name]))
                for name in ticking(sorted(values))
            ]
        )

    return encode_map


def _compile(kind: Type, wire: str) -> _Encode:
    if wire:
        return _BY_WIRE[wire]
    if isinstance(kind, StructType):
        encode = _compile_struct(kind)
        return lambda value: delimited(encode(value))
    if isinstance(kind, Scalar):
        return _SCALARS[kind]
    raise AssertionError(f"protobuf has no {kind}")


# --- Leaves.


def _string(value: str) -> bytes:
    return delimited(value.encode())


def _bool(value: object) -> bytes:
    return b"\x01" if value else b"\x00"


def _double(value: float) -> bytes:
    return struct.pack("<d", value)


def _bytes(value: str) -> bytes:
    return delimited(base64.b64decode(value))


def _time(value: str) -> bytes:
    since = parse_time(value) - _EPOCH
    seconds = since.days * 86400 + since.seconds
    return delimited(_INT_TAG[1] + varint(seconds) + _INT_TAG[2] + varint(since.microseconds * 1000))


def _duration(value: str) -> bytes:
    return delimited(_INT_TAG[1] + varint(parse_duration_nanoseconds(value)))


def _quantity(value: Any) -> bytes:
    return delimited(_TAG[1] + _string(str(value)))


def _int_or_string(value: int | str) -> bytes:
    if isinstance(value, str):
        return delimited(_INT_TAG[1] + b"\x01" + _INT_TAG[2] + b"\x00" + _TAG[3] + _string(value))
    return delimited(_INT_TAG[1] + b"\x00" + _INT_TAG[2] + varint(value) + _TAG[3] + b"\x00")


def _raw(value: Any) -> bytes:
    return delimited(_TAG[1] + delimited(escape_html(orjson.dumps(value, default=fragment))))


def _string_list(values: list[str]) -> bytes:
    return delimited(b"".join([_TAG[1] + _string(value) for value in values]))


def _schema(value: Document) -> bytes:
    return delimited(encode_message(value, load.struct(_SCHEMA)))


def _schema_or_array(value: Any) -> bytes:
    if isinstance(value, list):
        return delimited(b"".join([_TAG[2] + _schema(item) for item in value]))
    return delimited(_TAG[1] + _schema(value))


def _schema_or_bool(value: Any) -> bytes:
    if isinstance(value, bool):
        return delimited(_INT_TAG[1] + _bool(value))
    return delimited(_INT_TAG[1] + b"\x01" + _TAG[2] + _schema(value))


def _schema_or_strings(value: Any) -> bytes:
    if isinstance(value, list):
        return delimited(b"".join([_TAG[2] + _string(item) for item in value]))
    return delimited(_TAG[1] + _schema(value))


_SCALARS: Final[dict[Scalar, _Encode]] = {
    Scalar.STRING: _string,
    Scalar.INT32: varint,
    Scalar.INT64: varint,
    Scalar.DOUBLE: _double,
    Scalar.BOOL: _bool,
    Scalar.BYTES: _bytes,
    Scalar.TIME: _time,
    Scalar.MICRO_TIME: _time,
    Scalar.DURATION: _duration,
    Scalar.QUANTITY: _quantity,
    Scalar.INT_OR_STRING: _int_or_string,
    Scalar.ANY: _raw,
}

_BY_WIRE: Final[dict[str, _Encode]] = {
    "raw": _raw,
    "string-list": _string_list,
    "schema-or-array": _schema_or_array,
    "schema-or-bool": _schema_or_bool,
    "schema-or-strings": _schema_or_strings,
}
