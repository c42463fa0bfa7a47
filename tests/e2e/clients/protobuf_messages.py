"""Kubernetes' protobuf messages by Google's library, from nothing but field numbers: what a Go client would send.

Shares no code with the server: descriptors are made from `tools/data/go_fields.json` at run time.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet

MAGIC = b"k8s\x00"
MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
FIELDS = Path(__file__).parents[3] / "tools" / "data" / "go_fields.json"
FDP = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "string": FDP.TYPE_STRING,
    "bytes": FDP.TYPE_BYTES,
    "bool": FDP.TYPE_BOOL,
    "int32": FDP.TYPE_INT32,
    "int64": FDP.TYPE_INT64,
    "double": FDP.TYPE_DOUBLE,
}
META = "k8s.io.apimachinery.pkg.apis.meta.v1"
RUNTIME = "k8s.io.apimachinery.pkg.runtime"


@cache
def pool() -> descriptor_pool.DescriptorPool:
    """All messages, in one file: the packages refer to each other."""
    packages: Mapping[str, Mapping[str, list[Any]]] = json.loads(FIELDS.read_text())
    file = descriptor_pb2.FileDescriptorProto(name="kubernetes.proto", package="p", syntax="proto2")
    known = {full_name(package, name) for package, messages in packages.items() for name in messages}
    for package, messages in packages.items():
        for name, fields in messages.items():
            message = file.message_type.add(name=full_name(package, name))
            for number, field, kind, *_ in fields:
                add_field(message, package, known, (number, field, kind))
    found = descriptor_pool.DescriptorPool()
    found.Add(file)
    return found


def full_name(package: str, name: str) -> str:
    return f"{package}.{name}".replace(".", "_")


def add_field(message: Any, package: str, known: set[str], row: tuple[int, str, str]) -> None:
    number, name, kind = row
    name = name.lstrip("$").replace("-", "_")
    if kind.startswith("map<"):
        key, value = (part.strip() for part in kind[4:-1].split(",", 1))
        entry = message.nested_type.add(name="".join(part[:1].upper() + part[1:] for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=1, type=SCALARS[key])
        set_type(entry.field.add(name="value", number=2, label=1), package, known, value)
        message.field.add(
            name=name, number=number, label=3, type=FDP.TYPE_MESSAGE, type_name=f".p.{message.name}.{entry.name}"
        )
        return
    label = 3 if kind.startswith("rep ") else 1
    set_type(message.field.add(name=name, number=number, label=label), package, known, kind.removeprefix("rep "))


def set_type(field: Any, package: str, known: set[str], kind: str) -> None:
    if kind in SCALARS:
        field.type = SCALARS[kind]
        return
    nearby, far = full_name(package, kind), kind.lstrip(".").replace(".", "_")
    field.type = FDP.TYPE_MESSAGE
    field.type_name = f".p.{nearby if nearby in known else far}"


def message(package: str, name: str) -> Any:
    """An empty message."""
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(f"p.{full_name(package, name)}"))()


def encode(api_version: str, kind: str, package: str, fields: Mapping[str, Any]) -> bytes:
    """An object of these fields in its envelope, as client-go writes it."""
    return enveloped(api_version, kind, json_format.ParseDict(dict(fields), message(package, kind)))


def enveloped(api_version: str, kind: str, inner: Any) -> bytes:
    """A message in its envelope."""
    envelope = message(RUNTIME, "Unknown")
    envelope.typeMeta.apiVersion, envelope.typeMeta.kind = api_version, kind
    envelope.raw = inner.SerializeToString()
    envelope.contentEncoding = envelope.contentType = ""
    return MAGIC + bytes(envelope.SerializeToString())


def decode(body: bytes, package: str) -> tuple[str, Any]:
    """The kind and the message of an enveloped object of one package; a Status is of meta/v1."""
    assert body.startswith(MAGIC), body[:40]
    envelope = message(RUNTIME, "Unknown")
    envelope.ParseFromString(body[len(MAGIC) :])
    found = message(META if envelope.typeMeta.kind == "Status" else package, envelope.typeMeta.kind)
    found.ParseFromString(envelope.raw)
    # Bytes we have no number for would be kept here: there must be none.
    assert not unknown_fields(found), unknown_fields(found)
    return f"{envelope.typeMeta.apiVersion} {envelope.typeMeta.kind}", found


def unknown_fields(found: Any) -> list[int]:
    # Iterable, though its stubs do not say so.
    unknown: Any = UnknownFieldSet(found)
    return [field.field_number for field in unknown]


def watch_events(stream: Iterator[bytes], package: str) -> Iterator[tuple[str, Any]]:
    """The events of a protobuf watch: a length of four bytes, then a WatchEvent around an enveloped object."""
    data = b""
    for chunk in stream:
        data += chunk
        while len(data) >= 4 and len(data) >= 4 + (size := struct.unpack(">I", data[:4])[0]):
            event = message(META, "WatchEvent")
            event.ParseFromString(data[4 : 4 + size])
            data = data[4 + size :]
            yield event.type, decode(event.object.raw, package)[1]
