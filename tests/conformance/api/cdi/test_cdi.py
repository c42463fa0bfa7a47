"""The kinds of cdi.k8s.io: validation, defaults and strategies."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.defaults.other_groups import DEFAULTERS
from dray.api.document import Document, GroupVersionKind
from dray.api.features import FeatureGates
from dray.api.field_errors import FieldError
from dray.api.schema.load import kind_type
from dray.api.schema.model import ListOf, MapOf, StructType, Type
from dray.api.validation.cdi_v1alpha1 import validate_claim, validate_claim_status, validate_resource_class
from dray.apiserver.registry.cdi import DEFINITIONS
from dray.apiserver.registry.strategy import WriteContext
from dray.apiserver.request import UserInfo

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONTEXT = WriteContext(NOW, FeatureGates(), UserInfo("alice"))
BY_NAME = {item.resource: item for item in DEFINITIONS}
SUBDOMAIN = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"


def short(errors: list[FieldError]) -> list[str]:
    """Return the errors without the explanation of name patterns."""
    return [str(error).split(", and must start")[0] for error in errors]


def claim(status: Document | None = None, deleted: bool = False, **spec: Any) -> Document:
    metadata = {"name": "c", "namespace": "n"} | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {})
    return {"metadata": metadata, "spec": {"resourceClassName": "gpu", **spec}, "status": status or {}}


def user(uid: str) -> Document:
    return {"apiVersion": "v1", "kind": "Pod", "name": f"p{uid}", "uid": uid}


def allocated(**fields: Any) -> Document:
    return {"phase": "Allocated", "driverName": "gpu.acme.com", **fields}


def rows(table: dict[str, tuple[str, Any, list[str]]]) -> list[Any]:
    return [
        pytest.param(given, expected, id=name, marks=pytest.mark.behaviour(*ids.split()))
        for name, (ids, given, expected) in table.items()
    ]


@pytest.mark.behaviour("CL-01")
def test_definitions() -> None:
    assert {
        (item.group, item.versions, item.kind, item.namespaced, item.status_strategy is not None)
        for item in DEFINITIONS
    } == {
        ("cdi.k8s.io", ("v1alpha1",), "ResourceClass", False, False),
        ("cdi.k8s.io", ("v1alpha1",), "ResourceClaim", True, True),
    }


CLASSES = {
    "driver": ("CL-02", {"driverName": "gpu.acme.com"}, []),
    "parameters": ("CL-02", {"driverName": "gpu.acme.com", "parameters": {"a": [1, {"b": None}]}}, []),
    "no driver": ("CL-02", {}, ["driverName: Required value"]),
    "bad driver": ("CL-02", {"driverName": "gpu_acme"}, [f'driverName: Invalid value: "gpu_acme": {SUBDOMAIN}']),
    "driver too long": (
        "CL-02",
        {"driverName": "a" * 64},
        ["driverName: Too long: may not be more than 63 characters"],
    ),
    "parameters that are no object": (
        "CL-02",
        {"driverName": "d", "parameters": [1]},
        ['parameters: Invalid value: "<value omitted>": must be a valid JSON object'],
    ),
}


@pytest.mark.parametrize(("given", "expected"), rows(CLASSES))
def test_class(given: Document, expected: list[str]) -> None:
    assert short(validate_resource_class(given)) == expected


CLAIMS = {
    "class that does not exist": ("CL-04", claim(resourceClassName="not-there"), []),
    "immediate": ("CL-05", claim(allocationMode="Immediate"), []),
    "delayed": ("CL-05", claim(allocationMode="Delayed", parameters={}), []),
    "unknown mode": (
        "CL-05",
        claim(allocationMode="Later"),
        ['spec.allocationMode: Unsupported value: "Later": supported values: "Delayed", "Immediate"'],
    ),
    "no class": ("CL-04", claim(resourceClassName=""), ["spec.resourceClassName: Required value"]),
    "bad class": (
        "CL-04",
        claim(resourceClassName="G"),
        [f'spec.resourceClassName: Invalid value: "G": {SUBDOMAIN}'],
    ),
    "nothing": ("CL-04", {"metadata": {}}, ["spec.resourceClassName: Required value"]),
}


@pytest.mark.parametrize(("given", "expected"), rows(CLAIMS))
def test_claim(given: Document, expected: list[str]) -> None:
    assert short(validate_claim(given)) == expected


@pytest.mark.behaviour("CL-05", "CL-06", "CL-11")
def test_defaults() -> None:
    document: Document = {"spec": {"resourceClassName": "gpu"}}
    default = DEFAULTERS[GroupVersionKind("cdi.k8s.io", "v1alpha1", "ResourceClaim")]
    default(document, NOW)
    assert document == {
        "spec": {"resourceClassName": "gpu", "allocationMode": "Delayed"},
        "status": {"phase": "Pending", "userLimit": 1},
    }
    chosen = {"spec": {"allocationMode": "Immediate"}, "status": {"phase": "Allocated", "userLimit": -1}}
    before = copy.deepcopy(chosen)
    default(chosen, NOW)
    assert chosen == before


SELECTOR = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}
FAILED = {"type": "Allocated", "status": "False", "reason": "NoRoom", "lastTransitionTime": "2026-01-01T00:00:00Z"}
# Given is (old, new).
STATUSES = {
    "pending": ("CL-06", (claim(), claim({"phase": "Pending"})), []),
    "allocated": ("CL-06 CL-07 CL-10", (claim(), claim(allocated(attributes={"any": "thing"}))), []),
    "reallocate": ("CL-06", (claim(allocated()), claim(allocated(phase="Reallocate"))), []),
    "the other name of reallocate": (
        "CL-06",
        (claim(), claim(allocated(phase="Deallocate"))),
        ['status.phase: Unsupported value: "Deallocate": supported values: "Allocated", "Pending", "Reallocate"'],
    ),
    "allocated without a driver": (
        "CL-07",
        (claim(), claim({"phase": "Allocated"})),
        ["status.driverName: Required value: must be specified when `phase` is 'Allocated'"],
    ),
    "pending with a driver": ("CL-07", (claim(), claim({"phase": "Pending", "driverName": "d.example.com"})), []),
    "scheduling": (
        "CL-08",
        (
            claim(),
            claim(
                {
                    "scheduling": {
                        "scheduler": {"selectedNode": "n1", "potentialNodes": ["n1", "n2"]},
                        "driver": {"unsuitableNodes": ["n2"]},
                    }
                }
            ),
        ),
        [],
    ),
    "bad nodes": (
        "CL-08",
        (
            claim(),
            claim(
                {
                    "scheduling": {
                        "scheduler": {"selectedNode": "N", "potentialNodes": ["n1", "O"]},
                        "driver": {"unsuitableNodes": ["P"]},
                    }
                }
            ),
        ),
        [
            f'status.scheduling.scheduler.selectedNode: Invalid value: "N": {SUBDOMAIN}',
            f'status.scheduling.scheduler.potentialNodes[1]: Invalid value: "O": {SUBDOMAIN}',
            f'status.scheduling.driver.unsuitableNodes[0]: Invalid value: "P": {SUBDOMAIN}',
        ],
    ),
    "available before allocation": (
        "CL-09",
        (claim(), claim({"scheduling": {"driver": {"availableOnNodes": SELECTOR}}})),
        [],
    ),
    "available after allocation": (
        "CL-09",
        (claim(), claim(allocated(scheduling={"driver": {"availableOnNodes": SELECTOR}}))),
        [],
    ),
    "available nowhere": (
        "CL-09",
        (claim(), claim({"scheduling": {"driver": {"availableOnNodes": {}}}})),
        [
            "status.scheduling.driver.availableOnNodes.nodeSelectorTerms: Required value: "
            "must have at least one node selector term"
        ],
    ),
    "two users of many": (
        "CL-11 CL-12",
        (claim(), claim(allocated(userLimit=-1, reservedFor=[user("1"), user("2")]))),
        [],
    ),
    "as many users as allowed": (
        "CL-11",
        (claim(), claim(allocated(userLimit=2, reservedFor=[user("1"), user("2")]))),
        [],
    ),
    "more users than by default": (
        "CL-11",
        (claim(), claim(allocated(reservedFor=[user("1"), user("2")]))),
        ["status.reservedFor: Forbidden: may not have more than 1 entries"],
    ),
    "no limit of zero": (
        "CL-11",
        (claim(), claim(allocated(userLimit=0))),
        ["status.userLimit: Invalid value: 0: must be greater than zero, or -1 for any number of users"],
    ),
    "no limit of minus two": (
        "CL-11",
        (claim(), claim(allocated(userLimit=-2))),
        ["status.userLimit: Invalid value: -2: must be greater than zero, or -1 for any number of users"],
    ),
    "a user that is no Pod": (
        "CL-12",
        (claim(), claim(allocated(reservedFor=[{"apiVersion": "x/v1", "kind": "Job", "name": "j", "uid": "9"}]))),
        [],
    ),
    "a user of nothing": (
        "CL-12",
        (claim(), claim(allocated(reservedFor=[{}]))),
        [f"status.reservedFor[0].{name}: Required value" for name in ("apiVersion", "kind", "name", "uid")],
    ),
    "a user twice": (
        "CL-12",
        (claim(allocated(reservedFor=[user("1")])), claim(allocated(reservedFor=[user("1"), user("1")]))),
        ['status.reservedFor[1]: Duplicate value: "1"'],
    ),
    "a user of something unallocated": (
        "CL-12",
        (claim(), claim({"phase": "Pending", "reservedFor": [user("1")]})),
        ["status.reservedFor: Forbidden: may not be added to unless `phase` is 'Allocated'"],
    ),
    "a new user while deleting": (
        "CL-12",
        (claim(allocated(), deleted=True), claim(allocated(reservedFor=[user("1")]), deleted=True)),
        ["status.reservedFor: Forbidden: new entries may not be added while `deletionTimestamp` is set"],
    ),
    "a reason": ("CL-52", (claim(), claim({"conditions": [FAILED]})), []),
    "a reason twice": (
        "CL-52",
        (claim(), claim({"conditions": [FAILED, FAILED]})),
        ['status.conditions[1].type: Duplicate value: "Allocated"'],
    ),
    "a condition without anything": (
        "CL-52",
        (claim(), claim({"conditions": [{"type": "Allocated", "status": "False"}]})),
        [f"status.conditions[0].{name}: Required value: must be set" for name in ("lastTransitionTime", "reason")],
    ),
    "more conditions than anyone needs": (
        "CL-52",
        (claim(), claim({"conditions": [{**FAILED, "type": f"t{number}"} for number in range(9)]})),
        ["status.conditions: Too many: 9: must have at most 8 items"],
    ),
    "an old user while deleting": (
        "CL-12",
        (
            claim(allocated(userLimit=2, reservedFor=[user("1"), user("2")]), deleted=True),
            claim(allocated(userLimit=2, reservedFor=[user("2")]), deleted=True),
        ),
        [],
    ),
}


@pytest.mark.parametrize(("given", "expected"), rows(STATUSES))
def test_status(given: tuple[Document, Document], expected: list[str]) -> None:
    old, new = given
    before = copy.deepcopy(given)
    assert short(validate_claim_status(new, old)) == expected
    assert given == before


@pytest.mark.behaviour("CL-13")
def test_status_is_for_the_system() -> None:
    strategy = BY_NAME["resourceclaims"].strategy
    new = claim(allocated())
    strategy.prepare_for_create(new, CONTEXT)
    assert (new["status"], strategy.validate_create(new, CONTEXT)) == ({"phase": "Pending", "userLimit": 1}, [])
    changed = claim({"phase": "Pending"})
    old = claim(allocated(attributes={"a": "b"}))
    strategy.prepare_for_update(changed, old, CONTEXT)
    assert (changed, strategy.validate_update(changed, old, CONTEXT)) == (old, [])


@pytest.mark.behaviour("CL-03")
@pytest.mark.parametrize(
    "spec", [{"resourceClassName": "other"}, {"parameters": {"a": 1}}, {"allocationMode": "Immediate"}]
)
def test_spec_cannot_change(spec: Document) -> None:
    strategy = BY_NAME["resourceclaims"].strategy
    new = claim(**spec)
    strategy.prepare_for_update(new, claim(), CONTEXT)
    (error,) = strategy.validate_update(new, claim(), CONTEXT)
    assert (error.path, error.detail) == ("spec", "field is immutable")


@pytest.mark.behaviour("CL-08", "CL-13")
def test_status_write_keeps_the_rest() -> None:
    strategy = BY_NAME["resourceclaims"].status_strategy
    assert strategy is not None
    new = claim(allocated(), parameters={"x": 1})
    new["metadata"]["labels"] = {"a": "b"}
    strategy.prepare_for_update(new, claim(), CONTEXT)
    assert new == claim(allocated(userLimit=1))
    assert strategy.validate_update(new, claim(), CONTEXT) == []


@pytest.mark.behaviour("CL-12")
def test_a_status_is_never_written_blindly() -> None:
    strategy = BY_NAME["resourceclaims"].status_strategy
    assert strategy is not None
    assert not strategy.allow_unconditional_update


@pytest.mark.behaviour("CL-02")
def test_class_strategy() -> None:
    strategy = BY_NAME["resourceclasses"].strategy
    assert short(strategy.validate_create({"metadata": {}}, CONTEXT)) == ["driverName: Required value"]
    assert short(strategy.validate_update({"metadata": {}}, {}, CONTEXT)) == ["driverName: Required value"]


def test_cells() -> None:
    obj = claim(allocated(), allocationMode="Delayed")
    cells = [column.cell(obj, NOW) for column in BY_NAME["resourceclaims"].columns]
    assert cells == ["c", "gpu", "Delayed", "Allocated", "<unknown>"]
    obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert BY_NAME["resourceclaims"].columns[3].cell(obj, NOW) == "deleted,Allocated"


@pytest.mark.behaviour("CL-17")
def test_no_field_speaks_of_secrets() -> None:
    seen: set[str] = set()

    def names(kind: Type) -> set[str]:
        if isinstance(kind, ListOf | MapOf):
            return names(kind.element)
        if not isinstance(kind, StructType) or kind.name in seen:
            return set()
        seen.add(kind.name)
        return set(kind.fields) | {name for field in kind.fields.values() for name in names(field.type)}

    for item in DEFINITIONS:
        model = kind_type(GroupVersionKind(item.group, "v1alpha1", item.kind))
        assert model is not None
        found = names(model)
        assert "spec" in found or "driverName" in found
        assert not [name for name in found if "secret" in name.lower()]
