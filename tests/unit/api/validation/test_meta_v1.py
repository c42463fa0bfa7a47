"""Metadata, selectors and conditions; the texts are Kubernetes' own."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dray.api.field_errors import Path
from dray.api.validation.meta_v1 import (
    validate_conditions,
    validate_label_selector,
    validate_object_meta,
    validate_object_meta_update,
)

LABEL_KEY = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}


def texts(errors: list[Any]) -> list[str]:
    return [str(error) for error in errors]


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, []),
        ({"name": ""}, ["metadata.name: Required value: name or generateName is required"]),
        ({"name": "Bad_Name"}, [f'metadata.name: Invalid value: "Bad_Name": {SUBDOMAIN}']),
        ({"generateName": "g-"}, []),
        ({"namespace": ""}, ["metadata.namespace: Required value"]),
        ({"labels": {"a b": "c"}}, [f'metadata.labels: Invalid value: "a b": {LABEL_KEY}']),
        ({"annotations": {"Upper.example.com/Key": "any text"}}, []),
        (
            {"annotations": {"a": "x" * (256 * 1024)}},
            ["metadata.annotations: Too long: may not be more than 262144 bytes"],
        ),
        ({"generation": -1}, ["metadata.generation: Invalid value: -1: must be greater than or equal to 0"]),
        (
            {"ownerReferences": [{"kind": "Pod", "name": "p", "apiVersion": "v1"}]},
            ['metadata.ownerReferences.uid: Invalid value: "": must not be empty'],
        ),
        (
            {"finalizers": ["orphan", "foregroundDeletion"]},
            [
                'metadata.finalizers: Invalid value: ["orphan","foregroundDeletion"]: '
                "finalizer orphan and foregroundDeletion cannot be both set"
            ],
        ),
        (
            {"managedFields": [{"manager": "m", "operation": "Foo", "fieldsType": "FieldsV1"}]},
            ['metadata.managedFields[0].operation: Invalid value: "Foo": must be `Apply` or `Update`'],
        ),
    ],
)
def test_create(metadata: dict[str, Any], expected: list[str]) -> None:
    given = {"name": "x", "namespace": "ns", **metadata}
    before = copy.deepcopy(given)
    assert texts(validate_object_meta(given, namespaced=True)) == expected
    assert given == before


def test_cluster_scoped_objects_have_no_namespace() -> None:
    errors = validate_object_meta({"name": "x", "namespace": "ns"}, namespaced=False)
    assert texts(errors) == ["metadata.namespace: Forbidden: not allowed on this type"]


def test_name_rules_by_key() -> None:
    assert validate_object_meta({"name": "system:a"}, namespaced=False, name_rule="path-segment") == []
    assert validate_object_meta({"name": "a.b"}, namespaced=False, name_rule="label")


def test_one_controller() -> None:
    owners = [{**OWNER, "controller": True}, {**OWNER, "name": "q", "controller": True}]
    errors = validate_object_meta({"name": "x", "ownerReferences": owners}, namespaced=False)
    assert [error.detail for error in errors] == [
        'Only one reference can have Controller set to true. Found "true" in references for Pod/p and Pod/q'
    ]


OLD = {"name": "x", "namespace": "ns", "uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-11-15T00:00:00Z"}


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        ({}, {}, []),
        ({"uid": "v"}, {}, ['metadata.uid: Invalid value: "v": field is immutable']),
        ({"resourceVersion": ""}, {}, ['metadata.resourceVersion: Invalid value: "": must be specified for an update']),
        ({"generation": 1}, {"generation": 2}, ["metadata.generation: Invalid value: 1: must not be decremented"]),
        (
            {"deletionTimestamp": "2026-11-15T00:00:01Z"},
            {},
            ['metadata.deletionTimestamp: Invalid value: "2026-11-15T00:00:01Z": field is immutable'],
        ),
        (
            {"finalizers": ["example.com/hold", "example.com/new"], "deletionTimestamp": "t"},
            {"finalizers": ["example.com/hold"], "deletionTimestamp": "t"},
            [
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, "
                'found new finalizers []string{"example.com/new"}'
            ],
        ),
        ({"finalizers": []}, {"finalizers": ["example.com/hold"], "deletionTimestamp": None}, []),
    ],
)
def test_update(new: dict[str, Any], old: dict[str, Any], expected: list[str]) -> None:
    assert texts(validate_object_meta_update({**OLD, **new}, {**OLD, **old})) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ({"key": "a", "operator": "In", "values": ["b"]}, []),
        (
            {"key": "a", "operator": "In"},
            ["s.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'"],
        ),
        (
            {"key": "a", "operator": "Exists", "values": ["b"]},
            [
                "s.matchExpressions[0].values: Forbidden: may not be specified when `operator` is 'Exists' or "
                "'DoesNotExist'"
            ],
        ),
        (
            {"key": "a", "operator": "Foo"},
            ['s.matchExpressions[0].operator: Invalid value: "Foo": not a valid selector operator'],
        ),
    ],
)
def test_label_selector(expression: dict[str, Any], expected: list[str]) -> None:
    assert texts(validate_label_selector({"matchExpressions": [expression]}, Path("s"))) == expected


def test_conditions() -> None:
    good = {"type": "Ready", "status": "True", "lastTransitionTime": "t", "reason": "Fine"}
    assert validate_conditions([good], Path("c")) == []
    errors = validate_conditions([good, good, {"type": "X", "status": "Maybe"}], Path("c"))
    assert texts(errors) == [
        'c[1].type: Duplicate value: "Ready"',
        'c[2].status: Unsupported value: "Maybe": supported values: "False", "True", "Unknown"',
        "c[2].lastTransitionTime: Required value: must be set",
        "c[2].reason: Required value: must be set",
    ]
