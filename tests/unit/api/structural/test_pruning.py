"""Pruning of custom resources: unknown fields, null that is no value, and the type and metadata of embedded objects."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document
from dray.api.strict import DecodeError
from dray.api.structural.pruning import Pruner

STRING = {"type": "string"}
EMBEDDED: Document = {"type": "object", "x-kubernetes-embedded-resource": True}
FREE: Document = {"x-kubernetes-preserve-unknown-fields": True}
POD: Document = {"apiVersion": "v1", "kind": "Pod"}


# The schema of a field, its value, the value that is left, and the fields that are dropped.
PRUNED: dict[str, tuple[Document, Any, Any, list[str]]] = {
    "unknown": ({"type": "object", "properties": {"a": STRING}}, {"a": "1", "b": 2}, {"a": "1"}, ["f.b"]),
    "empty object": ({"type": "object"}, {"b": 2}, {}, ["f.b"]),
    "preserved": (
        {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {"a": {"type": "object"}}},
        {"a": {"x": 1}, "b": {"c": 2}},
        {"a": {}, "b": {"c": 2}},
        ["f.a.x"],
    ),
    "items": (
        {"type": "array", "items": {"type": "object", "properties": {"a": STRING}}},
        [{"a": "1"}, {"b": 1}],
        [{"a": "1"}, {}],
        ["f[1].b"],
    ),
    "wrong type": ({"type": "object", "properties": {"a": STRING}}, "text", "text", []),
    "embedded": (
        {"type": "object", "x-kubernetes-embedded-resource": True, "properties": {"spec": {"type": "object"}}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "other": 1},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}},
        ["f.other"],
    ),
    "fields of a scalar": (STRING, {"a": {"b": 1}}, {}, ["f.a"]),
    "fields of a number or text": ({"x-kubernetes-int-or-string": True}, [{"a": 1}], [{}], ["f[0].a"]),
    "items that are free": (FREE | {"type": "array"}, [{"a": {"b": 1}}], [{"a": {"b": 1}}], []),
    "entries of any form": (
        {"type": "object", "additionalProperties": True},
        {"a": 1, "b": {"c": 1}},
        {"a": 1, "b": {}},
        ["f.b.c"],
    ),
    "null": ({"type": "object", "properties": {"a": STRING}}, {"a": None}, {}, []),
    "null that is a value": (
        {"type": "object", "properties": {"a": STRING | {"nullable": True}}},
        {"a": None},
        {"a": None},
        [],
    ),
    # It becomes the default.
    "null with a default": (
        {"type": "object", "properties": {"a": STRING | {"default": "x"}}},
        {"a": None},
        {"a": None},
        [],
    ),
    "null entry": ({"type": "object", "additionalProperties": STRING}, {"a": None}, {}, []),
    "null item": ({"type": "array", "items": STRING}, [None], [None], []),
    "null without schema": (FREE, {"a": None}, {"a": None}, []),
    "metadata of an embedded object": (
        EMBEDDED | FREE,
        POD | {"metadata": {"name": "x", "labels": {}, "creationTimestamp": None, "odd": 1}},
        POD | {"metadata": {"name": "x"}},
        ["f.metadata.odd"],
    ),
    "null metadata of an embedded object": (EMBEDDED | FREE, POD | {"metadata": None}, POD | {"metadata": {}}, []),
}


@pytest.mark.behaviour("CR-02", "CR-03")
@pytest.mark.parametrize("name", PRUNED)
def test_pruning(name: str) -> None:
    schema, given, expected, unknown = PRUNED[name]
    pruner = Pruner({"type": "object", "properties": {"f": schema}})
    document = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "x"}, "f": given}
    assert pruner.normalize(document) == [f'unknown field "{path}"' for path in unknown]
    assert document["f"] == expected


def test_no_schema_keeps_everything() -> None:
    document = {"anything": {"at": ["all"]}}
    assert Pruner(None).normalize(document) == []
    assert document == {"anything": {"at": ["all"]}}


def test_unknown_fields_are_reported_by_where_they_are_found() -> None:
    pruner = Pruner({"type": "object", "properties": {"f": EMBEDDED | {"properties": {}}}})
    document: Document = {
        "metadata": {"name": "x", "odd": 1},
        "f": POD | {"metadata": {"odd": 1}, "odd": 1},
        "a": 1,
    }
    found = ["metadata.odd", "a", "f.odd", "f.metadata.odd"]
    assert pruner.normalize(document) == [f'unknown field "{path}"' for path in found]


def test_custom_resources_have_real_metadata() -> None:
    with pytest.raises(DecodeError, match=r"number into Go struct field .*metadata\.labels of type string"):
        Pruner({"type": "object"}).normalize({"metadata": {"labels": {"a": 1}}})


REFUSED: dict[str, tuple[Document, str]] = {
    "apiVersion": ({"apiVersion": 1, "kind": "Pod"}, "f[0].m[k].apiVersion: Invalid value: 1: must be a string"),
    "kind": ({"apiVersion": "v1", "kind": None}, "f[0].m[k].kind: Invalid value: null: must be a string"),
    "metadata": (
        POD | {"metadata": {"name": 1}},
        'f[0].m[k].metadata: Invalid value: {"name":1}: json: cannot unmarshal number into Go struct field '
        "ObjectMeta.name of type string",
    ),
}


@pytest.mark.behaviour("CR-03")
@pytest.mark.parametrize("name", REFUSED)
def test_embedded_objects_that_cannot_be_decoded_are_refused_and_dropped_from_stored_ones(name: str) -> None:
    given, problem = REFUSED[name]
    entries: Document = {
        "type": "object",
        "properties": {"m": {"type": "object", "additionalProperties": EMBEDDED | FREE}},
    }
    pruner = Pruner({"type": "object", "properties": {"f": {"type": "array", "items": entries}}})
    with pytest.raises(DecodeError) as refused:
        pruner.normalize({"f": [{"m": {"k": dict(given)}}]})
    assert str(refused.value) == problem
    stored = {"f": [{"m": {"k": dict(given)}}]}
    pruner.prune(stored)
    kept = {name: value for name, value in given.items() if name != "metadata" and isinstance(value, str)}
    assert stored["f"][0]["m"]["k"] == kept | ({"metadata": {}} if "metadata" in given else {})
