"""The v2 document as protobuf (`openapi.v2.Document`), the only form that kubectl before 1.29 reads.

Every message is a table from JSON key to field number and encoder. Keys that the table lacks are omitted, except
vendor extensions (`x-…`), which are included as YAML text where the message has a field for them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from dray.api.document import Document
from dray.api.protobuf.wire import DELIMITED, FIXED64, VARINT, delimited, tag, varint
from dray.lib.processor_time import tick

MEDIA_TYPE: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
# Clients before 1.24 spell it with `@`, which is not a valid media type.
MEDIA_TYPES: Final = (MEDIA_TYPE, "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")

# Returns the whole field including its tag; empty for values that are omitted on the wire.
_Encoder = Callable[[int, Any], bytes]
_Table = Mapping[str, tuple[int, _Encoder]]
_EXTENSIONS: Final = "x-"


def encode_v2(document: Document) -> bytes:
    """Return the protobuf form of a v2 document."""
    return _message(document, _DOCUMENT)


def _message(value: Document, table: _Table) -> bytes:
    tick()
    parts: list[bytes] = []
    extensions = table.get(_EXTENSIONS)
    for key, part in value.items():
        found = table.get(key)
        if found is not None:
            parts.append(found[1](found[0], part))
        elif extensions is not None and key.startswith(_EXTENSIONS):
            parts.append(extensions[1](extensions[0], (key, part)))
    return b"".join(parts)


def _piece(number: int, payload: bytes) -> bytes:
    return tag(number, DELIMITED) + delimited(payload)


def _text(number: int, value: str) -> bytes:
    return _piece(number, value.encode()) if value else b""


def _flag(number: int, value: object) -> bytes:
    return tag(number, VARINT) + varint(1) if value else b""


def _integer(number: int, value: int) -> bytes:
    return tag(number, VARINT) + varint(int(value)) if value else b""


def _double(number: int, value: float) -> bytes:
    return tag(number, FIXED64) + struct.pack("<d", value) if value else b""


def _texts(number: int, values: list[str]) -> bytes:
    return b"".join(_piece(number, value.encode()) for value in values)


def _any(number: int, value: Any) -> bytes:
    # JSON is YAML; field 2 of `Any`.
    return _piece(number, _piece(2, orjson.dumps(value)))


def _anys(number: int, values: list[Any]) -> bytes:
    return b"".join(_any(number, value) for value in values)


def _named(number: int, name: str, value: bytes) -> bytes:
    return _piece(number, _piece(1, name.encode()) + _piece(2, value))


def _extension(number: int, item: tuple[str, Any]) -> bytes:
    return _named(number, item[0], _piece(2, orjson.dumps(item[1])))


def _one(table: _Table) -> _Encoder:
    return lambda number, value: _piece(number, _message(value, table))


def _entries(table: _Table, inner: int = 1) -> _Encoder:
    """Return the encoder of a message that is only a list of named values, as field `inner`."""

    def encode(number: int, values: Document) -> bytes:
        named = (_named(inner, name, _message(value, table)) for name, value in values.items())
        return _piece(number, b"".join(named))

    return encode


# --- Schemas, which contain schemas.


def _schema(number: int, value: Document) -> bytes:
    return _piece(number, _message(value, _SCHEMA))


def _schemas(number: int, values: list[Document]) -> bytes:
    return b"".join(_schema(number, value) for value in values)


def _properties(number: int, values: Document) -> bytes:
    return _entries(_SCHEMA)(number, values)


def _additional(number: int, value: Any) -> bytes:
    inner = tag(2, VARINT) + varint(int(value)) if isinstance(value, bool) else _schema(1, value)
    return _piece(number, inner)


def _type(number: int, value: str | list[str]) -> bytes:
    return _piece(number, _texts(1, [value] if isinstance(value, str) else value))


def _items(number: int, value: Document) -> bytes:
    return _piece(number, _schema(1, value))


_SCHEMA: Final[_Table] = {
    "$ref": (1, _text),
    "format": (2, _text),
    "title": (3, _text),
    "description": (4, _text),
    "default": (5, _any),
    "multipleOf": (6, _double),
    "maximum": (7, _double),
    "exclusiveMaximum": (8, _flag),
    "minimum": (9, _double),
    "exclusiveMinimum": (10, _flag),
    "maxLength": (11, _integer),
    "minLength": (12, _integer),
    "pattern": (13, _text),
    "maxItems": (14, _integer),
    "minItems": (15, _integer),
    "uniqueItems": (16, _flag),
    "maxProperties": (17, _integer),
    "minProperties": (18, _integer),
    "required": (19, _texts),
    "enum": (20, _anys),
    "additionalProperties": (21, _additional),
    "type": (22, _type),
    "items": (23, _items),
    "allOf": (24, _schemas),
    "properties": (25, _properties),
    _EXTENSIONS: (31, _extension),
}

# --- Operations.

_BODY_PARAMETER: Final[_Table] = {
    "description": (1, _text),
    "name": (2, _text),
    "in": (3, _text),
    "required": (4, _flag),
    "schema": (5, _schema),
    _EXTENSIONS: (6, _extension),
}
_QUERY_PARAMETER: Final[_Table] = {
    "required": (1, _flag),
    "in": (2, _text),
    "description": (3, _text),
    "name": (4, _text),
    "type": (6, _text),
    "format": (7, _text),
    "uniqueItems": (20, _flag),
    _EXTENSIONS: (23, _extension),
}
_PATH_PARAMETER: Final[_Table] = {
    "required": (1, _flag),
    "in": (2, _text),
    "description": (3, _text),
    "name": (4, _text),
    "type": (5, _text),
    "format": (6, _text),
    "uniqueItems": (19, _flag),
    _EXTENSIONS: (22, _extension),
}
# The field of each kind of parameter inside `Parameter`, outermost first.
_PARAMETERS: Final[Mapping[str, tuple[tuple[int, ...], _Table]]] = {
    "body": ((1,), _BODY_PARAMETER),
    "query": ((2, 3), _QUERY_PARAMETER),
    "path": ((2, 4), _PATH_PARAMETER),
}


def _parameters(number: int, values: list[Document]) -> bytes:
    return b"".join(_parameter(number, value) for value in values)


def _parameter(number: int, value: Document) -> bytes:
    numbers, table = _PARAMETERS[value["in"]]
    encoded = _message(value, table)
    # The 1 is `parameter` of `ParametersItem`, beside a reference.
    for inner in reversed((number, 1, *numbers)):
        encoded = _piece(inner, encoded)
    return encoded


def _response_schema(number: int, value: Document) -> bytes:
    return _piece(number, _schema(1, value))


_RESPONSE: Final[_Table] = {"description": (1, _text), "schema": (2, _response_schema)}
# `response` of `ResponseValue`, beside a reference.
_RESPONSE_VALUE: Final[_Table] = {"response": (1, _one(_RESPONSE))}


def _responses(number: int, values: Document) -> bytes:
    return _entries(_RESPONSE_VALUE)(number, {code: {"response": value} for code, value in values.items()})


_OPERATION: Final[_Table] = {
    "tags": (1, _texts),
    "summary": (2, _text),
    "description": (3, _text),
    "operationId": (5, _text),
    "produces": (6, _texts),
    "consumes": (7, _texts),
    "parameters": (8, _parameters),
    "responses": (9, _responses),
    "schemes": (10, _texts),
    "deprecated": (11, _flag),
    _EXTENSIONS: (13, _extension),
}
_PATH_ITEM: Final[_Table] = {
    "get": (2, _one(_OPERATION)),
    "put": (3, _one(_OPERATION)),
    "post": (4, _one(_OPERATION)),
    "delete": (5, _one(_OPERATION)),
    "options": (6, _one(_OPERATION)),
    "head": (7, _one(_OPERATION)),
    "patch": (8, _one(_OPERATION)),
    "parameters": (9, _parameters),
    _EXTENSIONS: (10, _extension),
}

# --- The document.

_API_KEY: Final[_Table] = {"type": (1, _text), "name": (2, _text), "in": (3, _text), "description": (4, _text)}
_SECURITY_ITEM: Final[_Table] = {"apiKey": (2, _one(_API_KEY))}


def _security_definitions(number: int, values: Document) -> bytes:
    return _entries(_SECURITY_ITEM)(number, {name: {value["type"]: value} for name, value in values.items()})


def _security(number: int, values: list[Document]) -> bytes:
    requirement = {"value": (1, _texts)}
    return b"".join(_entries(requirement)(number, {n: {"value": s} for n, s in value.items()}) for value in values)


_DOCUMENT: Final[_Table] = {
    "swagger": (1, _text),
    "info": (2, _one({"title": (1, _text), "version": (2, _text), "description": (3, _text)})),
    "paths": (8, _entries(_PATH_ITEM, inner=2)),
    "definitions": (9, _properties),
    "security": (12, _security),
    "securityDefinitions": (13, _security_definitions),
}
