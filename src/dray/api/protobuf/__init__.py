"""Protobuf encoding of the built-in kinds, driven by the schema: envelopes, objects, lists, watch frames.

Nothing is generated from .proto files: the schema has the field numbers. Custom resources and kinds without numbers
have no protobuf form.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

import orjson

from dray.api.document import Document, GroupVersion, GroupVersionKind
from dray.api.limits import DEPTH_EXCEEDED, TOO_MANY_VALUES, has_too_many_values, is_too_deep
from dray.api.protobuf.decode import decode_message
from dray.api.protobuf.encode import encode_message
from dray.api.protobuf.wire import ProtobufError, delimited, read_fields, tag
from dray.api.schema import load
from dray.api.schema.model import StructType

__all__ = [
    "MAGIC",
    "ProtobufError",
    "UnknownKindError",
    "decode_object",
    "encode_list",
    "encode_message",
    "encode_object",
    "has_protobuf",
    "watch_frame",
]

# Every protobuf body of Kubernetes begins with these bytes.
MAGIC: Final = b"k8s\x00"

_TAG_1: Final = tag(1, 2)
_TAG_2: Final = tag(2, 2)
# Go always writes contentEncoding and contentType, empty.
_ENVELOPE_TAIL: Final = tag(3, 2) + b"\x00" + tag(4, 2) + b"\x00"


class UnknownKindError(ProtobufError):
    """The body is of a kind without a protobuf form."""

    def __init__(self, gvk: GroupVersionKind) -> None:
        super().__init__(f'no kind "{gvk.kind}" is registered for version "{gvk.api_version}"')
        self.gvk = gvk


def has_protobuf(gvk: GroupVersionKind) -> bool:
    """Report whether the kind has a protobuf form."""
    struct_type = load.kind_type(gvk)
    return struct_type is not None and any(field.number for field in struct_type.fields.values())


def decode_object(body: bytes, default: GroupVersionKind | None = None) -> tuple[GroupVersionKind, Document]:
    """Decode an enveloped object; `default` is the kind when the envelope has none."""
    if not body.startswith(MAGIC):
        raise ProtobufError("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
    envelope = read_fields(body[len(MAGIC) :])
    gvk = _kind_of(envelope.get(1, b""), default)
    raw = envelope.get(2, b"")
    is_json = envelope.get(4) == b"application/json"
    document = _decode_json(raw) if is_json else decode_message(raw, _struct_of(gvk))
    if is_too_deep(document):
        raise ProtobufError(f"proto: {DEPTH_EXCEEDED}")
    if has_too_many_values(document):
        raise ProtobufError(f"proto: {TOO_MANY_VALUES}")
    # apiVersion and kind come first, as in JSON.
    return gvk, {"apiVersion": gvk.api_version, "kind": gvk.kind, **document}


def _decode_json(raw: bytes) -> Document:
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ProtobufError(f"json: {error}") from None
    if not isinstance(document, dict):
        raise ProtobufError("json: cannot unmarshal a value that is not an object")
    return document


def encode_object(document: Document) -> bytes:
    """Encode an object, or a list with its items, in its envelope."""
    gvk = GroupVersion.parse(document["apiVersion"]).kind(document["kind"])
    return _envelope(gvk, encode_message(document, _struct_of(gvk)))


def encode_list(gvk: GroupVersionKind, metadata: Document, items: Iterable[bytes]) -> bytes:
    """Encode a list from items encoded by `encode_message`; `gvk` is the list's."""
    head = _TAG_1 + delimited(encode_message(metadata, load.list_meta()))
    return _envelope(gvk, head + b"".join([_TAG_2 + delimited(item) for item in items]))


def watch_frame(event_type: str, enveloped: bytes) -> bytes:
    """Return a length-delimited watch event around an enveloped object; the event itself has no envelope."""
    raw_extension = _TAG_1 + delimited(enveloped)
    event = _TAG_1 + delimited(event_type.encode()) + _TAG_2 + delimited(raw_extension)
    return len(event).to_bytes(4, "big") + event


def _struct_of(gvk: GroupVersionKind) -> StructType:
    struct_type = load.kind_type(gvk) if has_protobuf(gvk) else None
    if struct_type is None:
        raise UnknownKindError(gvk)
    return struct_type


def _kind_of(type_meta: bytes, default: GroupVersionKind | None) -> GroupVersionKind:
    fields = read_fields(type_meta)
    try:
        api_version, kind = fields.get(1, b"").decode(), fields.get(2, b"").decode()
    except UnicodeDecodeError:
        raise ProtobufError("proto: TypeMeta contains invalid UTF-8") from None
    if not kind and default is not None:
        return default
    return GroupVersion.parse(api_version).kind(kind)


@cache
def _type_meta(gvk: GroupVersionKind) -> bytes:
    message = _TAG_1 + delimited(gvk.api_version.encode()) + _TAG_2 + delimited(gvk.kind.encode())
    return MAGIC + _TAG_1 + delimited(message)


def _envelope(gvk: GroupVersionKind, raw: bytes) -> bytes:
    return b"".join((_type_meta(gvk), _TAG_2, delimited(raw), _ENVELOPE_TAIL))
