"""Validation of DeviceClasses, ResourceClaimTemplates and DeviceTaintRules; names of extended resources."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dray.api import extended_resources
from dray.api.document import Document
from dray.api.validation.resource_claim import (
    validate_claim_update,
    validate_class,
    validate_template,
    validate_template_update,
)
from dray.api.validation.resource_expressions import SelectorResult
from dray.api.validation.resource_slice import validate_taint_rule, validate_taint_rule_status
from tests.conformance.api.resource.resource_rows import (
    COMPILERS,
    LABEL,
    LABEL_KEY,
    SUBDOMAIN,
    changed,
    compiles,
    params,
    row,
    texts,
)


def device_class(**spec: Any) -> Document:
    return {"metadata": {"name": "gpu"}, "spec": spec}


def config(parameters: Any) -> Document:
    return {"opaque": {"driver": "d.example.com", "parameters": parameters}}


def named(name: str) -> Document:
    return device_class(extendedResourceName=name)


BIG = config({"k": "a" * 20000})
SELECTOR = {"cel": {"expression": "bad("}}

# A row's given is (old or None, new).
CLASSES = {
    "empty": row("SP-28", (None, device_class())),
    "33 selectors": row(
        "SP-28",
        (None, device_class(selectors=[{}] * 33)),
        "spec.selectors: Too many: 33: must have at most 32 items",
    ),
    "33 configs": row(
        "SP-28", (None, device_class(config=[{}] * 33)), "spec.config: Too many: 33: must have at most 32 items"
    ),
    "new bad selector": row(
        "SP-10 SP-28",
        (None, device_class(selectors=[SELECTOR])),
        'spec.selectors[0].cel.expression: Invalid value: "bad(": compilation failed: ERROR: <input>:1:5: Syntax error',
    ),
    "stored bad selector": row("SP-28", (device_class(selectors=[SELECTOR]), device_class(selectors=[SELECTOR]))),
    "reordered selectors are new": row(
        "SP-28",
        (
            device_class(selectors=[SELECTOR, {"cel": {"expression": "true"}}]),
            device_class(selectors=[{"cel": {"expression": "true"}}, SELECTOR]),
        ),
        'spec.selectors[1].cel.expression: Invalid value: "bad(": compilation failed: ERROR: <input>:1:5: Syntax error',
    ),
    "new oversize config": row(
        "SP-12 SP-28",
        (None, device_class(config=[BIG])),
        "spec.config[0].opaque.parameters: Too long: may not be more than 10240 bytes",
    ),
    "stored oversize config": row(
        "SP-12 SP-28", (device_class(config=[BIG]), device_class(config=[BIG], selectors=[]))
    ),
    "stored config beside a new one": row(
        "SP-12 SP-28",
        (device_class(config=[BIG]), device_class(config=[BIG, config({})])),
        "spec.config[0].opaque.parameters: Too long: may not be more than 10240 bytes",
    ),
    "spec may change": row("SP-16", (device_class(), device_class(config=[config({})]))),
    "extended resource": row("XR-01", (None, named("example.com/gpu"))),
    "extended resource without domain": row(
        "XR-01",
        (None, named("gpu")),
        'spec.extendedResourceName: Invalid value: "gpu": '
        "a name must be a domain-prefixed path, such as 'example.com/my-prop'",
    ),
    "extended resource of kubernetes.io": row(
        "XR-01",
        (None, named("x.kubernetes.io/gpu")),
        'spec.extendedResourceName: Invalid value: "x.kubernetes.io/gpu": must not have "kubernetes.io/" domain',
    ),
    "extended resource named like a quota": row(
        "XR-01",
        (None, named("requests.example.com/gpu")),
        'spec.extendedResourceName: Invalid value: "requests.example.com/gpu": must not have "requests." prefix',
    ),
    "extended resource too long for a quota": row(
        "XR-01",
        (None, named("a" * 245 + "/gpu")),
        f'spec.extendedResourceName: Invalid value: "{"a" * 245}/gpu": prefix part must be no more than 253 bytes',
    ),
    "stored bad extended resource": row("XR-01", (named("gpu"), named("gpu"))),
    "extended resource just short enough": row("XR-01", (None, named("a" * 244 + "/gpu"))),
}


@pytest.mark.parametrize(("given", "expected"), params(CLASSES))
def test_class(given: tuple[Document | None, Document], expected: list[str]) -> None:
    old, new = given
    before = copy.deepcopy(given)
    assert texts(validate_class(new, compiles, old)) == expected
    assert given == before


@pytest.mark.behaviour("XR-02")
@pytest.mark.parametrize(
    ("name", "extended", "backed", "device_class_name"),
    [
        ("example.com/gpu", True, True, None),
        ("deviceclass.resource.kubernetes.io/gpu", False, True, "gpu"),
        ("deviceclass.resource.kubernetes.io/", False, False, ""),
        ("xdeviceclass.resource.kubernetes.io/gpu", False, False, None),
        ("kubernetes.io/batch-cpu", False, False, None),
        ("cpu", False, False, None),
    ],
)
def test_implicit_names(name: str, extended: bool, backed: bool, device_class_name: str | None) -> None:
    assert extended_resources.is_extended_resource_name(name) is extended
    assert extended_resources.is_dra_extended_resource_name(name) is backed
    assert extended_resources.device_class_of(name) == device_class_name


@pytest.mark.behaviour("XR-02")
def test_implicit_name_of_a_class() -> None:
    assert extended_resources.implicit_extended_resource_name("gpu") == "deviceclass.resource.kubernetes.io/gpu"


REQUEST = {"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}}


def template(metadata: Document | None = None, request: Document = REQUEST) -> Document:
    return {
        "metadata": {"name": "t", "namespace": "n"},
        "spec": {"metadata": metadata or {}, "spec": {"devices": {"requests": [request]}}},
    }


TEMPLATES = {
    "labels and annotations": row("SP-17", template({"labels": {"a": "b"}, "annotations": {"c": "d e"}})),
    "a name": row("SP-17", template({"name": "x"}), "spec.metadata.name: Forbidden: cannot be set"),
    "other metadata": row(
        "SP-17",
        template({"generateName": "x", "uid": "u", "finalizers": ["a/b"]}),
        "spec.metadata.generateName: Forbidden: cannot be set",
        "spec.metadata.uID: Forbidden: cannot be set",
        "spec.metadata.finalizers: Forbidden: cannot be set",
    ),
    "a bad label": row(
        "SP-17",
        template({"labels": {"a b": "c"}}),
        f'spec.metadata.labels: Invalid value: "a b": name part {LABEL_KEY}',
    ),
    "a bad request": row(
        "SP-08 SP-09",
        template(request={"name": "R", "exactly": {"allocationMode": "All"}}),
        f'spec.spec.devices.requests[0].name: Invalid value: "R": {LABEL}',
        "spec.spec.devices.requests[0].exactly.deviceClassName: Required value",
    ),
    "neither kind of request": row(
        "PL-01",
        template(request={"name": "r"}),
        "spec.spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required",
    ),
}


@pytest.mark.parametrize(("given", "expected"), params(TEMPLATES))
def test_template(given: Document, expected: list[str]) -> None:
    assert texts(validate_template(given, COMPILERS)) == expected


@pytest.mark.behaviour("N-92")
def test_stored_expressions_are_not_looked_at_again() -> None:
    def compile_nothing(expression: str) -> SelectorResult:
        raise AssertionError(f"{expression} was compiled")

    stored: Document = {
        "spec": {"selectors": [{"cel": {"expression": "device.gone"}}], "extendedResourceName": "example.com/a"}
    }
    changed_name = changed(stored, "spec.extendedResourceName", "example.com/b")
    assert validate_class(changed_name, compile_nothing, stored) == []
    claim = {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"selectors": stored["spec"]["selectors"]}}]}}}
    assert validate_claim_update({**claim, "metadata": {"labels": {"a": "b"}}}, claim) == []


@pytest.mark.behaviour("SP-16")
def test_template_spec_is_immutable() -> None:
    old = template({"labels": {"a": "b"}})
    new = changed(old, "spec.metadata.labels.a", "c")
    assert validate_template_update(copy.deepcopy(old), old) == []
    (error,) = texts(validate_template_update(new, old))
    assert error == "spec: Invalid value: null: field is immutable"


def rule(selector: Document | None = None, **taint: Any) -> Document:
    spec = {"taint": {"key": "k", "effect": "NoExecute", **taint}} | ({"deviceSelector": selector} if selector else {})
    return {"metadata": {"name": "t"}, "spec": spec}


RULES = {
    "all devices": row("SP-25", (None, rule())),
    "some devices": row("SP-25", (None, rule({"driver": "d.example.com", "pool": "a/b", "device": "x"}))),
    "bad selector": row(
        "SP-25",
        (None, rule({"driver": "d_", "pool": "P", "device": "a.b"})),
        f'spec.deviceSelector.driver: Invalid value: "d_": {SUBDOMAIN}',
        f'spec.deviceSelector.pool: Invalid value: "P": segment 0: {SUBDOMAIN}',
        'spec.deviceSelector.device: Invalid value: "a.b": must not contain dots',
    ),
    "no effect": row("SP-25", (None, rule(effect="")), "spec.taint.effect: Required value"),
    "unknown effect": row(
        "SP-25",
        (None, rule(effect="Some")),
        'spec.taint.effect: Unsupported value: "Some": supported values: "NoExecute", "NoSchedule", "None"',
    ),
    "stored unknown effect": row("SP-25", (rule(effect="Some"), rule(effect="Some", value="v"))),
    "nothing": row(
        "SP-25",
        (None, {"metadata": {}}),
        'spec.taint.key: Invalid value: "": name part must be non-empty',
        f'spec.taint.key: Invalid value: "": name part {LABEL_KEY}',
        "spec.taint.effect: Required value",
    ),
}


@pytest.mark.parametrize(("given", "expected"), params(RULES))
def test_taint_rule(given: tuple[Document | None, Document], expected: list[str]) -> None:
    old, new = given
    assert texts(validate_taint_rule(new, old)) == expected


def test_taint_rule_status() -> None:
    conditions = [
        {"type": f"T{i}", "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for i in range(9)
    ]
    assert validate_taint_rule_status({"status": {"conditions": conditions[:8]}}) == []
    assert texts(validate_taint_rule_status({"status": {"conditions": conditions}})) == [
        "status.conditions: Too many: 9: must have at most 8 items"
    ]
