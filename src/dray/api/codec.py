"""Between JSON documents and the typed structures of `dray.api.types`."""

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
    return document


@cache
def _decoder(cls: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(cls)
