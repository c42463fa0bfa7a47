"""The compiled matcher agrees with a direct evaluation of the requirements."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from operator import itemgetter

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api.selectors import FieldRequirement, FieldSelector, LabelSelector, Operator, Requirement, SelectorError

KEYS = st.sampled_from(["a", "b", "example.com/c", "in"])
VALUES = st.sampled_from(["", "x", "y", "1", "2", "10"])
NUMBERS = st.sampled_from(["0", "1", "5"])

# The text of a set with the empty value alone reads as the empty set, in Kubernetes too.
SETS = st.sets(VALUES, min_size=1).filter(lambda values: values != {""})


@st.composite
def requirements(draw: st.DrawFn) -> Requirement:
    key, operator = draw(KEYS), draw(st.sampled_from(list(Operator)))
    if operator in (Operator.EXISTS, Operator.DOES_NOT_EXIST):
        return Requirement(key, operator)
    if operator in (Operator.IN, Operator.NOT_IN):
        return Requirement(key, operator, tuple(sorted(draw(SETS))))
    return Requirement(
        key, operator, (draw(NUMBERS if operator in (Operator.GREATER_THAN, Operator.LESS_THAN) else VALUES),)
    )


def holds(item: Requirement, labels: Mapping[str, str]) -> bool:
    there, value = item.key in labels, labels.get(item.key, "")
    number = int(value) if value.removeprefix("-").isdigit() else None
    bound = int(item.values[0]) if item.operator in (Operator.GREATER_THAN, Operator.LESS_THAN) else 0
    return {
        Operator.EXISTS: there,
        Operator.DOES_NOT_EXIST: not there,
        Operator.IN: there and value in item.values,
        Operator.EQUALS: there and value in item.values,
        Operator.DOUBLE_EQUALS: there and value in item.values,
        Operator.NOT_IN: not there or value not in item.values,
        Operator.NOT_EQUALS: not there or value not in item.values,
        Operator.GREATER_THAN: number is not None and number > bound,
        Operator.LESS_THAN: number is not None and number < bound,
    }[item.operator]


@settings(max_examples=300, deadline=None)
@given(st.lists(requirements(), max_size=4), st.dictionaries(KEYS, VALUES | st.just("-3")))
def test_compiled_selector_agrees_with_plain_evaluation(items: list[Requirement], labels: dict[str, str]) -> None:
    expected = all(holds(item, labels) for item in items)
    assert LabelSelector(items).matches(labels) is expected


@settings(max_examples=300, deadline=None)
@given(st.lists(requirements(), max_size=4))
def test_text_round_trip(items: list[Requirement]) -> None:
    selector = LabelSelector(items)
    assert LabelSelector.parse(str(selector)).requirements == selector.requirements


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab=,!()<> \\int", max_size=20))
def test_parsing_ends_in_a_selector_or_its_own_error(text: str) -> None:
    for parse in (LabelSelector.parse, FieldSelector.parse):
        with contextlib.suppress(SelectorError):
            parse(text)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b.c"]), st.sampled_from(["=", "!="]), st.text(max_size=8)), max_size=3)
)
def test_field_selector_round_trip(terms: list[tuple[str, str, str]]) -> None:
    escaped = [
        field + operator + value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")
        for field, operator, value in terms
    ]
    parsed = FieldSelector.parse(",".join(escaped))
    found = [(item.field, item.operator, item.value) for item in parsed.requirements]
    assert sorted(found) == sorted(terms)


FIELDS = ("a", "b")
FIELD_REQUIREMENTS = st.builds(
    FieldRequirement, st.sampled_from(FIELDS), st.sampled_from(["=", "!="]), st.sampled_from(["", "x", "y"])
)


@settings(max_examples=500, deadline=None)
@given(st.lists(FIELD_REQUIREMENTS, max_size=5), st.fixed_dictionaries(dict.fromkeys(FIELDS, st.sampled_from("xyz"))))
def test_compiled_field_selector_agrees_with_plain_evaluation(
    items: list[FieldRequirement], obj: dict[str, str]
) -> None:
    selector = FieldSelector(tuple(items))
    compiled = selector.compile({field: itemgetter(field) for field in FIELDS})
    assert compiled(obj) is selector.matches(obj.__getitem__)
