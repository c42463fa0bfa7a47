"""Strategies for hostile inputs: documents shaped like the real ones, with values that break naive code."""

from __future__ import annotations

import random
from typing import Any

import orjson
import yaml
from hypothesis import strategies as st

from dray.api.document import Document, GroupVersionKind
from dray.api.protobuf import encode_object
from dray.api.schema import load
from dray.api.schema.model import ListOf, MapOf, Scalar, StructType, Type

DEPTH_MAX = 7
# Lists, maps and texts that show whether the work grows faster than the input. Their elements have no such ones.
BULK = (300, 2000)
_BULK_DEPTH_MAX = 3
_ODD_TEXTS = (
    "",
    "a",
    "x" * 300,
    "0",
    "-1",
    "9" * 5000,
    "1e999",
    "a\x00b",
    "ä\u2028\ufffd",
    "$(A)",
    "../..",
    "a=b,c in (d)",
)
_ODD_NUMBERS = (0, 1, -1, 2**31, 2**63, -(2**63), 2**64, 1e300, 0.5)
_WORDS = ("10Gi", "1.5", "2026-01-01T00:00:00Z", "Always", "10%", "1h30m", "example.com/a", "things.example.com", "v1")

texts = st.one_of(st.sampled_from(_ODD_TEXTS), st.sampled_from(_WORDS), st.text(max_size=12))
scalars = st.one_of(st.none(), st.booleans(), st.sampled_from(_ODD_NUMBERS), st.integers(), texts)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)

_BY_SCALAR: dict[Scalar, st.SearchStrategy[Any]] = {
    Scalar.STRING: texts,
    Scalar.BOOL: st.booleans(),
    Scalar.INT32: st.sampled_from((0, 1, -1, 80, 2**31 - 1, 2**31)),
    Scalar.INT64: st.sampled_from((0, 1, -1, 2**40, 2**63)),
    Scalar.DOUBLE: st.sampled_from((0, 0.5, -1, 1e300)),
    Scalar.QUANTITY: st.sampled_from(("1", "10Gi", "0.5", "-1", "1e3", "1e99", "abc", "9" * 40)),
    Scalar.TIME: st.sampled_from(
        ("2026-01-01T00:00:00Z", "0000-00-00T00:00:00Z", "9999-12-31T23:59:59.999999999+23:59")
    ),
    Scalar.MICRO_TIME: st.sampled_from(("2026-01-01T00:00:00.000000Z", "0001-01-01T00:00:00-23:59", "x")),
    Scalar.DURATION: st.sampled_from(("1h", "-1.5s", "9" * 300 + "s", "1x")),
    Scalar.BYTES: st.sampled_from(("YQ==", "YQ", "\n", "****")),
    Scalar.INT_OR_STRING: st.sampled_from((0, 8080, "http", "50%", "9" * 400 + "%", -1)),
    Scalar.ANY: values,
}


@st.composite
def typed(draw: st.DrawFn, kind: Type, depth: int = 0) -> Any:
    """A value that mostly has the type."""
    if draw(st.integers(0, 30)) == 0:
        return draw(values)
    if isinstance(kind, Scalar):
        return draw(_BY_SCALAR[kind])
    size = draw(st.integers(0, 2)) if depth < DEPTH_MAX else 0
    if isinstance(kind, ListOf | MapOf) and depth <= _BULK_DEPTH_MAX and draw(st.integers(0, 25)) == 0:
        return _bulk(kind, draw(typed(kind.element, _BULK_DEPTH_MAX + 1)), draw(st.sampled_from(BULK)))
    if isinstance(kind, ListOf):
        return [draw(typed(kind.element, depth + 1)) for _ in range(size)]
    if isinstance(kind, MapOf):
        return {draw(texts): draw(typed(kind.element, depth + 1)) for _ in range(size)}
    return _struct(draw, kind, depth)


def _bulk(kind: ListOf | MapOf, element: Any, size: int) -> Any:
    """Many of one element; those with names have different ones."""
    if isinstance(kind, MapOf):
        return {f"key-{number}": element for number in range(size)}
    if isinstance(element, dict):
        return [{**element, "name": f"name-{number}"} for number in range(size)]
    return [f"{element}-{number}" for number in range(size)] if isinstance(element, str) else [element] * size


def repeated(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What the strategy draws, sometimes many times."""
    return st.tuples(strategy, st.sampled_from((1, 1, 1, 1, 1, 1, 1, *BULK))).map(lambda pair: pair[0] * pair[1])


def _struct(draw: st.DrawFn, kind: StructType, depth: int) -> Document:
    if depth >= DEPTH_MAX or not kind.fields:
        return {}
    names = sorted(kind.fields)
    wanted = {name for name, field in kind.fields.items() if field.required}
    wanted.update(draw(st.lists(st.sampled_from(names), max_size=4)))
    return {name: draw(typed(kind.fields[name].type, depth + 1)) for name in sorted(wanted)}


@st.composite
def documents(draw: st.DrawFn, gvk: GroupVersionKind) -> Document:
    """An object of the kind with a usable name most of the time."""
    struct = load.kind_type(gvk)
    assert struct is not None
    document = _struct(draw, struct, 0)
    document["apiVersion"], document["kind"] = gvk.group_version.api_version, gvk.kind
    if draw(st.integers(0, 4)):
        metadata = document.get("metadata")
        document["metadata"] = {**(metadata if isinstance(metadata, dict) else {}), "name": "fuzzed"}
    return document


def as_json(value: Any) -> bytes:
    """The value as JSON, as far as it can be written."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return repr(value).replace("'", '"').encode("utf-8", "replace")


def as_yaml(value: Any) -> bytes:
    """The value as YAML in block style."""
    try:
        return yaml.dump(orjson.loads(as_json(value)), Dumper=yaml.CSafeDumper, allow_unicode=True).encode()
    except (orjson.JSONDecodeError, yaml.YAMLError):
        return as_json(value)


def as_protobuf(document: Document) -> bytes:
    """The document as protobuf, or only its envelope when it does not fit."""
    try:
        return encode_object(document)
    except Exception:  # noqa: BLE001 - ill-typed values fail the encoder in every way
        return b"k8s\x00" + as_json(document)


_SNIPPETS = (
    b"[" * 200,
    b"]",
    b"{",
    b"}",
    b'"',
    b"\\u0000",
    b"\\ud800",
    b"\xff",
    b"\x00",
    b"\n- ",
    b": ",
    b"&a *a",
    b"<<: *a",
    b"null",
    b"9" * 400,
    b"1e999",
    b",",
    b"!!binary",
    b"\xe2\x80\xa8",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    b"%00",
    b"\r\n",
)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The data with one to four changes: bits, pieces cut, doubled or moved, snippets inserted."""
    for _ in range(rng.randint(1, 4)):
        start = rng.randint(0, len(data))
        end = min(len(data), start + rng.randint(0, 24))
        match rng.randint(0, 4):
            case 0 if data:
                at = rng.randrange(len(data))
                data = data[:at] + bytes((data[at] ^ (1 << rng.randint(0, 7)),)) + data[at + 1 :]
            case 1:
                data = data[:start] + data[end:]
            case 2:
                data = data[:end] + data[start:]
            case 3:
                to = rng.randint(0, len(data))
                data = data[:to] + data[start:end] + data[to:]
            case _:
                data = data[:start] + rng.choice(_SNIPPETS) + data[start:]
    return data
