"""Defaults of resource.k8s.io, by version."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.defaults.resource import DEFAULTERS
from dray.api.document import Document, GroupVersionKind

NOW = datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=UTC)
NESTED = ("v1", "v1beta2")


def defaulted(version: str, kind: str, document: Document) -> Document:
    DEFAULTERS[GroupVersionKind("resource.k8s.io", version, kind)](document, NOW)
    return document


def requests(version: str, kind: str, *items: Document) -> Any:
    devices = {"requests": list(items)}
    spec = {"spec": {"devices": devices}} if kind == "ResourceClaimTemplate" else {"devices": devices}
    defaulted(version, kind, {"spec": spec})
    return devices["requests"]


KINDS = ("ResourceClaim", "ResourceClaimTemplate")
# Given and expected fields of a request.
REQUESTS: dict[str, tuple[Document, Document]] = {
    "nothing": ({}, {"allocationMode": "ExactCount", "count": 1}),
    "mode": ({"allocationMode": "ExactCount"}, {"allocationMode": "ExactCount", "count": 1}),
    "count": ({"count": 3}, {"allocationMode": "ExactCount", "count": 3}),
    "all": ({"allocationMode": "All"}, {"allocationMode": "All"}),
    "unknown mode": ({"allocationMode": "Some"}, {"allocationMode": "Some"}),
    "zero count": ({"count": 0}, {"allocationMode": "ExactCount", "count": 1}),
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", NESTED)
@pytest.mark.behaviour("SP-13")
def test_exact_request(version: str, kind: str, name: str) -> None:
    given, expected = REQUESTS[name]
    (request,) = requests(version, kind, {"name": "r", "exactly": {"deviceClassName": "c", **given}})
    assert request == {"name": "r", "exactly": {"deviceClassName": "c", **expected}}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", [*NESTED, "v1beta1"])
@pytest.mark.behaviour("PL-07")
def test_alternatives(version: str, kind: str, name: str) -> None:
    given, expected = REQUESTS[name]
    (request,) = requests(version, kind, {"name": "r", "firstAvailable": [dict(given), {"allocationMode": "All"}]})
    assert request == {"name": "r", "firstAvailable": [expected, {"allocationMode": "All"}]}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.behaviour("SP-13", "SP-15")
def test_flat_request_with_a_class(kind: str, name: str) -> None:
    given, expected = REQUESTS[name]
    (request,) = requests("v1beta1", kind, {"name": "r", "deviceClassName": "c", **given})
    assert request == {"name": "r", "deviceClassName": "c", **expected}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.behaviour("SP-15")
def test_flat_request_without_a_class_gains_nothing(kind: str) -> None:
    plain, listed = requests("v1beta1", kind, {"name": "r"}, {"name": "s", "firstAvailable": []})
    assert (plain, listed) == ({"name": "r"}, {"name": "s", "firstAvailable": []})


@pytest.mark.parametrize("version", NESTED)
@pytest.mark.behaviour("SP-13", "SP-25")
def test_toleration_operator(version: str) -> None:
    tolerations = [{"key": "a"}, {"operator": "Exists"}]
    (request,) = requests(version, "ResourceClaim", {"name": "r", "exactly": {"tolerations": tolerations}})
    assert [item["operator"] for item in request["exactly"]["tolerations"]] == ["Equal", "Exists"]
    results = [{"tolerations": [{"key": "a"}]}]
    claim = defaulted(version, "ResourceClaim", {"status": {"allocation": {"devices": {"results": results}}}})
    assert claim["status"]["allocation"]["devices"]["results"][0]["tolerations"] == [{"key": "a", "operator": "Equal"}]


@pytest.mark.parametrize(("version", "wrap"), [("v1", False), ("v1beta2", False), ("v1beta1", True)])
@pytest.mark.behaviour("SP-13", "SP-25")
def test_taint_time_is_now_in_whole_seconds(version: str, wrap: bool) -> None:
    taints: list[Document] = [{"key": "k"}, {"key": "l", "timeAdded": "2025-01-01T00:00:00Z"}]
    device = {"name": "d", "basic": {"taints": taints}} if wrap else {"name": "d", "taints": taints}
    defaulted(version, "ResourceSlice", {"spec": {"devices": [device]}})
    assert [taint["timeAdded"] for taint in taints] == ["2026-01-02T03:04:05Z", "2025-01-01T00:00:00Z"]


@pytest.mark.parametrize("version", ["v1beta2", "v1alpha3"])
@pytest.mark.behaviour("SP-01", "SP-13", "SP-25")
def test_taint_rule(version: str) -> None:
    rule = defaulted(version, "DeviceTaintRule", {"spec": {"taint": {"key": "k"}}})
    assert rule["spec"]["taint"]["timeAdded"] == "2026-01-02T03:04:05Z"


def test_structures_that_are_always_shown() -> None:
    assert defaulted("v1", "ResourceClaim", {})["spec"] == {"devices": {}}
    assert defaulted("v1", "ResourceClaimTemplate", {})["spec"] == {"metadata": {}, "spec": {"devices": {}}}
    assert defaulted("v1", "DeviceClass", {})["spec"] == {}
    assert defaulted("v1", "ResourceSlice", {})["spec"] == {"pool": {"generation": 0}}
