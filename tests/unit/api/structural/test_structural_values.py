"""Validation of values by schemas, and its messages."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document, copy_document
from dray.api.structural.correlation import MISSING, same
from dray.api.structural.values import compile_values


def judged(field: Document, value: Any, old: Any = MISSING) -> list[str]:
    """Return the errors of one field `f` of an object's spec."""
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"f": field}}}}
    before = MISSING if old is MISSING else {"spec": {"f": old}}
    document = {"spec": {"f": value}}
    kept = copy_document(document)
    errors = compile_values(schema)(document, before)
    assert same(document, kept)
    return [str(error) for error in errors]


INTEGER = {"type": "integer"}
STRING = {"type": "string"}

# The field's schema, a value, and the error about it (None: it is valid).
ROWS: dict[str, tuple[Document, Any, str | None]] = {
    "integer": (INTEGER, 1, None),
    "whole float as integer": (INTEGER, 1.0, None),
    "bool as integer": (INTEGER, True, 'Invalid value: "boolean": spec.f in body must be of type integer: "boolean"'),
    "integer as number": ({"type": "number"}, 1, None),
    "string as object": (
        {"type": "object"},
        "x",
        'Invalid value: "string": spec.f in body must be of type object: "string"',
    ),
    "null": (STRING, None, 'Invalid value: "null": spec.f in body must be of type string: "null"'),
    "nullable": (STRING | {"nullable": True}, None, None),
    "int or string: int": ({"x-kubernetes-int-or-string": True}, 5, None),
    "int or string: string": ({"x-kubernetes-int-or-string": True}, "5%", None),
    "int or string: bool": (
        {"x-kubernetes-int-or-string": True},
        True,
        'Invalid value: "boolean": spec.f in body must be of type integer,string: "boolean"',
    ),
    "enum": (STRING | {"enum": ["a", "b"]}, "c", 'Unsupported value: "c": supported values: "a", "b"'),
    "enum of numbers": (INTEGER | {"enum": [1, 2]}, 3, 'Unsupported value: 3: supported values: "1", "2"'),
    "maximum": (INTEGER | {"maximum": 10}, 11, "Invalid value: 11: spec.f in body should be less than or equal to 10"),
    "maximum itself": (INTEGER | {"maximum": 10}, 10, None),
    "exclusive maximum": (
        INTEGER | {"maximum": 10, "exclusiveMaximum": True},
        10,
        "Invalid value: 10: spec.f in body should be less than 10",
    ),
    "minimum": (
        INTEGER | {"minimum": 1.5},
        1,
        "Invalid value: 1: spec.f in body should be greater than or equal to 1.5",
    ),
    "exclusive minimum": (
        INTEGER | {"minimum": 0, "exclusiveMinimum": True},
        0,
        "Invalid value: 0: spec.f in body should be greater than 0",
    ),
    "flag as int32": (
        INTEGER | {"format": "int32"},
        True,
        'Invalid value: "": spec.f in body must be of type int32: ""',
    ),
    "list as date": (STRING | {"format": "date"}, ["x"], None),
    "multiple": (INTEGER | {"multipleOf": 5}, 7, "Invalid value: 7: spec.f in body should be a multiple of 5"),
    "too long": (STRING | {"maxLength": 2}, "abc", "Too long: may not be more than 2 bytes"),
    "characters, not bytes": (STRING | {"maxLength": 2}, "äö", None),
    "too short": (
        STRING | {"minLength": 2},
        "a",
        'Invalid value: "a": spec.f in body should be at least 2 chars long',
    ),
    "pattern": (
        STRING | {"pattern": "^[a-z]+$"},
        "A1",
        "Invalid value: \"A1\": spec.f in body should match '^[a-z]+$'",
    ),
    "pattern is not anchored": (STRING | {"pattern": "[a-z]"}, "1a1", None),
    "format": (
        STRING | {"format": "date-time"},
        "noon",
        'Invalid value: "noon": spec.f in body must be of type date-time: "noon"',
    ),
    "unknown format": (STRING | {"format": "made-up"}, "x", None),
    "too many items": (
        {"type": "array", "maxItems": 1, "items": INTEGER},
        [1, 2],
        "Too many: 2: must have at most 1 item",
    ),
    "too few items": (
        {"type": "array", "minItems": 1, "items": INTEGER},
        [],
        "Invalid value: 0: spec.f in body should have at least 1 items",
    ),
    "too many properties": (
        {"type": "object", "maxProperties": 1, "additionalProperties": STRING},
        {"a": "", "b": ""},
        "Too many: 2: must have at most 1 item",
    ),
    "too few properties": (
        {"type": "object", "minProperties": 1},
        {},
        "Invalid value: 0: spec.f in body should have at least 1 properties",
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_value(name: str) -> None:
    schema, value, error = ROWS[name]
    assert judged(schema, value) == ([] if error is None else [f"spec.f: {error}"])


def test_paths_of_items_entries_and_missing_fields() -> None:
    schema = {
        "type": "object",
        "properties": {
            "list": {"type": "array", "items": {"type": "object", "required": ["id"], "properties": {"id": STRING}}},
            "map": {"type": "object", "additionalProperties": INTEGER},
        },
    }
    errors = judged(schema, {"list": [{"id": "a"}, {}], "map": {"k": "v"}})
    assert errors == [
        "spec.f.list[1].id: Required value",
        'spec.f.map.k: Invalid value: "string": spec.f.map.k in body must be of type integer: "string"',
    ]


ALTERNATIVES: dict[str, tuple[Document, list[str]]] = {
    "anyOf": (
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['<nil>: Invalid value: "": "spec.f" must validate at least one schema (anyOf)', "spec.f.a: Required value"],
    ),
    "oneOf, none": (
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [
            '<nil>: Invalid value: "": "spec.f" must validate one and only one schema (oneOf). Found none valid',
            "spec.f.a: Required value",
        ],
    ),
    "oneOf, two": (
        {"oneOf": [{"required": ["x"]}, {"minProperties": 1}]},
        [
            '<nil>: Invalid value: "": "spec.f" must validate one and only one schema (oneOf). '
            "Found 2 valid alternatives"
        ],
    ),
    "oneOf, one": ({"oneOf": [{"required": ["x"]}, {"required": ["b"]}]}, []),
    "allOf": (
        {"allOf": [{"required": ["x"]}, {"required": ["b"]}]},
        ["spec.f.b: Required value", '<nil>: Invalid value: "": "spec.f" must validate all the schemas (allOf)'],
    ),
    "not": (
        {"not": {"required": ["x"]}},
        ['<nil>: Invalid value: "": "spec.f" must not validate the schema (not)'],
    ),
}


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_alternatives(name: str) -> None:
    schema, errors = ALTERNATIVES[name]
    properties = {"a": STRING, "b": STRING, "x": STRING}
    assert judged({"type": "object", "properties": properties, **schema}, {"x": "1"}) == errors


def test_what_an_update_leaves_alone_is_not_validated_again() -> None:
    schema = {"type": "object", "properties": {"a": INTEGER | {"maximum": 1}, "b": INTEGER}}
    assert judged(schema, {"a": 5, "b": 2}, {"a": 5, "b": 1}) == []
    assert len(judged(schema, {"a": 6, "b": 1}, {"a": 5, "b": 1})) == 1


def test_items_are_the_same_by_their_keys_only() -> None:
    items = {"type": "object", "properties": {"id": STRING, "n": INTEGER | {"maximum": 1}}}
    keyed = {
        "type": "array",
        "items": items,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["id"],
    }
    old = [{"id": "a", "n": 5}]
    new = [{"id": "b", "n": 0}, {"id": "a", "n": 5}]
    assert judged(keyed, new, old) == []
    assert len(judged({"type": "array", "items": items}, new, old)) == 1


def test_a_change_of_type_is_a_change() -> None:
    assert len(judged(STRING, True, 1)) == 1
    assert len(judged(INTEGER, True, 1)) == 1


@pytest.mark.parametrize(("name", "text"), [("int32", "with format int32"), ("", "(default format)")])
def test_integers_have_a_range(name: str, text: str) -> None:
    schema = INTEGER | ({"format": name} if name else {})
    low, high = (-(2**31), 2**31 - 1) if name else (-(2**63), 2**63 - 1)
    assert judged(schema, low) == judged(schema, high) == []
    problem = f'<nil>: Invalid value: "": Checked value must be of type integer {text} in spec.f'
    assert judged(schema, low - 1) == judged(schema, high + 1) == [problem]


def test_too_many_fields_are_not_all_that_is_reported() -> None:
    schema = {"type": "object", "maxProperties": 1, "additionalProperties": INTEGER}
    assert judged(schema, {"a": 1, "b": "x"}) == [
        "spec.f: Too many: 2: must have at most 1 item",
        'spec.f.b: Invalid value: "string": spec.f.b in body must be of type integer: "string"',
    ]


def test_fractions_and_large_fractions_are_no_integers() -> None:
    wrong = 'spec.f: Invalid value: "number": spec.f in body must be of type integer: "number"'
    ranged = '<nil>: Invalid value: "": Checked value must be of type integer (default format) in spec.f'
    assert judged(INTEGER, 3.0) == []
    assert judged(INTEGER, 3.5) == judged(INTEGER, 1e21) == [wrong, ranged]


def test_multiples_of_large_numbers() -> None:
    sevens = {"type": "number", "multipleOf": 7}
    wrong = "spec.f in body should be a multiple of 7"
    assert judged(sevens, 7 * 2**60) == judged(sevens, 10.5 * 2) == []
    assert judged(sevens, 7 * 2**60 + 1)[0].endswith(wrong)
    assert judged(sevens, 1e21)[0].endswith(wrong)
