"""What is recognized as normal is left as it is by strict decoding."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api import strict
from dray.api.document import Document, GroupVersionKind
from dray.api.normal_form import unless_normal
from dray.api.schema.load import kind_type, kinds
from dray.api.schema.model import Field, ListOf, MapOf, Scalar, StructType, Type
from dray.api.strict import check_fields

KINDS = (
    GroupVersionKind("", "v1", "Pod"),
    GroupVersionKind("", "v1", "Node"),
    GroupVersionKind("", "v1", "Event"),
    GroupVersionKind("apps", "v1", "Deployment"),
    GroupVersionKind("resource.k8s.io", "v1", "ResourceClaim"),
    GroupVersionKind("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy"),
)
NUMBERS = st.sampled_from([0, 1, -1, 2**31, 2**63, 1.0, 1.5])
TEXTS = st.sampled_from(["", "x", "é", "\n", "0", "1", "1000m", "1.5"])
TIMES = st.sampled_from(
    [
        "2026-02-29T00:00:00Z",
        "2026-01-31T23:59:59Z",
        "2026-01-31T23:59:59Z\n",
        "2026-01-31T23:59:59+00:00",
        "2026-01-31T23:59:59.123456Z",
        "2026-01-31T23:59:59.120000Z",
        "2026-01-31t23:59:59.12Z",
        "0000-01-31T23:59:59Z",
    ]
)
QUANTITIES = st.sampled_from(["0", "1", "1.0", "100m", "1000m", "1Ki", "1024Ki", "1e3", "-1", "1Ei", "x"])
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS, TIMES),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(TEXTS, inner, max_size=2)),
    max_leaves=4,
)
SCALARS: dict[Scalar, st.SearchStrategy[Any]] = {
    Scalar.STRING: TEXTS,
    Scalar.DURATION: TEXTS,
    Scalar.INT32: NUMBERS,
    Scalar.INT64: NUMBERS,
    Scalar.BOOL: st.booleans(),
    Scalar.TIME: TIMES,
    Scalar.MICRO_TIME: TIMES,
    Scalar.QUANTITY: QUANTITIES,
}


def parts(gvk: GroupVersionKind) -> Iterator[StructType]:
    kind = kind_type(gvk)
    assert kind is not None
    for field in kind.fields.values():
        if isinstance(field.type, StructType) and field.name != "spec":
            yield field.type


PARTS = [part for gvk in KINDS for part in parts(gvk)]


@st.composite
def values(draw: st.DrawFn, kind: Type) -> Any:
    """Values of about the type: fields are missing, null, of another type or unknown now and then."""
    if draw(st.integers(0, 19)) == 19:
        return draw(ANYTHING)
    if isinstance(kind, Scalar):
        return draw(SCALARS.get(kind, ANYTHING))
    if isinstance(kind, ListOf):
        return draw(st.lists(values(kind.element), max_size=2))
    if isinstance(kind, MapOf):
        return draw(st.dictionaries(TEXTS, values(kind.element), max_size=2))
    always = [field.name for field in kind.fields.values() if field.always]
    names = draw(st.lists(st.sampled_from(sorted(kind.fields) or ["x"]), max_size=3, unique=True))
    found = {
        name: draw(values(kind.fields[name].type)) for name in dict.fromkeys((*always, *names)) if name in kind.fields
    }
    return found | ({"unknown": "x"} if draw(st.integers(0, 19)) == 19 else {})


def recognizer(struct: StructType, kept_empty: Collection[tuple[str, str]]) -> Callable[[Any], bool]:
    """Return a test whether the check of a value is left out."""
    checked: list[Any] = []
    check = unless_normal(struct, kept_empty, lambda value, _: checked.append(value))

    def is_normal(value: Any) -> bool:
        checked.clear()
        check(value, [])
        return not checked

    return is_normal


@settings(deadline=None, max_examples=400)
@given(st.data())
def test_what_is_recognized_as_normal_is_left_as_it_is(data: st.DataObject) -> None:
    struct = data.draw(st.sampled_from(PARTS))
    part = data.draw(values(struct))
    if not recognizer(struct, strict._CLEARED_BY_EMPTY)(part):
        return
    # The check of a message by itself, which only objects leave out for their parts.
    document: Document = {"part": copy.deepcopy(part)}
    assert check_fields(document, StructType("Whole", {"part": Field("part", struct)})) == []
    assert json.dumps(document) == json.dumps({"part": part})


PALETTE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 1.0, 1.5, "", "x", "1", "1000m", "10Gi", "YQ=="),
    *("2026-01-31T23:59:59Z", "2026-02-29T00:00:00Z", "2026-01-31T23:59:59.120000Z", "2026-01-31T23:59:59+00:00"),
    *([], [None], ["x"], [""], [{}], {}, {"x": None}, {"x": "y"}, {"x": ""}, {"x": "1"}, {"x": ["y"]}),
)


def messages(kind: Type, found: dict[str, StructType]) -> None:
    """Collect a type and everything below it, by name."""
    if isinstance(kind, StructType):
        if kind.name not in found:
            found[kind.name] = kind
            for field in kind.fields.values():
                messages(field.type, found)
    elif not isinstance(kind, Scalar):
        messages(kind.element, found)


def test_each_value_of_each_field_that_is_recognized_is_left_as_it_is() -> None:
    found: dict[str, StructType] = {}
    for gvk in kinds():
        for part in parts(gvk):
            messages(part, found)
    for struct in found.values():
        is_normal = recognizer(struct, strict._CLEARED_BY_EMPTY)
        whole = StructType("Whole", {"part": Field("part", struct)})
        always: Document = {field.name: {} for field in struct.fields.values() if field.always}
        for name in struct.fields:
            for value in PALETTE:
                document: Document = {"part": copy.deepcopy(always | {name: value})}
                if is_normal(document["part"]):
                    text = json.dumps(document)
                    assert check_fields(document, whole) == []
                    assert json.dumps(document) == text


CLAIM = GroupVersionKind("resource.k8s.io", "v1", "ResourceClaim")
ENTRY = {
    "manager": "kube-scheduler",
    "operation": "Update",
    "apiVersion": "resource.k8s.io/v1",
    "time": "2026-01-31T00:00:00Z",
    "fieldsType": "FieldsV1",
    "fieldsV1": {"f:status": {"f:allocation": {}}},
    "subresource": "status",
}
NORMAL: dict[str, tuple[str, Any]] = {
    "metadata": ("metadata", {"name": "a", "labels": {"a": ""}, "generation": 1, "managedFields": [ENTRY]}),
    "nothing": ("metadata", {}),
    "status": ("status", {"reservedFor": [{"resource": "pods", "name": "a", "uid": "b"}]}),
    "quantities": (
        "status",
        {
            "allocation": {
                "devices": {
                    "results": [
                        {
                            "request": "a",
                            "driver": "b",
                            "pool": "c",
                            "device": "",
                            "consumedCapacity": {"memory": "10Gi"},
                        }
                    ]
                }
            }
        },
    ),
}
OTHERS: dict[str, tuple[str, Any]] = {
    "unknown field": ("metadata", {"nam": "a"}),
    "null": ("metadata", {"creationTimestamp": None}),
    "null of any type": ("status", {"devices": [{"driver": "a", "pool": "b", "device": "c", "data": None}]}),
    "empty text": ("metadata", {"namespace": ""}),
    "empty list": ("status", {"reservedFor": []}),
    "time that is written otherwise": ("metadata", {"creationTimestamp": "2026-01-31T00:00:00+00:00"}),
    "wrong type": ("metadata", {"generation": 1.0}),
    "no message": ("metadata", "a"),
}


@pytest.mark.parametrize("name", NORMAL)
def test_normal_parts_are_recognized(name: str) -> None:
    assert is_recognized(*NORMAL[name])


@pytest.mark.parametrize("name", OTHERS)
def test_other_parts_are_not_recognized(name: str) -> None:
    assert not is_recognized(*OTHERS[name])


def is_recognized(field: str, part: Any) -> bool:
    kind = kind_type(CLAIM)
    assert kind is not None
    struct = kind.fields[field].type
    assert isinstance(struct, StructType)
    return recognizer(struct, ())(part)
