"""Field sets: their wire form and order, and the operations on them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dray.api.document import Document
from dray.apiserver.patch.managed_fields.field_set import FieldSet, FieldsFormatError, path_text

WIRE = {
    "a leaf": {"f:data": {}},
    "a map and its entries": {"f:labels": {".": {}, "f:a": {}, "f:b": {}}},
    "members before keys before values before indices": {
        "f:z": {},
        'k:{"name":"a"}': {},
        'v:"x"': {},
        "i:0": {},
    },
    "numbers by size": {'k:{"containerPort":80,"protocol":"TCP"}': {}, 'k:{"containerPort":443,"protocol":"TCP"}': {}},
    "indices by number": {"i:2": {}, "i:10": {}},
    "values: numbers, texts, truths": {"v:2": {}, "v:10": {}, 'v:"a"': {}, "v:false": {}, "v:true": {}},
    "capitals first": {"f:B": {}, "f:a": {}},
}


@pytest.mark.parametrize("wire", WIRE.values(), ids=WIRE)
def test_writes_in_order_whatever_the_order_read(wire: dict[str, Any]) -> None:
    reversed_wire = dict(reversed(wire.items()))
    for form in (wire, reversed_wire):
        assert json.dumps(FieldSet.from_fields_v1(form).tree) == json.dumps(wire)


def test_reads_other_spellings() -> None:
    spelled: Document = {'k:{ "protocol": "TCP", "containerPort": 80 }': {".": {}}, "i:07": {}, "x:new": {}}
    assert FieldSet.from_fields_v1(spelled).tree == {'k:{"containerPort":80,"protocol":"TCP"}': {}, "i:7": {}}


@pytest.mark.parametrize("wire", [[], {"f:a": 1}, {"a": {}}, {"k:[": {}}, {"v:": {}}, {"i:x": {}}, {"k:1": {}}])
def test_rejects_what_is_no_set(wire: Any) -> None:
    with pytest.raises(FieldsFormatError):
        FieldSet.from_fields_v1(wire)


A = FieldSet.of(("f:a",), ("f:a", "f:b"), ("f:c", "f:d"))
B = FieldSet.of(("f:a",), ("f:c",), ("f:e",))


def test_operations() -> None:
    assert (A | B).tree == {"f:a": {".": {}, "f:b": {}}, "f:c": {".": {}, "f:d": {}}, "f:e": {}}
    assert (A & B).tree == {"f:a": {}}
    assert (A - B).tree == {"f:a": {"f:b": {}}, "f:c": {"f:d": {}}}
    assert A.without_below(B).tree == {}
    assert (B - A).tree == {"f:c": {}, "f:e": {}}
    assert not FieldSet()
    assert A != B


def test_membership_is_of_the_path_itself() -> None:
    assert ("f:a",) in A
    assert ("f:c",) not in A
    assert ("f:c", "f:d") in A
    assert ("f:x", "f:y") not in A
    assert () not in A


def test_paths_end_before_they_go_on() -> None:
    assert list((A | B).paths()) == [("f:a",), ("f:c",), ("f:e",), ("f:a", "f:b"), ("f:c", "f:d")]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("f:metadata", "f:labels", "f:k"), ".metadata.labels.k"),
        (("f:spec", "f:containers", 'k:{"name":"c"}', "f:image"), '.spec.containers[name="c"].image'),
        (('k:{"containerPort":80,"protocol":"TCP"}',), '[containerPort=80,protocol="TCP"]'),
        (("f:finalizers", 'v:"x"'), '.finalizers[="x"]'),
        (("f:args", "i:3"), ".args[3]"),
    ],
)
def test_path_texts(path: tuple[str, ...], text: str) -> None:
    assert path_text(path) == text
