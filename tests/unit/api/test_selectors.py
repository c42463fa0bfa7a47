"""Selectors: grammar, Kubernetes' error texts, and matching."""

from __future__ import annotations

import operator

import pytest

from dray.api.document import GroupVersionKind
from dray.api.selectors import (
    EVERYTHING,
    NOTHING,
    FieldSelector,
    LabelSelector,
    SelectorError,
    unsupported_field_message,
)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("a=b", "a=b"),
        ("a==b", "a==b"),
        ("a!=b", "a!=b"),
        ("a", "a"),
        ("!a", "!a"),
        (" a in ( c , b ) ", "a in (b,c)"),
        ("a notin (b)", "a notin (b)"),
        ("b=1,a=2", "a=2,b=1"),
        ("a>1,a<3", "a>1,a<3"),
        ("a=", "a="),
        ("a in (x,,y)", "a in (,x,y)"),
        ("a in (,)", "a in ()"),
        ("in=notin", "in=notin"),
        ("example.com/a=b", "example.com/a=b"),
    ],
)
def test_label_selector_canonical_text(text: str, canonical: str) -> None:
    assert str(LabelSelector.parse(text)) == canonical


NAME_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a=b,", "found '', expected: identifier after ','"),
        ("a=b=c", "found '=', expected: ',' or 'end of string'"),
        ("!a=b", "found '=', expected: ',' or 'end of string'"),
        ("(", "found '(', expected: !, identifier, or 'end of string'"),
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("a in x", "unable to parse requirement: found 'x' expected: '('"),
        ("a in (x", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("a in (=", "unable to parse requirement: found '=', expected: ',', ')' or identifier"),
        ("!", "unable to parse requirement: found '', expected: identifier"),
        ("a=(", "unable to parse requirement: found '(', expected: identifier"),
        (
            "a in ()",
            "unable to parse requirement: values: Invalid value: []: for 'in', 'notin' operators, "
            "values set can't be empty",
        ),
        (
            "a>x",
            "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, "
            "the value must be an integer",
        ),
        ("-=b", f'unable to parse requirement: <nil>: Invalid value: "-": {NAME_RULE}'),
    ],
)
def test_label_selector_errors(text: str, error: str) -> None:
    with pytest.raises(SelectorError) as caught:
        LabelSelector.parse(text)
    assert str(caught.value) == error


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("a=b", {"a": "b"}, True),
        ("a=b", {}, False),
        ("a!=b", {}, True),
        ("a!=b", {"a": "b"}, False),
        ("a", {"a": ""}, True),
        ("!a", {"a": ""}, False),
        ("a in (b,c)", {"a": "c"}, True),
        ("a notin (b,c)", {"a": "c"}, False),
        ("a>1", {"a": "2"}, True),
        ("a>1", {"a": "x"}, False),
        ("a<1", {}, False),
        ("a=b,c!=d", {"a": "b", "c": "d"}, False),
        ("a=b,c=d", {"a": "b", "c": "d"}, True),
    ],
)
def test_label_selector_matches(text: str, labels: dict[str, str], expected: bool) -> None:
    assert LabelSelector.parse(text).matches(labels) is expected


def test_selector_document() -> None:
    selector = LabelSelector.from_document(
        {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["d"]}]}
    )
    assert str(selector) == "a=b,c notin (d)"
    assert selector.matches({"a": "b"})
    assert not selector.matches({"a": "b", "c": "d"})


def test_missing_selector_document_matches_nothing_and_empty_one_everything() -> None:
    assert LabelSelector.from_document(None) is NOTHING
    assert not NOTHING.matches({})
    assert LabelSelector.from_document({}).matches({"a": "b"})
    assert EVERYTHING.is_everything
    assert not NOTHING.is_everything


def test_unknown_operator_of_selector_document() -> None:
    with pytest.raises(SelectorError, match='"Foo" is not a valid label selector operator'):
        LabelSelector.from_document({"matchExpressions": [{"key": "a", "operator": "Foo"}]})


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("metadata.name=c1", "metadata.name=c1"),
        ("metadata.name==c1,", "metadata.name=c1"),
        ("b=1,a!=2", "a!=2,b=1"),
        (r"a=x\,y\=z\\", r"a=x\,y\=z\\"),
        ("spec.nodeName=", "spec.nodeName="),
    ],
)
def test_field_selector_canonical_text(text: str, canonical: str) -> None:
    assert str(FieldSelector.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a===", "invalid field selector: unescaped character in value: 61"),
        ("x", "invalid selector: 'x'; can't understand 'x'"),
        (r"a=\x", r"invalid field selector: invalid escape sequence: \x"),
        ("a=\\", "invalid field selector: invalid escape sequence: \\"),
    ],
)
def test_field_selector_errors(text: str, error: str) -> None:
    with pytest.raises(SelectorError) as caught:
        FieldSelector.parse(text)
    assert str(caught.value) == error


def test_field_selector_matches_and_compiles() -> None:
    fields = {"a": "1", "b": ""}
    selector = FieldSelector.parse("a=1,b!=x")
    compiled = selector.compile({name: operator.itemgetter(name) for name in fields})
    for value, expected in (("1", True), ("2", False)):
        obj = {**fields, "a": value}
        assert selector.matches(obj.__getitem__) is expected
        assert compiled(obj) is expected
    assert selector.exact("a") == "1"
    assert selector.exact("b") is None


@pytest.mark.parametrize(
    ("kind", "selectable", "text"),
    [
        (
            "ResourceClaim",
            False,
            '"spec.foo" is not a known field selector: only "metadata.name", "metadata.namespace"',
        ),
        ("Pod", True, "field label not supported: spec.foo"),
        ("Job", True, 'field label "spec.foo" not supported for Job'),
    ],
)
def test_unsupported_field(kind: str, selectable: bool, text: str) -> None:
    assert unsupported_field_message("spec.foo", GroupVersionKind("g", "v1", kind), selectable=selectable) == text


def test_selectors_of_requests_have_a_limited_number_of_requirements() -> None:
    """They are evaluated for every object, and in a watch for every event."""
    for parse in (LabelSelector.parse, FieldSelector.parse):
        assert parse(",".join(f"k{i}!=v" for i in range(256)))
        with pytest.raises(SelectorError, match="must have at most 256 requirements"):
            parse(",".join(f"k{i}!=v" for i in range(257)))
    # Values are looked up at once.
    assert LabelSelector.parse(f"k in ({','.join(f'v{i}' for i in range(5000))})").matches({"k": "v77"})
