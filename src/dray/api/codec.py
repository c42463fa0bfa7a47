"""Between JSON documents and the typed structures of `dray.api.types`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
import orjson

from dray.api.document import Document
from dray.api.schema import load
from dray.api.schema.model import MapOf, Scalar, StructType, Type
from dray.api.types.base import Message

T = TypeVar("T", bound=Message)

_ENCODER: Final = msgspec.json.Encoder()

# What Go writes for a required field that nobody set.
_ZEROES: Final[dict[Scalar, Any]] = {
    Scalar.STRING: "",
    Scalar.BYTES: "",
    Scalar.INT32: 0,
    Scalar.INT64: 0,
    Scalar.DOUBLE: 0,
    Scalar.BOOL: False,
}


def from_document(cls: type[T], document: Document) -> T:
    """Read a document as a typed structure; fields the type does not know are ignored."""
    return msgspec.convert(document, cls)


def decode(cls: type[T], body: bytes) -> T:
    """Read JSON as a typed structure."""
    decoded: T = _decoder(cls).decode(body)
    return decoded


def to_document(message: Message) -> Document:
    """Write a typed structure as a document: required fields always, others only when they are set."""
    # Through JSON, so that tuples become lists and nothing is shared with the frozen structure.
    document: Document = orjson.loads(_ENCODER.encode(message))
    _filler(load.struct(message.schema_name))(document)
    return document


@cache
def _decoder(cls: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(cls)


@cache
def _filler(struct_type: StructType) -> Callable[[Document], None]:
    """Adds the zero values of required fields, which `omit_defaults` has left out."""
    zeroes: dict[str, Any] = {}
    inner: dict[str, Callable[[Any], None]] = {}
    compiled = False

    def fill(document: Document) -> None:
        nonlocal compiled
        if not compiled:
            # Compiled on first use: types are recursive.
            compiled = True
            for field in struct_type.fields.values():
                if field.required and isinstance(field.type, Scalar) and field.type in _ZEROES:
                    zeroes[field.name] = _ZEROES[field.type]
                if (fill_inner := _inner_filler(field.type)) is not None:
                    inner[field.name] = fill_inner
        for name, value in document.items():
            if name in inner:
                inner[name](value)
        for name, zero in zeroes.items():
            document.setdefault(name, zero)

    return fill


def _inner_filler(kind: Type) -> Callable[[Any], None] | None:
    if isinstance(kind, StructType):
        return _filler(kind)
    if isinstance(kind, Scalar):
        return None
    fill = _inner_filler(kind.element)
    if fill is None:
        return None
    return _fill_values(fill) if isinstance(kind, MapOf) else _fill_items(fill)


def _fill_values(fill: Callable[[Any], None]) -> Callable[[Any], None]:
    def fill_all(values: Document) -> None:
        for value in values.values():
            fill(value)

    return fill_all


def _fill_items(fill: Callable[[Any], None]) -> Callable[[Any], None]:
    def fill_all(values: list[Any]) -> None:
        for value in values:
            fill(value)

    return fill_all
