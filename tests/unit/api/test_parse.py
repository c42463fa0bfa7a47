"""Parsing of bodies: Go's error texts, duplicate keys, and YAML as in sigs.k8s.io/yaml."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.parse import ParseError, parse_json, parse_yaml

BROKEN = {
    "": "unexpected end of JSON input",
    "{": "unexpected end of JSON input",
    '{"a":': "unexpected end of JSON input",
    '{"a": "b': "unexpected end of JSON input",
    '{"a":1,}': "invalid character '}' looking for beginning of object key string",
    '{"a":1, }': "invalid character '}' looking for beginning of object key string",
    "[1,]": "invalid character ']' looking for beginning of value",
    '{"a" 1}': "invalid character '1' after object key",
    '{"a":1 "b":2}': "invalid character '\"' after object key:value pair",
    '{"a":{"]":1} "b":2}': "invalid character '\"' after object key:value pair",
    "[1 2]": "invalid character '2' after array element",
    "{}x": "invalid character 'x' after top-level value",
    '{"a":NaN}': "invalid character 'N' looking for beginning of value",
    '"a\nb"': r"invalid character '\n' in string literal",
    r'"\x"': "invalid character 'x' in string escape code",
}


@pytest.mark.parametrize(("body", "message"), BROKEN.items(), ids=BROKEN)
def test_broken_json_is_rejected_with_gos_message(body: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_json(body.encode())
    assert str(caught.value) == message


JSON: dict[bytes, tuple[Any, list[str]]] = {
    b'{"a":{"b":[1,2.5,true,null,"x:y"]}}': ({"a": {"b": [1, 2.5, True, None, "x:y"]}}, []),
    b'{"n":9223372036854775807}': ({"n": 9223372036854775807}, []),
    b'{"data":{"a":"1"},"data":{"a":"2"}}': ({"data": {"a": "2"}}, ['duplicate field "data"']),
    b'{"s":{"x":1,"x":2,"x":3}}': ({"s": {"x": 3}}, ['duplicate field "s.x"']),
    b'{"l":[{},{"x":":","x":"\\":"}]}': ({"l": [{}, {"x": '":'}]}, ['duplicate field "l[1].x"']),
    b'{"a" : 1, "b" :"\\"c\\":1"}': ({"a": 1, "b": '"c":1'}, []),
    b'{"a":"\xff\\ud800"}': ({"a": "��"}, []),
}


@pytest.mark.parametrize(("body", "expected"), JSON.items(), ids=[str(body) for body in JSON])
def test_json_is_parsed_and_repeated_keys_are_reported(body: bytes, expected: Any) -> None:
    assert parse_json(body) == expected


YAML: dict[str, tuple[str, Any]] = {
    "booleans": ("a: yes\nb: Off\nc: 'no'\nd: y", {"a": True, "b": False, "c": "no", "d": True}),
    "numbers": (
        "a: 0777\nb: 0x1F\nc: 1e3\nd: 1.5\ne: 1_000\nf: -3",
        {"a": 511, "b": 31, "c": 1000, "d": 1.5, "e": 1000, "f": -3},
    ),
    "no times, no base 60": ("a: 2026-01-02\nb: 1:30:00", {"a": "2026-01-02", "b": "1:30:00"}),
    "nulls": ("a:\nb: ~\nc: null", {"a": None, "b": None, "c": None}),
    "keys become text": ("1: a\ntrue: b\n1.5: c", {"1": "a", "true": "b", "1.5": "c"}),
    "aliases are copies": ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
    "merge keys may be overridden": (
        "a: &x {b: 1, c: 1}\nd:\n  <<: *x\n  b: 2",
        {"a": {"b": 1, "c": 1}, "d": {"b": 2, "c": 1}},
    ),
    "json is yaml": ('{"a": [1, "x"]}', {"a": [1, "x"]}),
    "first document only": ("a: 1\n---\nb: 2\n", {"a": 1}),
    "nothing": ("", None),
}


@pytest.mark.parametrize(("body", "expected"), YAML.values(), ids=YAML)
def test_yaml_is_read_as_kubernetes_reads_it(body: str, expected: Any) -> None:
    assert parse_yaml(body.encode()) == (expected, [])


def test_aliased_values_do_not_share_state() -> None:
    value, _ = parse_yaml(b"a: &x {b: 1}\nc: *x")
    value["a"]["b"] = 2
    assert value["c"] == {"b": 1}


def test_repeated_yaml_keys_are_reported_with_their_line() -> None:
    value, errors = parse_yaml(b"apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\ndata: {a: c}\n")
    assert value["data"] == {"a": "c"}
    assert errors == ['yaml: unmarshal errors:\n  line 4: key "data" already set in map']


@pytest.mark.parametrize(
    ("body", "message"),
    {
        "a: b: c": "error converting YAML to JSON: yaml: line 1: mapping values are not allowed in this context",
        "a: .nan": "error converting YAML to JSON: json: unsupported value: .nan",
    }.items(),
)
def test_broken_yaml_is_rejected(body: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_yaml(body.encode())
    assert str(caught.value) == message


def test_growing_aliases_are_rejected() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(ParseError, match="excessive aliasing"):
        parse_yaml("\n".join(lines).encode())
