"""CEL validation rules: rejected objects, error paths and messages."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path
from dray.api.structural.correlation import MISSING
from dray.apiserver.custom.rules import compile_rules

STRING = {"type": "string"}


def judged(schema: Document, value: Any, old: Any = MISSING) -> list[str]:
    visit = compile_rules(schema)
    assert visit is not None
    errors: FieldErrors = []
    visit(value, Path(), old, errors)
    return [str(error) for error in errors]


def spec(rule: str, **fields: Any) -> Document:
    properties = {"a": {"type": "integer"}, "s": STRING, "m": {"type": "object", "additionalProperties": STRING}}
    rules = [{"rule": rule, **fields}]
    inner = {"type": "object", "properties": properties, "x-kubernetes-validations": rules}
    return {"type": "object", "properties": {"spec": inner}}


ROWS: dict[str, tuple[Document, Any, list[str]]] = {
    "obeyed": (spec("self.a > 0"), {"a": 1}, []),
    "default message": (spec("self.a > 0 "), {"a": 0}, ["spec: Invalid value: failed rule: self.a > 0"]),
    "message": (spec("self.a > 0", message=" be positive "), {"a": 0}, ["spec: Invalid value: be positive"]),
    "message expression": (
        spec("self.a > 0", messageExpression="'a is ' + string(self.a)"),
        {"a": -1},
        ["spec: Invalid value: a is -1"],
    ),
    "message expression that fails": (
        spec("self.a > 0", message="be positive", messageExpression="self.s"),
        {"a": -1},
        ["spec: Invalid value: be positive"],
    ),
    "field": (
        spec("self.a > 0", message="no", fieldPath=".m['x']"),
        {"a": 0},
        ["spec.m[x]: Invalid value: no"],
    ),
    "required": (
        spec("has(self.s)", message="say it", reason="FieldValueRequired", fieldPath=".s"),
        {},
        ["spec.s: Required value: say it"],
    ),
    "forbidden": (
        spec("!has(self.s)", message="not yet", reason="FieldValueForbidden"),
        {"s": "x"},
        ["spec: Forbidden: not yet"],
    ),
    "error": (
        spec("self.a / 0 == 1"),
        {"a": 1},
        ["spec: Invalid value: division by zero evaluating rule: self.a / 0 == 1"],
    ),
    "missing field": (
        spec("self.a == 1"),
        {},
        ["spec: Invalid value: no such key: a evaluating rule: self.a == 1"],
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_rule(name: str) -> None:
    schema, value, errors = ROWS[name]
    assert judged(schema, {"spec": value}) == errors


def test_scalars_are_shown() -> None:
    name = STRING | {"x-kubernetes-validations": [{"rule": "self == 'x'", "message": "must be x"}]}
    schema = {"type": "object", "properties": {"list": {"type": "array", "items": name}}}
    assert judged(schema, {"list": ["x", "y"]}) == ['list[1]: Invalid value: "y": must be x']


def test_rules_of_the_root_see_the_name() -> None:
    schema = {"type": "object", "x-kubernetes-validations": [{"rule": "self.metadata.name == 'only'"}]}
    assert judged(schema, {"metadata": {"name": "only"}}) == []
    assert judged(schema, {"metadata": {"name": "x"}}) == [
        "<nil>: Invalid value: failed rule: self.metadata.name == 'only'"
    ]


def test_rules_about_a_change_need_an_old_value() -> None:
    schema = spec("self.a >= oldSelf.a", message="only up")
    assert judged(schema, {"spec": {"a": 1}}) == []
    assert judged(schema, {"spec": {"a": 1}}, {}) == []
    assert judged(schema, {"spec": {"a": 1}}, {"spec": {"a": 2}}) == ["spec: Invalid value: only up"]


def test_an_optional_old_value() -> None:
    schema = spec("oldSelf.hasValue() || self.a == 0", optionalOldSelf=True, message="start at 0")
    assert judged(schema, {"spec": {"a": 0}}) == []
    assert judged(schema, {"spec": {"a": 1}}) == ["spec: Invalid value: start at 0"]
    assert judged(schema, {"spec": {"a": 1}}, {"spec": {"a": 0}}) == []


def test_what_did_not_change_is_not_rejected() -> None:
    schema = spec("self.a > 0", message="be positive")
    assert judged(schema, {"spec": {"a": 0}, "x": 1}, {"spec": {"a": 0}}) == []
    assert judged(schema, {"spec": {"a": 0}}, {"spec": {"a": 1}}) == ["spec: Invalid value: be positive"]


def test_old_items_are_found_by_key() -> None:
    rules = [{"rule": "self.v == oldSelf.v", "message": "v is fixed"}]
    items = {"type": "object", "properties": {"k": STRING, "v": STRING}, "x-kubernetes-validations": rules}
    keyed = {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": items}
    schema = {"type": "object", "properties": {"list": keyed}}
    old = {"list": [{"k": "a", "v": "1"}, {"k": "b", "v": "2"}]}
    assert judged(schema, {"list": [{"k": "b", "v": "2"}, {"k": "c", "v": "9"}]}, old) == []
    assert judged(schema, {"list": [{"k": "b", "v": "3"}]}, old) == ["list[0]: Invalid value: v is fixed"]


def many(count: int, rule: str, **fields: Any) -> Document:
    items = {"type": "string", "x-kubernetes-validations": [{"rule": rule, **fields}]}
    return {"type": "object", "properties": {"l": {"type": "array", "items": items, "maxItems": count}}}


LONG = "a" * 400_000


def test_the_rules_of_an_object_share_a_budget() -> None:
    """Each rule costs 40,002 units for its text; an object may cost 10,000,000."""
    schema = many(300, "self.contains('b')", messageExpression="'no ' + 'b'")
    within = judged(schema, {"l": [LONG] * 249})
    assert within == [f'l[{place}]: Invalid value: "{LONG}": no b' for place in range(249)]
    errors = judged(schema, {"l": [LONG] * 260})
    assert errors[-1].endswith(
        "validation failed due to running out of cost budget, no further validation rules will be run"
    )
    assert len(errors) == 250


def test_a_budget_is_counted_exactly() -> None:
    """Generated code charges for both sides of a condition; what it costs in fact fits into the budget."""
    schema = many(300, "self.contains('a') || self.contains('b') || self.contains('c')")
    assert judged(schema, {"l": [LONG] * 240}) == []


def test_a_rule_above_its_limit_is_the_last() -> None:
    rules = [{"rule": "self.all(x, self.all(y, self.all(z, true)))"}, {"rule": "false", "message": "never reached"}]
    schema = {"type": "array", "items": {"type": "integer"}, "x-kubernetes-validations": rules}
    assert judged(schema, list(range(1000))) == [
        "<nil>: Invalid value: 'operation cancelled: actual cost limit exceeded': no further validation rules will be "
        "run due to call cost exceeds limit for rule: self.all(x, self.all(y, self.all(z, true)))"
    ]


def test_the_next_object_has_a_budget_of_its_own() -> None:
    visit = compile_rules(many(300, "self.contains('b')"))
    assert visit is not None
    for _ in range(3):
        errors: FieldErrors = []
        visit({"l": [LONG] * 200}, Path(), MISSING, errors)
        assert len(errors) == 200
