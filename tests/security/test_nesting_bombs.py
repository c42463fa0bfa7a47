"""Bodies nested so deep that a recursive parser would overflow its stack: one limit for every form, and a 400."""

from __future__ import annotations

import orjson
import pytest

from dray.api.limits import EXPANDED_BYTES_MAX, NESTING_DEPTH_MAX, VALUES_MAX, depth_of
from dray.api.parse import ParseError, parse_json, parse_yaml
from dray.api.protobuf.wire import delimited, tag
from tests.security.attacker import (
    APPLY_PATCH,
    CONFIG_MAPS,
    DEFINITIONS,
    JSON_PATCH,
    JSON_TYPE,
    MERGE_PATCH,
    PROTOBUF_TYPE,
    STRATEGIC_PATCH,
    YAML_TYPE,
    assert_refused,
    attacked_server,
)

LIMIT = f"exceeded max depth of {NESTING_DEPTH_MAX} levels"
VICTIM = f"{CONFIG_MAPS}/victim"


def nested_lists(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def nested_objects(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


YAML_BOMBS = {
    "unclosed flow sequences": b"a: " + b"[" * 100_000,
    "closed flow sequences": b"a: " + nested_lists(100_000),
    "unclosed flow mappings": b"a: " + b"{" * 100_000,
    "block sequences in one line": b"- " * 1_400_000,
    "complex keys": b"? " * 500_000,
    "block mappings": b"\n".join(b" " * level + b"a:" for level in range(1500)),
    "a list that contains itself": b"a: &a [*a]",
    "a mapping that contains itself": b"a: &a {b: *a}",
    "a mapping that merges itself": b"a: &a {<<: *a, b: [*a]}",
    "aliases that multiply depth": b"\n".join(
        [
            b"a0: &a0 " + nested_lists(100),
            *(b"a%d: &a%d " % (i, i) + b"[" * 100 + b"*a%d" % (i - 1) + b"]" * 100 for i in range(1, 60)),
        ]
    ),
}


@pytest.mark.parametrize("body", YAML_BOMBS.values(), ids=YAML_BOMBS.keys())
async def test_deep_yaml_is_refused(body: bytes) -> None:
    async with attacked_server() as attacker:
        for method, target, media in (
            ("POST", CONFIG_MAPS, YAML_TYPE),
            ("PATCH", f"{VICTIM}?fieldManager=m", APPLY_PATCH),
        ):
            assert_refused(await attacker.send(method, target, body, media), 400, "yaml")


@pytest.mark.parametrize("levels", [NESTING_DEPTH_MAX + 1, 950, 1024, 1025, 100_000])
@pytest.mark.parametrize("nested", [nested_lists, nested_objects])
async def test_deep_json_is_refused_in_bodies_and_patches(levels: int, nested: object) -> None:
    deep = nested_lists(levels) if nested is nested_lists else nested_objects(levels)
    inside = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":{"a":%b}}' % deep
    async with attacked_server() as attacker:
        for method, target, body, media in (
            ("POST", CONFIG_MAPS, inside, JSON_TYPE),
            ("POST", CONFIG_MAPS, inside, YAML_TYPE),
            ("POST", CONFIG_MAPS, inside + b"\xff", JSON_TYPE),
            ("PUT", VICTIM, inside, JSON_TYPE),
            ("DELETE", VICTIM, b'{"kind":"DeleteOptions","apiVersion":"v1","preconditions":%b}' % deep, JSON_TYPE),
            ("PATCH", VICTIM, b'{"data":%b}' % deep, MERGE_PATCH),
            ("PATCH", VICTIM, b'{"data":%b}' % deep, STRATEGIC_PATCH),
            ("PATCH", VICTIM, b'[{"op":"add","path":"/data/a","value":%b}]' % deep, JSON_PATCH),
            ("PATCH", f"{VICTIM}?fieldManager=m", inside, APPLY_PATCH),
        ):
            answer = await attacker.send(method, target, body, media)
            assert_refused(answer, 400)
            if media != YAML_TYPE or levels < 1000:
                assert LIMIT in answer.message or b"\xff" in body, (method, media, answer.message)


def test_the_limit_itself_is_allowed_in_every_form() -> None:
    for body in (nested_lists(NESTING_DEPTH_MAX), nested_objects(NESTING_DEPTH_MAX)):
        value, _ = parse_json(body)
        assert depth_of(value) == NESTING_DEPTH_MAX
        assert parse_yaml(body)[0] == value
        assert parse_yaml(b"\n" + body)[0] == value
    for deep in (nested_lists(NESTING_DEPTH_MAX + 1), nested_objects(NESTING_DEPTH_MAX + 1)):
        for parse, text in ((parse_json, deep), (parse_yaml, deep), (parse_yaml, b"\n" + deep)):
            with pytest.raises(ParseError, match=LIMIT):
                parse(text)


@pytest.mark.parametrize("levels", [NESTING_DEPTH_MAX, 400, 20_000])
async def test_deep_schema_of_a_definition_is_refused_as_protobuf_and_json(levels: int) -> None:
    # JSONSchemaProps.properties is field 29, a map: key 1, value 2.
    schema = b""
    for _ in range(levels):
        schema = tag(29, 2) + delimited(tag(1, 2) + delimited(b"a") + tag(2, 2) + delimited(schema))
    version = tag(1, 2) + delimited(b"v1") + tag(4, 2) + delimited(tag(1, 2) + delimited(schema))
    spec = tag(1, 2) + delimited(b"example.com") + tag(7, 2) + delimited(version)
    raw = tag(1, 2) + delimited(tag(1, 2) + delimited(b"things.example.com")) + tag(2, 2) + delimited(spec)
    meta = tag(1, 2) + delimited(b"apiextensions.k8s.io/v1") + tag(2, 2) + delimited(b"CustomResourceDefinition")
    body = b"k8s\x00" + tag(1, 2) + delimited(meta) + tag(2, 2) + delimited(raw)
    text = b'{"spec":{"versions":[{"schema":{"openAPIV3Schema":%b}}]}}' % (
        b'{"type":"object","properties":{"a":' * levels + b"{}" + b"}}" * levels
    )
    async with attacked_server() as attacker:
        assert_refused(await attacker.send("POST", DEFINITIONS, body, PROTOBUF_TYPE), 400, LIMIT)
        assert_refused(await attacker.send("POST", DEFINITIONS, text, JSON_TYPE), 400, LIMIT)


async def test_deepest_definition_that_is_allowed_is_compiled_and_served() -> None:
    schema: dict[str, object] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    while depth_of(schema) + 2 <= NESTING_DEPTH_MAX - 6:
        schema = {"type": "object", "properties": {"a": schema}}
    definition = {
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    things = "/apis/example.com/v1/namespaces/default/things"
    deep = nested_objects(NESTING_DEPTH_MAX - 1)
    thing = b'{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"t"},"a":%b}' % deep
    async with attacked_server() as attacker:
        answer = await attacker.send("POST", DEFINITIONS, orjson.dumps(definition))
        assert answer.code == 201, answer.message
        answer = await attacker.send("POST", things, thing)
        assert answer.code == 201, answer.message
        answer = await attacker.send("PATCH", f"{things}/t?fieldManager=m&force=true", thing, APPLY_PATCH)
        assert answer.code == 200, answer.message
        assert (await attacker.send("GET", things)).code == 200
        deeper = b'[{"op":"copy","from":"/a","path":"/a/a/a/a"}]'
        assert_refused(await attacker.send("PATCH", f"{things}/t", deeper, JSON_PATCH), 400, LIMIT)


async def test_deep_raw_field_of_protobuf_is_refused() -> None:
    # ObjectMeta.managedFields is field 17, its fieldsV1 field 7, whose raw JSON is field 1.
    entry = tag(7, 2) + delimited(tag(1, 2) + delimited(nested_objects(NESTING_DEPTH_MAX)))
    raw = tag(1, 2) + delimited(tag(1, 2) + delimited(b"x") + tag(17, 2) + delimited(entry))
    meta = tag(1, 2) + delimited(b"v1") + tag(2, 2) + delimited(b"ConfigMap")
    body = b"k8s\x00" + tag(1, 2) + delimited(meta) + tag(2, 2) + delimited(raw)
    async with attacked_server() as attacker:
        assert_refused(await attacker.send("POST", CONFIG_MAPS, body, PROTOBUF_TYPE), 400, LIMIT)


MERGES = b"\n".join(
    [
        b"a: &a {k0: 1, k1: 2, k2: 3, k3: 4, k4: 5, k5: 6, k6: 7, k7: 8, k8: 9}",
        *(
            b"%c: &%c {<<: [%b]}" % (98 + level, 98 + level, b", ".join([b"*%c" % (97 + level)] * 9))
            for level in range(12)
        ),
    ]
)
YAML_EXPANSIONS = {
    "billion laughs": b"\n".join(
        [
            b"a: &a [x, x, x, x, x, x, x, x, x]",
            *(
                b"%c: &%c [%b]" % (98 + level, 98 + level, b", ".join([b"*%c" % (97 + level)] * 9))
                for level in range(9)
            ),
        ]
    ),
    "a long text, often": b"a: &a " + b"x" * 100_000 + b"\nb: [" + b", ".join([b"*a"] * 1000) + b"]",
    "a long key, often": b"a: &a\n  ? " + b"k" * 100_000 + b"\n  : 1\nb: [" + b", ".join([b"*a"] * 1000) + b"]",
    "a large mapping, merged often": b"a: &a {"
    + b", ".join(b"k%d: 1" % i for i in range(2000))
    + b"}\nb:\n"
    + b"- {<<: *a}\n" * 2000,
}


@pytest.mark.parametrize("body", YAML_EXPANSIONS.values(), ids=YAML_EXPANSIONS.keys())
async def test_yaml_that_expands_without_bound_is_refused(body: bytes) -> None:
    async with attacked_server() as attacker:
        answer = await attacker.send("POST", CONFIG_MAPS, body, YAML_TYPE)
        assert_refused(answer, 400, "document contains excessive aliasing")


async def test_nine_way_merges_cost_no_more_than_their_distinct_keys() -> None:
    value, repeated = parse_yaml(MERGES)
    assert repeated == []
    assert value["m"] == value["a"] == {f"k{i}": i + 1 for i in range(9)}
    async with attacked_server() as attacker:
        assert_refused(await attacker.send("POST", f"{CONFIG_MAPS}?fieldValidation=Strict", MERGES, YAML_TYPE), 400)


def test_merge_keys_keep_their_meaning() -> None:
    value, repeated = parse_yaml(
        b"base: &base {a: 1, b: 1, c: 1}\nover: &over {b: 2, d: 2}\n"
        b"one: {<<: *base, a: 3}\nboth: {<<: [*over, *base], c: 3}\ntwice: {<<: *over, x: 1, <<: *base}\n"
    )
    assert repeated == []
    assert value["one"] == {"a": 3, "b": 1, "c": 1}
    assert value["both"] == {"a": 1, "b": 2, "c": 3, "d": 2}
    assert value["twice"] == {"a": 1, "b": 2, "c": 1, "d": 2, "x": 1}
    assert value["one"] is not value["base"]


async def test_yaml_with_more_values_than_can_be_read_in_time_is_refused() -> None:
    body = b"a:\n" + b"- a\n" * ((EXPANDED_BYTES_MAX - 10) // 4)
    async with attacked_server() as attacker:
        answer = await attacker.send("POST", CONFIG_MAPS, body, YAML_TYPE)
        assert_refused(answer, 400, "exceeded max number of 100000 values")


TOO_MANY = b"[" + b",".join([b"[]"] * (VALUES_MAX // 2)) + b"]"


@pytest.mark.parametrize("media", [JSON_TYPE, YAML_TYPE, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH])
async def test_too_many_values_are_refused_before_they_are_parsed(media: str) -> None:
    body = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"wide"},"data":%s}' % TOO_MANY
    if media == JSON_PATCH:
        body = b'[{"op":"add","path":"/data","value":%s}]' % TOO_MANY
    target = CONFIG_MAPS if media in (JSON_TYPE, YAML_TYPE) else f"{VICTIM}?fieldManager=m"
    async with attacked_server() as attacker:
        answer = await attacker.send("POST" if target == CONFIG_MAPS else "PATCH", target, body, media)
        assert_refused(answer, 400, f"exceeded max number of {VALUES_MAX} values")


async def test_too_many_values_in_protobuf_are_refused() -> None:
    few, many = (field(1, field(1, b"wide") + field(14, b"") * number) for number in (1, VALUES_MAX + 1))
    kind = field(1, field(1, b"v1") + field(2, b"ConfigMap"))
    async with attacked_server() as attacker:
        for raw, text in ((few, "name part must be non-empty"), (many, f"exceeded max number of {VALUES_MAX} values")):
            answer = await attacker.send("POST", CONFIG_MAPS, b"k8s\x00" + kind + field(2, raw), PROTOBUF_TYPE)
            assert_refused(answer, 400 if raw is many else 422, text)


def field(number: int, content: bytes) -> bytes:
    """Return a field of a protobuf message."""
    return tag(number, 2) + delimited(content)


def test_commas_and_brackets_in_texts_are_no_values() -> None:
    text = "[{," * VALUES_MAX
    assert parse_json(orjson.dumps({"data": {'a"': text}}))[0]["data"] == {'a"': text}
    numbers = [0] * (VALUES_MAX - 2)
    assert parse_json(orjson.dumps(numbers))[0] == numbers
