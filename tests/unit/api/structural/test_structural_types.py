"""Schemas as types, and JSON paths."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document
from dray.api.schema.model import ListOf, ListType, MapOf, Scalar, StructType
from dray.api.structural.formats import FORMATS
from dray.api.structural.paths import PathSyntaxError, compile_path
from dray.api.structural.types import object_type

STRING = {"type": "string"}


def field_type(schema: Document) -> Any:
    return object_type({"type": "object", "properties": {"f": schema}}, "custom.Thing").fields["f"].type


def test_scalars_lists_and_maps() -> None:
    assert field_type(STRING) is Scalar.STRING
    assert field_type({"type": "integer"}) is Scalar.INT64
    assert field_type({"type": "number"}) is Scalar.DOUBLE
    assert field_type({"type": "boolean"}) is Scalar.BOOL
    assert field_type({"x-kubernetes-int-or-string": True}) is Scalar.ANY
    assert field_type({"x-kubernetes-preserve-unknown-fields": True}) is Scalar.ANY
    assert field_type({"type": "array", "items": STRING, "x-kubernetes-list-type": "set"}) == ListOf(
        Scalar.STRING, ListType.SET
    )
    assert field_type({"type": "object", "additionalProperties": STRING}) == MapOf(Scalar.STRING)
    atomic = {"type": "object", "additionalProperties": STRING, "x-kubernetes-map-type": "atomic"}
    assert field_type(atomic) == MapOf(Scalar.STRING, atomic=True)


def test_keyed_lists_use_the_defaults_of_their_keys() -> None:
    items = {"type": "object", "required": ["a"], "properties": {"a": STRING, "b": STRING | {"default": "x"}}}
    made = field_type(
        {"type": "array", "items": items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"]}
    )
    assert (made.list_type, made.map_keys) == (ListType.MAP, ("a", "b"))
    assert isinstance(made.element, StructType)
    assert made.element.fields["a"].required
    assert made.element.fields["b"].default == "x"


OBJECT = {
    "spec": {"a": {"b.c": 1}, "list": [{"n": 1}, {"n": 2}]},
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Live", "status": "False"}]},
}
PATHS: dict[str, list[Any]] = {
    ".spec.list[0].n": [1],
    ".spec.list[-1].n": [2],
    ".spec.list[5].n": [],
    ".spec.list[*].n": [1, 2],
    ".spec.a.b\\.c": [1],
    ".spec.a['b.c']": [1],
    '.spec.a["b.c"]': [1],
    ".spec.missing.more": [],
    '.status.conditions[?(@.type=="Live")].status': ["False"],
    ".status.conditions[?(@.type=='Ready')].status": ["True"],
    ".status.conditions[?(@.type != 'Ready')].status": ["False"],
    ".spec.list[?(@.n == 2)].n": [2],
}


@pytest.mark.parametrize("path", PATHS)
def test_paths(path: str) -> None:
    assert compile_path(path)(OBJECT) == PATHS[path]


@pytest.mark.parametrize("path", ["spec", ".spec[", ".spec[x]", ".a..b", ".l[?(@.n > 1)]"])
def test_unsupported_paths(path: str) -> None:
    with pytest.raises(PathSyntaxError):
        compile_path(path)


FORMAT_ROWS: dict[str, tuple[list[str], list[str]]] = {
    "date": (["2026-01-31"], ["2026-02-30", "20260131", "x"]),
    "date-time": (["2026-01-31T10:00:00Z", "2026-01-31T10:00:00.5+02:00"], ["2026-01-31", "2026-01-31T25:00:00Z"]),
    "duration": (["1h30m", "5s", "1.5h", "0", "2 days"], ["", "x", "5", "5 parsecs"]),
    "byte": (["aGk=", ""], ["aGk", "!!"]),
    "ipv4": (["10.0.0.1"], ["10.0.0.256", "::1"]),
    "ipv6": (["::1"], ["10.0.0.1", "x"]),
    "cidr": (["10.0.0.0/8", "10.0.0.1/8", "::/0"], ["10.0.0.1", "10.0.0.0/33"]),
    "mac": (["00:1a:2b:3c:4d:5e", "00-1a-2b-3c-4d-5e"], ["00:1a", "00:1a:2b:3c:4d:zz"]),
    "uuid": (["6ba7b810-9dad-11d1-80b4-00c04fd430c8"], ["6ba7b810"]),
    "uuid4": (["f47ac10b-58cc-4372-a567-0e02b2c3d479"], ["6ba7b810-9dad-11d1-80b4-00c04fd430c8"]),
    "uri": (["https://example.com/x", "/path"], ["no scheme", "x"]),
    "email": (["a@example.com"], ["a", "@example.com"]),
    "hostname": (["example.com", "a"], ["-a", "a..b"]),
    "hexcolor": (["#fff", "a0B1c2"], ["#ff", "red"]),
    "rgbcolor": (["rgb(1, 2,255)"], ["rgb(1,2,256)"]),
    "k8s-short-name": (["a-b"], ["A", "a.b"]),
    "k8s-long-name": (["a-b.c"], ["A"]),
}


@pytest.mark.parametrize("name", FORMAT_ROWS)
def test_formats(name: str) -> None:
    good, bad = FORMAT_ROWS[name]
    assert [text for text in good if not FORMATS[name](text)] == []
    assert [text for text in bad if FORMATS[name](text)] == []
