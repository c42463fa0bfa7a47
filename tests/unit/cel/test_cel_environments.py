from __future__ import annotations

from typing import Any

import pytest

from dray.api.quantity import Quantity
from dray.api.semver import Semver
from dray.cel import environments
from dray.cel.environments import (
    DeviceView,
    compile_derived_attribute,
    compile_device_selector,
    compile_message_expression,
    compile_rule,
    device_view,
)
from dray.cel.errors import CELError, CELRuntimeError
from dray.cel.explain import Condition, Reference, explain_match
from dray.cel.schema import escape_property

pytestmark = pytest.mark.api_cel

TEXT = {"type": "string"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "ratio": {"type": "number"},
        "name": {"type": "string", "maxLength": 10},
        "when": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "wait": {"type": "string", "format": "duration"},
        "data": {"type": "string", "format": "byte"},
        "port": {"x-kubernetes-int-or-string": True},
        "tags": {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 8}},
        "times": {"type": "array", "items": {"type": "string", "format": "date-time"}},
        "labels": {"type": "object", "additionalProperties": TEXT},
        "waits": {"type": "object", "additionalProperties": {"type": "string", "format": "duration"}},
        "inner": {"type": "object", "properties": {"x": {"type": "integer"}}},
        "blob": {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {"known": TEXT}},
        "anything": {"x-kubernetes-preserve-unknown-fields": True},
        "a-b.c/d__e": TEXT,
        "namespace": TEXT,
        "if": {"type": "integer"},
        "else": {"type": "integer"},
        "maybe": {"type": "integer", "nullable": True},
        "nulls": {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True, "nullable": True}},
        "embedded": {"type": "object", "x-kubernetes-embedded-resource": True},
    },
}

HOLDS: list[tuple[str, dict[str, Any]]] = [
    ("self.n > 3 && self.ratio > 0.5", {"n": 4, "ratio": 1}),
    ("self.ratio / 2.0 == 0.5", {"ratio": 1}),
    ("self.when < timestamp('2024-01-01T00:00:00Z')", {"when": "2023-01-01T00:00:00+02:00"}),
    ("self.day.getFullYear() == 2023", {"day": "2023-05-06"}),
    ("self.wait == duration('90s')", {"wait": "1m30s"}),
    ("self.data == b'hi'", {"data": "aGk="}),
    ("self.port == 80 || self.port == 'http'", {"port": "http"}),
    ("type(self.port) == int ? self.port < 100 : false", {"port": 80}),
    ("self.tags.all(t, t.startsWith('a'))", {"tags": ["a", "ab"]}),
    ("self.times.all(t, t > timestamp('2020-01-01T00:00:00Z'))", {"times": ["2021-01-01T00:00:00Z"]}),
    ("self.labels.exists(k, self.labels[k] == 'v')", {"labels": {"k": "v"}}),
    ("self.waits['x'] > duration('1s')", {"waits": {"x": "2s"}}),
    ("has(self.inner.x) && !has(self.name)", {"inner": {"x": 1}}),
    ("self.?name.orValue('none') == 'none'", {}),
    ("self.blob.known == 'k'", {"blob": {"known": "k", "other": 1}}),
    ("self.a__dash__b__dot__c__slash__d__underscores__e == 'x'", {"a-b.c/d__e": "x"}),
    ("self.__namespace__ == 'ns'", {"namespace": "ns"}),
    # Reserved words can follow a dot as they are.
    ("self.namespace == 'ns' && has(self.namespace)", {"namespace": "ns"}),
    ("!has(self.namespace) && self.?namespace.orValue('x') == 'x'", {}),
    ("self.if + self.?else.orValue(1) == 3", {"if": 2}),
    # A field that is null counts as absent, an entry of a map does not.
    ("!has(self.maybe) && self.?maybe.orValue(3) == 3", {"maybe": None}),
    ("has(self.maybe) && self.maybe == 2", {"maybe": 2}),
    ("'k' in self.nulls && self.nulls['k'] == null", {"nulls": {"k": None}}),
    (
        "self.embedded.kind == 'Pod' && self.embedded.metadata.name == 'p'",
        {"embedded": {"kind": "Pod", "metadata": {"name": "p"}}},
    ),
]


@pytest.mark.parametrize(("rule", "value"), HOLDS)
def test_rule_holds(rule: str, value: dict[str, Any]) -> None:
    before = repr(value)
    assert compile_rule(rule, SCHEMA, with_old_self=False).evaluate(value) is True
    assert repr(value) == before


LISTS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "set": {"type": "array", "items": TEXT, "x-kubernetes-list-type": "set"},
        "map": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": TEXT, "v": {"type": "integer"}}},
        },
        "plain": {"type": "array", "items": TEXT},
    },
}


@pytest.mark.parametrize(
    ("rule", "new", "old", "holds"),
    [
        ("self.set == oldSelf.set", {"set": ["a", "b"]}, {"set": ["b", "a"]}, True),
        ("self.set == oldSelf.set", {"set": ["a", "b"]}, {"set": ["a", "c"]}, False),
        ("self.set == ['b', 'a']", {"set": ["a", "b"]}, {}, True),
        ("(self.set + ['b', 'c']).size() == 3", {"set": ["a", "b"]}, {}, True),
        ("self.plain == oldSelf.plain", {"plain": ["a", "b"]}, {"plain": ["b", "a"]}, False),
        ("self.map == oldSelf.map", {"map": [{"k": "a"}, {"k": "b"}]}, {"map": [{"k": "b"}, {"k": "a"}]}, True),
        ("self.map == oldSelf.map", {"map": [{"k": "a", "v": 1}]}, {"map": [{"k": "a", "v": 2}]}, False),
        (
            "(self.map + oldSelf.map).map(e, e.v) == [3, 2, 4]",
            {"map": [{"k": "a", "v": 1}, {"k": "b", "v": 2}]},
            {"map": [{"k": "c", "v": 4}, {"k": "a", "v": 3}]},
            True,
        ),
    ],
)
def test_sets_and_maps_among_lists(rule: str, new: dict[str, Any], old: dict[str, Any], holds: bool) -> None:
    assert compile_rule(rule, LISTS).evaluate(new, old) is holds


REFUSED = [
    ("self.missing == 1", "undefined field 'missing'"),
    ("self.anything == 1", "undefined field 'anything'"),
    ("self.blob.other == 1", "undefined field 'other'"),
    ("self.n == 'a'", "found no matching overload for '_==_' applied to '(int, string)'"),
    ("oldSelf.n == 1", "undeclared reference to 'oldSelf' (in container '')"),
    ("self.metadata.name == 'x'", "undefined field 'metadata'"),
    ("self.n", "cel expression must evaluate to a bool"),
]


@pytest.mark.parametrize(("rule", "message"), REFUSED)
def test_rule_rejected(rule: str, message: str) -> None:
    with pytest.raises(CELError) as refused:
        compile_rule(rule, SCHEMA, with_old_self=False)
    assert message in str(refused.value)


def test_root_has_the_fields_of_every_object() -> None:
    rule = compile_rule("self.metadata.name.startsWith('a') && self.kind == 'K'", SCHEMA, is_root=True)
    assert rule.evaluate({"kind": "K", "metadata": {"name": "abc"}}) is True


def test_transition_rules() -> None:
    rule = compile_rule("self.n >= oldSelf.n", SCHEMA, with_old_self=True)
    assert rule.uses_old_self
    assert rule.evaluate({"n": 2}, {"n": 1}) is True
    assert rule.evaluate({"n": 1}, {"n": 2}) is False
    assert not compile_rule("self.n > 0", SCHEMA, with_old_self=True).uses_old_self


def test_optional_old_self() -> None:
    rule = compile_rule(
        "oldSelf.hasValue() ? self.n >= oldSelf.value().n : self.n == 0", SCHEMA, optional_old_self=True
    )
    assert rule.evaluate({"n": 0}) is True
    assert rule.evaluate({"n": 5}, {"n": 4}) is True


def test_scalar_schemas() -> None:
    assert compile_rule("self.size() < 3", {"type": "string"}).evaluate("ab") is True
    assert compile_rule("self.all(x, x > 0)", {"type": "array", "items": {"type": "integer"}}).evaluate([1]) is True


def test_missing_field_is_a_run_time_error() -> None:
    with pytest.raises(CELRuntimeError, match="no such key: n"):
        compile_rule("self.n > 3", SCHEMA).evaluate({})


def test_a_null_field_cannot_be_read() -> None:
    with pytest.raises(CELRuntimeError, match="no such key: maybe"):
        compile_rule("self.maybe > 3", SCHEMA).evaluate({"maybe": None})


def test_malformed_value_is_a_run_time_error() -> None:
    with pytest.raises(CELRuntimeError, match="Invalid date-time format"):
        compile_rule("self.when > timestamp(0)", SCHEMA).evaluate({"when": "yesterday"})


def test_message_expression() -> None:
    message = compile_message_expression("'n is ' + string(self.n)", SCHEMA)
    assert message.evaluate({"n": 7}) == "n is 7"
    with pytest.raises(CELError, match="messageExpression must evaluate to a string"):
        compile_message_expression("self.n", SCHEMA)


def test_cost_estimates_follow_the_bounds_of_the_schema() -> None:
    bounded = compile_rule("self.tags.all(t, t == 'aaaaaaaaaaaaaaaaaaaa')", SCHEMA)
    # self.tags, the accumulator, and five times: the loop (3), the element (1) and comparing twenty characters (2).
    assert bounded.estimated_cost == 2 + 1 + 5 * 6
    unbounded = compile_rule("self.times.all(t, t > timestamp(0))", SCHEMA)
    # An item has at least 22 characters with its comma, of the three million of a request.
    assert unbounded.estimated_cost == 3 + 142_987 * 6


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("plain", "plain"),
        ("in", "__in__"),
        ("a.b", "a__dot__b"),
        ("a__b", "a__underscores__b"),
        ("a$b", None),
        ("1a", None),
    ],
)
def test_escaped_names(name: str, escaped: str | None) -> None:
    assert escape_property(name) == escaped


# --- devices ---


@pytest.mark.behaviour("SP-38")
def test_device_view_reads_every_kind_of_value() -> None:
    view = device_view(
        "gpu.example.com",
        {
            "attributes": {
                "i": {"int": 1},
                "b": {"bool": False},
                "s": {"string": "x"},
                "other.example.com/v": {"version": "1.2.3"},
                "is": {"ints": [1, 2]},
                "vs": {"versions": ["1.0.0"]},
            },
            "capacity": {"memory": {"value": "1Gi"}, "other.example.com/c": {"value": 5}},
            "allowMultipleAllocations": True,
        },
    )
    assert view.attributes == {
        "gpu.example.com": {"i": 1, "b": False, "s": "x", "is": [1, 2], "vs": [Semver(1, 0, 0)]},
        "other.example.com": {"v": Semver(1, 2, 3)},
    }
    assert view.capacity["gpu.example.com"]["memory"] == Quantity.parse("1Gi")
    assert view.capacity["other.example.com"]["c"] == Quantity.parse("5")
    assert view.allow_multiple


def test_device_view_of_the_older_layout() -> None:
    assert device_view("d", {"name": "x", "basic": {"attributes": {"a": {"int": 1}}}}).attributes["d"] == {"a": 1}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"attributes": {"v": {"version": "x"}}}, "attribute v: parse semantic version: No Major.Minor.Patch"),
        ({"attributes": {"v": {}}}, "attribute v: unsupported attribute value"),
        ({"capacity": {"c": {"value": "x"}}}, "capacity c: "),
    ],
)
def test_device_view_of_malformed_devices(document: dict[str, Any], message: str) -> None:
    with pytest.raises(CELRuntimeError) as failed:
        device_view("d", document)
    assert message in str(failed.value)


@pytest.mark.behaviour("SP-39")
def test_unknown_domain_is_empty_but_not_there() -> None:
    view = DeviceView("d", {"d": {"a": 1}})
    assert view.attributes["unknown"] == {}
    assert "unknown" not in view.attributes
    for expression in (
        'device.attributes["unknown"].size() == 0',
        '!("unknown" in device.attributes)',
        "has(device.attributes.unknown)",
        'device.attributes[?"unknown"].hasValue()',
        '!device.attributes["unknown"][?"a"].hasValue()',
    ):
        assert compile_device_selector(expression).evaluate(view) is True


def test_failed_compilations_are_not_cached() -> None:
    for _ in range(2):
        with pytest.raises(CELError):
            compile_device_selector("device.nope")
    assert compile_device_selector("true") is compile_device_selector("true")


def test_explanation_names_the_failing_condition_and_the_nearest_attribute() -> None:
    devices = [
        device_view(
            "gpu.example.com", {"attributes": {"model": {"string": name}}, "capacity": {"memory": {"value": "1Gi"}}}
        )
        for name in ("A100", "H100", "H100")
    ]
    selector = compile_device_selector(
        'device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].modell == "A100" && '
        '(device.capacity["gpu.example.com"]["memory"].compareTo(quantity("2Gi")) >= 0 && true)'
    )
    explanation = explain_match(selector, devices)
    assert (explanation.devices, explanation.matching) == (3, 0)
    assert explanation.conditions == (
        Condition('device.driver == "gpu.example.com"', 3),
        Condition('device.attributes["gpu.example.com"].modell == "A100"', 0, "no such key: modell"),
        Condition('(device.capacity["gpu.example.com"]["memory"].compareTo(quantity("2Gi")) >= 0 && true)', 0),
    )
    assert set(explanation.references) == {
        Reference("gpu.example.com/modell", 0, "gpu.example.com/model"),
        Reference("gpu.example.com/memory", 3),
    }


@pytest.mark.behaviour("SP-43")
def test_compiled_selectors_are_cached_lru_and_failures_are_not() -> None:
    cache = environments._compile_selector
    cache.cache_clear()
    room = cache.cache_info().maxsize
    assert room is not None
    texts = [f"device.driver == 'd{number}'" for number in range(room)]
    kept = [compile_device_selector(text) for text in texts]
    assert compile_device_selector(texts[0]) is kept[0]
    with pytest.raises(CELError):
        compile_device_selector("device.nonsense")
    assert cache.cache_info().currsize == room
    compile_device_selector("device.driver == 'one more'")
    assert compile_device_selector(texts[0]) is kept[0], "used lately"
    assert compile_device_selector(texts[1]) is not kept[1], "the one not used for the longest time"
    assert cache.cache_info().currsize == room


SCALARS = "must evaluate to a primitive scalar (string, integer, boolean, semver)"


@pytest.mark.behaviour("N-87")
@pytest.mark.parametrize(
    ("expression", "lists", "expected"),
    [
        pytest.param("device.driver", False, "", id="string"),
        pytest.param("1", False, "", id="integer"),
        pytest.param("device.driver == 'x'", False, "", id="boolean"),
        pytest.param("semver('1.0.0')", False, "", id="version"),
        pytest.param("device.attributes['d'].x", False, "", id="attribute"),
        pytest.param("['a', 'b']", True, "", id="list"),
        pytest.param("['a']", False, f"{SCALARS}, not list(string)", id="list-without-gate"),
        pytest.param("1.5", True, f"{SCALARS} or a list of these scalars, not double", id="double"),
        pytest.param("[1.5]", True, f"{SCALARS} or a list of these scalars, not list(double)", id="doubles"),
        pytest.param("{'a': 1}", True, f"{SCALARS} or a list of these scalars, not map(string, int)", id="map"),
        pytest.param("device", True, f"{SCALARS} or a list of these scalars, not kubernetes.DRADevice", id="device"),
    ],
)
def test_types_of_derived_attributes(expression: str, lists: bool, expected: str) -> None:
    if not expected:
        compile_derived_attribute(expression, list_attributes=lists)
        return
    with pytest.raises(CELError) as caught:
        compile_derived_attribute(expression, list_attributes=lists)
    assert caught.value.detail == expected
