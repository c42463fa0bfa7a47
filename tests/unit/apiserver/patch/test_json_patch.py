"""JSON patch: the operations, and the errors of invalid ones."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from dray.api.errors import APIError, BadRequestError, PatchRejectedError, RequestEntityTooLargeError
from dray.apiserver.patch import json_patch


def run(document: dict[str, Any], *operations: dict[str, Any]) -> dict[str, Any]:
    before = copy.deepcopy(document)
    try:
        return json_patch.apply(document, json_patch.decode(json.dumps(operations).encode()))
    finally:
        assert document == before


def op(kind: str, path: str, **members: Any) -> dict[str, Any]:
    return {"op": kind, "path": path, **members}


FITS = {
    "add a member": ({}, op("add", "/a", value=1), {"a": 1}),
    "add over a member": ({"a": 1}, op("add", "/a", value=2), {"a": 2}),
    "add without a value": ({}, op("add", "/a"), {"a": None}),
    "add inserts": ({"a": [1, 3]}, op("add", "/a/1", value=2), {"a": [1, 2, 3]}),
    "add at the end": ({"a": [1]}, op("add", "/a/1", value=2), {"a": [1, 2]}),
    "add appends": ({"a": [1]}, op("add", "/a/-", value=2), {"a": [1, 2]}),
    "add counts from behind the end": ({"a": [1, 2]}, op("add", "/a/-1", value=3), {"a": [1, 2, 3]}),
    "add replaces the whole": ({"a": 1}, op("add", "", value={"b": 2}), {"b": 2}),
    "escapes": ({"m": {}}, op("add", "/m/example.com~1k~0~01", value="v"), {"m": {"example.com/k~~1": "v"}}),
    "the empty member name": ({}, op("add", "/", value=1), {"": 1}),
    "text before the slash is ignored": ({"b": 1}, op("remove", "x/b"), {}),
    "remove a member": ({"a": 1, "b": 2}, op("remove", "/a"), {"b": 2}),
    "remove an element": ({"a": [1, 2, 3]}, op("remove", "/a/1"), {"a": [1, 3]}),
    "remove the last element": ({"a": [1, 2, 3]}, op("remove", "/a/-1"), {"a": [1, 2]}),
    "replace a member": ({"a": 1}, op("replace", "/a", value=[2]), {"a": [2]}),
    "replace a missing member": ({"a": {}}, op("replace", "/a/b", value=1), {"a": {"b": 1}}),
    "replace an element": ({"a": [1, 2]}, op("replace", "/a/-2", value=0), {"a": [0, 2]}),
    "replace the whole": ({"a": 1}, op("replace", "", value={}), {}),
    "move": ({"a": {"b": 1}}, op("move", "/c", **{"from": "/a/b"}), {"a": {}, "c": 1}),
    "move within a list": ({"a": [1, 2, 3]}, op("move", "/a/2", **{"from": "/a/0"}), {"a": [2, 3, 1]}),
    "copy": ({"a": [1]}, op("copy", "/b", **{"from": "/a"}), {"a": [1], "b": [1]}),
    "test": ({"a": {"b": [1, "x"]}}, op("test", "/a/b", value=[1, "x"]), {"a": {"b": [1, "x"]}}),
    "test the whole": ({"a": 1}, op("test", "", value={"a": 1}), {"a": 1}),
    "test a missing member for null": ({}, op("test", "/a", value=None), {}),
    "test null": ({"a": None}, op("test", "/a", value=None), {"a": None}),
}


@pytest.mark.parametrize(("document", "operation", "expected"), FITS.values(), ids=FITS)
def test_applies(document: dict[str, Any], operation: dict[str, Any], expected: dict[str, Any]) -> None:
    assert run(document, operation) == expected


DOES_NOT_FIT = {
    "test differs": op("test", "/a", value=2),
    "test true is not 1": op("test", "/a", value=True),
    "test null is not a value": op("test", "/a", value=None),
    "test through a missing path": op("test", "/x/y", value=None),
    "remove a missing member": op("remove", "/x"),
    "remove below a missing member": op("remove", "/metadata/nope/x"),
    "remove past the end": op("remove", "/l/1"),
    "remove before the start": op("remove", "/l/-2"),
    "remove the append position": op("remove", "/l/-"),
    "remove the whole": op("remove", ""),
    "replace below a missing member": op("replace", "/x/y", value=1),
    "replace past the end": op("replace", "/l/1", value=1),
    "replace the whole by a scalar": op("replace", "", value=1),
    "replace the whole by a list": op("replace", "", value=[]),
    "add past the end": op("add", "/l/2", value=1),
    "add before the start": op("add", "/l/-3", value=1),
    "add at a word": op("add", "/l/x", value=1),
    "add at an odd number": op("add", "/l/1_0", value=1),
    "add into a scalar": op("add", "/a/b", value=1),
    "add below a missing member": op("add", "/x/y", value=1),
    "move from nowhere": op("move", "/b", **{"from": "/x"}),
    "move without from": op("move", "/b"),
    "copy from nowhere": op("copy", "/b", **{"from": "/x"}),
    "an unknown operation": op("frob", "/a"),
    "no operation": {"path": "/a"},
    "no path": {"op": "remove"},
}


@pytest.mark.parametrize("operation", DOES_NOT_FIT.values(), ids=DOES_NOT_FIT)
def test_rejects_what_does_not_fit_without_saying_why(operation: dict[str, Any]) -> None:
    with pytest.raises(PatchRejectedError) as caught:
        run({"a": 1, "l": [0]}, operation)
    assert caught.value.status() == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "the server rejected our request due to an error in our request",
        "reason": "Invalid",
        "details": {},
        "code": 422,
    }


def test_a_failing_operation_undoes_nothing_because_nothing_was_changed() -> None:
    document = {"a": {"b": 1}}
    with pytest.raises(PatchRejectedError):
        run(document, op("remove", "/a/b"), op("remove", "/a/b"))


def test_values_are_not_shared_with_the_patch() -> None:
    value = {"x": 1}
    operations = (json_patch.Operation("add", "/a", None, value), json_patch.Operation("remove", "/a/x"))
    assert json_patch.apply({}, operations) == {"a": {}}
    assert value == {"x": 1}


MALFORMED = {
    "an object": (b'{"a":1}', "json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"),
    "a number among the operations": (
        b"[1]",
        "json: cannot unmarshal number into Go value of type handlers.jsonPatchOp",
    ),
    "a number for the operation": (
        b'[{"op":1}]',
        "json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string",
    ),
}


@pytest.mark.parametrize(("body", "message"), MALFORMED.values(), ids=MALFORMED)
def test_rejects_malformed_patches(body: bytes, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        json_patch.decode(body)
    assert caught.value.message == f"error decoding patch: {message}"


@pytest.mark.parametrize("body", [b"", b"[", b"[}", b"foo", b"[1 2]", b"[{1:2}]", b"[] x", b'["a', b'[{"op" "add"}]'])
def test_rejects_text_that_is_not_json(body: bytes) -> None:
    with pytest.raises(BadRequestError) as caught:
        json_patch.decode(body)
    assert caught.value.message == "invalid JSON patch"


def test_rejects_too_many_operations() -> None:
    body = json.dumps([op("add", "/a", value=1)] * 10_001).encode()
    with pytest.raises(RequestEntityTooLargeError) as caught:
        json_patch.decode(body)
    assert caught.value.message == (
        "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001"
    )
    assert isinstance(caught.value, APIError)
    assert caught.value.code == 413
