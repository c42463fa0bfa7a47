"""Conversion between JSON documents and the typed structures of `dray.api.types`."""

from __future__ import annotations

from functools import cache
from typing import Final, TypeVar

import msgspec
import orjson

from dray.api.document import Document
from dray.api.types import Message

T = TypeVar("T", bound=Message)

_ENCODER: Final = msgspec.json.Encoder()


def from_document(cls: type[T], document: Document) -> T:
    """Convert a document to a typed structure; unknown fields are ignored."""
    return msgspec.convert(document, cls)


def decode(cls: type[T], body: bytes) -> T:
    """Decode JSON to a typed structure."""
    decoded: T = _decoder(cls).decode(body)
    return decoded


def to_document(message: Message) -> Document:
    """Convert a typed structure to a document; optional fields are omitted when unset."""
    # Through JSON, so that tuples become lists and nothing is shared with the frozen structure.
    document: Document = orjson.loads(_ENCODER.encode(message))
    return document


@cache
def _decoder(cls: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(cls)
