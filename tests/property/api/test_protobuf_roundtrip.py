"""Our protobuf codec compared with Google's: the same field numbers give the same bytes."""

from __future__ import annotations

import base64
from functools import cache
from typing import Any

import orjson
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dray.api.document import GroupVersionKind
from dray.api.go_json import escape_html
from dray.api.protobuf import decode_object, encode_message, encode_object, has_protobuf
from dray.api.protobuf.decode import decode_message
from dray.api.schema import load
from dray.api.schema.model import Field, ListOf, MapOf, Scalar, StructType, Type
from dray.api.timestamps import parse_time

DEPTH_MAX = 5
FDP = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    Scalar.STRING: FDP.TYPE_STRING,
    Scalar.INT32: FDP.TYPE_INT32,
    Scalar.INT64: FDP.TYPE_INT64,
    Scalar.DOUBLE: FDP.TYPE_DOUBLE,
    Scalar.BOOL: FDP.TYPE_BOOL,
    Scalar.BYTES: FDP.TYPE_BYTES,
}
# Leaves that are messages on the wire: fields as (number, name, type, repeated).
LEAF_MESSAGES: dict[str, list[tuple[int, str, int, bool]]] = {
    "Time": [(1, "seconds", FDP.TYPE_INT64, False), (2, "nanos", FDP.TYPE_INT32, False)],
    "Duration": [(1, "duration", FDP.TYPE_INT64, False)],
    "Quantity": [(1, "string", FDP.TYPE_STRING, False)],
    "IntOrString": [
        (1, "type", FDP.TYPE_INT64, False),
        (2, "intVal", FDP.TYPE_INT32, False),
        (3, "strVal", FDP.TYPE_STRING, False),
    ],
    "Raw": [(1, "raw", FDP.TYPE_BYTES, False)],
    "StringList": [(1, "items", FDP.TYPE_STRING, True)],
}
LEAF_OF = {
    Scalar.TIME: "Time",
    Scalar.MICRO_TIME: "Time",
    Scalar.DURATION: "Duration",
    Scalar.QUANTITY: "Quantity",
    Scalar.INT_OR_STRING: "IntOrString",
    Scalar.ANY: "Raw",
}
SKIPPED_WIRES = ("schema-or-array", "schema-or-bool", "schema-or-strings")


class Builder:
    """Builds descriptors of a struct and its references, in one file."""

    def __init__(self) -> None:
        self.file = descriptor_pb2.FileDescriptorProto(name="all.proto", package="t", syntax="proto2")
        self.done: set[str] = set()
        for name, fields in LEAF_MESSAGES.items():
            message = self.file.message_type.add(name=name)
            for number, field, kind, repeated in fields:
                message.field.add(name=field, number=number, type=kind, label=3 if repeated else 1)

    def add(self, struct_type: StructType) -> str:
        name = message_name(struct_type)
        if name in self.done:
            return name
        self.done.add(name)
        message = self.file.message_type.add(name=name)
        for field in struct_type.fields.values():
            if not field.number or field.wire in SKIPPED_WIRES:
                continue
            target, path = message, f".t.{name}"
            for number in field.via:
                path = f"{path}.Embedded{number}"
                target = self._embedded(target, path, number)
            self._add_field(target, path, field)
        return name

    def _embedded(self, message: Any, path: str, number: int) -> Any:
        name = f"Embedded{number}"
        for nested in message.nested_type:
            if nested.name == name:
                return nested
        message.field.add(name=f"embedded_{number}", number=number, label=1, type=FDP.TYPE_MESSAGE, type_name=path)
        return message.nested_type.add(name=name)

    def _add_field(self, message: Any, path: str, field: Field) -> None:
        kind, label = field.type, 1
        name = field_name(field)
        if isinstance(kind, MapOf):
            entry_name = "".join(part.capitalize() for part in name.split("_")) + "Entry"
            entry = message.nested_type.add(name=entry_name)
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=1, type=FDP.TYPE_STRING)
            self._set_type(entry.field.add(name="value", number=2, label=1), kind.element, field.wire)
            message.field.add(
                name=name, number=field.number, label=3, type=FDP.TYPE_MESSAGE, type_name=f"{path}.{entry_name}"
            )
            return
        if isinstance(kind, ListOf) and field.wire != "string-list":
            kind, label = kind.element, 3
        self._set_type(message.field.add(name=name, number=field.number, label=label), kind, field.wire)

    def _set_type(self, added: Any, kind: Type, wire: str) -> None:
        if wire == "string-list":
            added.type, added.type_name = FDP.TYPE_MESSAGE, ".t.StringList"
        elif isinstance(kind, StructType):
            added.type, added.type_name = FDP.TYPE_MESSAGE, f".t.{self.add(kind)}"
        elif kind in LEAF_OF:
            added.type, added.type_name = FDP.TYPE_MESSAGE, f".t.{LEAF_OF[kind]}"
        else:
            assert isinstance(kind, Scalar)
            added.type = SCALARS[kind]


def message_name(struct_type: StructType) -> str:
    return struct_type.name.replace(".", "_").replace("-", "_")


def field_name(field: Field) -> str:
    """Proto names may not have dollar signs or dashes, and must differ in more than case."""
    return "f_" + "".join(c if c.isalnum() else "_" for c in field.name) + f"_{field.number}"


@cache
def message_class(struct_type: StructType) -> Any:
    builder = Builder()
    name = builder.add(struct_type)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(builder.file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}"))


def fill(message: Any, document: Any, struct_type: StructType) -> Any:
    """Set the fields of a Google message from a document."""
    for name, value in document.items():
        field = struct_type.fields[name]
        if not field.number or field.wire in SKIPPED_WIRES:
            continue
        target = message
        for number in field.via:
            target = getattr(target, f"embedded_{number}")
            target.SetInParent()
        put(target, field, value)
    return message


def put(target: Any, field: Field, value: Any) -> None:
    name, kind = field_name(field), field.type
    slot = getattr(target, name)
    if field.wire == "string-list" and isinstance(kind, ListOf):
        slot.items.extend(value)
    elif isinstance(kind, ListOf):
        for item in value:
            if isinstance(kind.element, StructType) or kind.element in LEAF_OF:
                put_message(slot.add(), kind.element, field.wire, item)
            else:
                slot.append(plain(kind.element, item))
    elif isinstance(kind, MapOf):
        for key, item in value.items():
            if field.wire or isinstance(kind.element, StructType) or kind.element in LEAF_OF:
                put_message(slot[key], kind.element, field.wire, item)
            else:
                slot[key] = plain(kind.element, item)
    elif isinstance(kind, StructType) or kind in LEAF_OF:
        slot.SetInParent()
        put_message(slot, kind, field.wire, value)
    else:
        setattr(target, name, plain(kind, value))


def put_message(message: Any, kind: Type, wire: str, value: Any) -> None:
    if wire == "string-list":
        message.items.extend(value)
    elif isinstance(kind, StructType):
        fill(message, value, kind)
    elif kind is Scalar.QUANTITY:
        message.string = value
    elif kind is Scalar.DURATION:
        message.duration = DURATIONS[value]
    elif kind in (Scalar.TIME, Scalar.MICRO_TIME):
        moment = parse_time(value)
        message.seconds = int(moment.timestamp() // 1)
        message.nanos = moment.microsecond * 1000
    elif kind is Scalar.INT_OR_STRING:
        is_text = isinstance(value, str)
        message.type, message.intVal, message.strVal = int(is_text), 0 if is_text else value, value if is_text else ""
    else:
        # As Go writes JSON.
        message.raw = escape_html(orjson.dumps(value))


def plain(kind: Type, value: Any) -> Any:
    return base64.b64decode(value) if kind is Scalar.BYTES else value


# --- Random documents that Go would write unchanged.

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=5)
JSON_VALUE = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
# In nanoseconds.
DURATIONS = {"15s": 15_000_000_000, "1m30s": 90_000_000_000, "-2.5s": -2_500_000_000}
LEAVES: dict[Scalar, st.SearchStrategy[Any]] = {
    Scalar.STRING: TEXT,
    Scalar.INT32: st.integers(-(2**31), 2**31 - 1).filter(bool),
    Scalar.INT64: st.integers(-(2**63), 2**63 - 1).filter(bool),
    Scalar.DOUBLE: st.floats(allow_nan=False, allow_infinity=False, width=32).filter(lambda x: not x.is_integer()),
    Scalar.BOOL: st.just(True),
    Scalar.BYTES: st.binary(min_size=1, max_size=5).map(lambda raw: base64.b64encode(raw).decode()),
    Scalar.TIME: st.sampled_from(["2026-01-02T03:04:05Z", "1969-12-31T23:59:59Z", "0001-01-01T00:00:01Z"]),
    Scalar.MICRO_TIME: st.sampled_from(["2026-01-02T03:04:05.000006Z", "1969-12-31T23:59:59.500000Z"]),
    Scalar.DURATION: st.sampled_from(sorted(DURATIONS)),
    Scalar.QUANTITY: st.sampled_from(["1", "500m", "1Gi", "-3k"]),
    Scalar.INT_OR_STRING: st.integers(-5, 70000) | TEXT,
    Scalar.ANY: JSON_VALUE,
}


def documents(struct_type: StructType, depth: int = 0) -> st.SearchStrategy[Any]:
    fields = {
        name: values(field.type, depth)
        for name, field in struct_type.fields.items()
        if field.number and field.wire not in SKIPPED_WIRES and (depth < DEPTH_MAX or isinstance(field.type, Scalar))
    }
    return (
        st.lists(st.sampled_from(sorted(fields)), max_size=4, unique=True).flatmap(
            lambda chosen: st.fixed_dictionaries({name: fields[name] for name in chosen})
        )
        if fields
        else st.just({})
    )


def values(kind: Type, depth: int) -> st.SearchStrategy[Any]:
    if isinstance(kind, Scalar):
        return LEAVES[kind]
    if isinstance(kind, StructType):
        return st.deferred(lambda: documents(kind, depth + 1))
    inner = values(kind.element, depth)
    if isinstance(kind, ListOf):
        return st.lists(inner, min_size=1, max_size=2)
    return st.dictionaries(TEXT, inner, min_size=1, max_size=2)


KINDS = [
    gvk for gvk in load.kinds() if has_protobuf(gvk) and not gvk.kind.endswith("List") and gvk.kind != "WatchEvent"
]


@pytest.mark.parametrize("gvk", KINDS, ids=str)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
@given(data=st.data())
def test_same_bytes_as_googles_protobuf(gvk: GroupVersionKind, data: st.DataObject) -> None:
    struct_type = load.kind_type(gvk)
    assert struct_type is not None
    document = data.draw(documents(struct_type))
    message = fill(message_class(struct_type)(), document, struct_type)
    assert encode_message(document, struct_type) == message.SerializeToString(deterministic=True)
    assert decode_message(message.SerializeToString(), struct_type) == document
    whole = {"apiVersion": gvk.api_version, "kind": gvk.kind, **document}
    assert decode_object(encode_object(whole)) == (gvk, whole)
