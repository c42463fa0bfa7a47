"""Defaults of structural schemas."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document, copy_document
from dray.api.structural.defaults import compile_defaults

ONE = {"type": "integer", "default": 1}

# Properties of the spec, the spec, and the expected result.
ROWS: dict[str, tuple[Document, Any, Any]] = {
    "missing": ({"n": ONE}, {}, {"n": 1}),
    "given": ({"n": ONE}, {"n": 0}, {"n": 0}),
    "null": ({"n": ONE}, {"n": None}, {"n": 1}),
    "nullable null": ({"n": ONE | {"nullable": True}}, {"n": None}, {"n": None}),
    "null without default": ({"n": {"type": "integer"}}, {"n": None}, {"n": None}),
    "unknown null": ({"n": ONE}, {"x": None}, {"x": None, "n": 1}),
    "no default for what is not there": ({"o": {"type": "object", "properties": {"n": ONE}}}, {}, {}),
    "default of a default": (
        {"o": {"type": "object", "default": {}, "properties": {"n": ONE}}},
        {},
        {"o": {"n": 1}},
    ),
    "items": (
        {"l": {"type": "array", "items": {"type": "object", "properties": {"n": ONE}}}},
        {"l": [{}, {"n": 2}, "odd"]},
        {"l": [{"n": 1}, {"n": 2}, "odd"]},
    ),
    "null item": ({"l": {"type": "array", "items": ONE}}, {"l": [None]}, {"l": [1]}),
    "entries": (
        {"m": {"type": "object", "additionalProperties": {"type": "object", "properties": {"n": ONE}}}},
        {"m": {"a": {}, "b": None}},
        {"m": {"a": {"n": 1}, "b": None}},
    ),
    "null entry with default": (
        {"m": {"type": "object", "additionalProperties": ONE}},
        {"m": {"a": None}},
        {"m": {"a": 1}},
    ),
    "list of lists": (
        {"l": {"type": "array", "items": {"type": "array", "items": {"type": "object", "properties": {"n": ONE}}}}},
        {"l": [[{}]]},
        {"l": [[{"n": 1}]]},
    ),
    "wrong type": ({"o": {"type": "object", "properties": {"n": ONE}}}, {"o": 5}, {"o": 5}),
}


@pytest.mark.parametrize("name", ROWS)
def test_defaults(name: str) -> None:
    properties, given, expected = ROWS[name]
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}
    kept = copy_document(schema)
    document = {"spec": given}
    compile_defaults(schema)(document)
    assert document == {"spec": expected}
    assert schema == kept


def test_a_default_is_not_shared_between_objects() -> None:
    fill = compile_defaults({"properties": {"spec": {"type": "object", "default": {"list": [1]}}}})
    one: Document = {}
    other: Document = {}
    fill(one)
    one["spec"]["list"].append(2)
    fill(other)
    assert other == {"spec": {"list": [1]}}
