"""Merge patch: the cases of RFC 7386 with objects on both sides, and the errors of invalid bodies."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dray.api.errors import BadRequestError
from dray.apiserver.patch import merge_patch

CASES = {
    "replace": ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    "add": ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    "remove": ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    "remove what is not there": ({}, {"a": None}, {}),
    "a list replaces": ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    "lists do not merge": ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
    "objects merge": ({"a": {"b": "c", "d": 1}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d", "d": 1}}),
    "an object over a scalar": ({"a": 1}, {"a": {"b": {"c": None, "d": 1}}}, {"a": {"b": {"d": 1}}}),
    "nulls of new objects vanish": ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    "null elements stay": ({}, {"a": [None, {"b": None, "c": 1}]}, {"a": [None, {"c": 1}]}),
    "nothing": ({"a": 1}, {}, {"a": 1}),
}


@pytest.mark.parametrize(("document", "patch", "expected"), CASES.values(), ids=CASES)
def test_merges(document: dict[str, Any], patch: dict[str, Any], expected: dict[str, Any]) -> None:
    inputs = copy.deepcopy((document, patch))
    assert merge_patch.apply(document, patch) == expected
    assert (document, patch) == inputs


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[]", "json: cannot unmarshal array into Go value of type map[string]interface {}"),
        (b'"x"', "json: cannot unmarshal string into Go value of type map[string]interface {}"),
        (b"true", "json: cannot unmarshal bool into Go value of type map[string]interface {}"),
    ],
)
def test_rejects_what_is_no_object(body: bytes, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        merge_patch.decode(body)
    assert caught.value.message == f"error decoding patch: {message}"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "invalid JSON patch"),
        (b"", "invalid JSON patch"),
        (b"{'a':1}", "invalid JSON patch"),
        (b"null", "Invalid JSON Patch"),
    ],
)
def test_rejects_what_is_no_json(body: bytes, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        merge_patch.decode(body)
    assert caught.value.message == message


def test_reads_bodies() -> None:
    assert merge_patch.decode(b'{"a":null}') == {"a": None}
