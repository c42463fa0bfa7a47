"""ResourcePoolStatusRequests: validation, gated fields, table and role."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.api.validation.resource_pool_status import validate_pool_status_answer, validate_pool_status_request
from dray.apiserver.authorization.bootstrap import bootstrap_documents
from dray.apiserver.registry.resource.pool_status import POOL_STATUS_REQUESTS
from dray.apiserver.registry.strategy import WriteContext
from dray.apiserver.request import UserInfo
from tests.conformance.api.resource.resource_rows import SUBDOMAIN, params, row, texts

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)


def asking(**spec: Any) -> Document:
    return {"metadata": {"name": "q"}, "spec": {"driver": "gpu.example.com", **spec}}


ROWS = {
    "a driver": row("N-72", asking()),
    "everything": row("N-72", asking(poolName="a/b", limit=1000, defaultPartitionTypeAttribute="gpu.example.com/type")),
    "upper case": row("N-72", asking(driver="GPU.example.com")),
    "no driver": row("N-72", asking(driver=""), "spec.driver: Required value"),
    "a bad driver": row("N-72", asking(driver="a_b"), f'spec.driver: Invalid value: "a_b": {SUBDOMAIN}'),
    "a bad pool": row("N-72", asking(poolName="A"), f'spec.poolName: Invalid value: "A": segment 0: {SUBDOMAIN}'),
    "no pools": row("N-72", asking(limit=0), "spec.limit: Invalid value: 0: must be greater than or equal to 1"),
    "too many pools": row(
        "N-72", asking(limit=1001), "spec.limit: Invalid value: 1001: must be less than or equal to 1000"
    ),
    "a short name": row(
        "N-72",
        asking(defaultPartitionTypeAttribute="type"),
        'spec.defaultPartitionTypeAttribute: Invalid value: "type": '
        "a fully qualified name must be a domain and a name separated by a slash",
    ),
}


@pytest.mark.parametrize(("given", "expected"), params(ROWS))
def test_requests(given: Document, expected: list[str]) -> None:
    assert texts(validate_pool_status_request(given)) == expected


def pool(**fields: Any) -> Document:
    return {"driver": "gpu.example.com", "poolName": "p", "generation": 1, **fields}


def answered(*pools: Document, **status: Any) -> Document:
    return {"status": {"poolCount": len(pools), "pools": list(pools), **status}}


P0 = "status.pools[0]"
ANSWERS = {
    "counts": row("N-73", answered(pool(totalDevices=3, allocatedDevices=0, nodeName="n"))),
    "no status": row("N-73", {}),
    "no count": row("N-73", {"status": {}}, "status.poolCount: Required value"),
    "a negative count": row(
        "N-73",
        answered(poolCount=-1),
        "status.poolCount: Invalid value: -1: must be greater than or equal to 0",
    ),
    "negative devices": row(
        "N-73",
        answered(pool(availableDevices=-1)),
        f"{P0}.availableDevices: Invalid value: -1: must be greater than or equal to 0",
    ),
    "1001 pools": row(
        "N-73", answered(*[pool()] * 1001), "status.pools: Too many: 1001: must have at most 1000 items"
    ),
    "11 conditions": row(
        "N-73",
        answered(
            conditions=[
                {
                    "type": f"C{number}",
                    "status": "True",
                    "reason": "R",
                    "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
                for number in range(11)
            ]
        ),
        "status.conditions: Too many: 11: must have at most 10 items",
    ),
    "a long error": row(
        "N-78",
        answered(pool(validationError="x" * 257)),
        f"{P0}.validationError: Too long: may not be more than 256 bytes",
    ),
    "33 capacities": row(
        "N-81",
        answered(pool(shareableSummary={"capacity": [{"name": f"c{number}"} for number in range(33)]})),
        f"{P0}.shareableSummary.capacity: Too many: 33: must have at most 32 items",
    ),
    "33 types": row(
        "N-84",
        answered(pool(partitionSummary=[{"attribute": "a.io/b", "type": f"t{number}"} for number in range(33)])),
        f"{P0}.partitionSummary: Too many: 33: must have at most 32 items",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), params(ANSWERS))
def test_answers(given: Document, expected: list[str]) -> None:
    assert texts(validate_pool_status_answer(given, {})) == expected


@pytest.mark.behaviour("N-72", "N-83")
@pytest.mark.parametrize("enabled", [True, False])
def test_the_attribute_is_dropped_without_its_gate(enabled: bool) -> None:
    gates = "DRAPartitionableDevicesType=true,DRAResourcePoolStatus=true" if enabled else ""
    obj = {**asking(defaultPartitionTypeAttribute="a.io/b"), "status": {"poolCount": 1}}
    context = WriteContext(NOW, FeatureGates.parse(gates), UserInfo("alice"))
    POOL_STATUS_REQUESTS.strategy.prepare_for_create(obj, context)
    assert ("defaultPartitionTypeAttribute" in obj["spec"]) is enabled
    # Only the controller answers.
    assert "status" not in obj


def condition(kind: str) -> Document:
    return {"type": kind, "status": "True", "lastTransitionTime": "2026-01-02T11:55:00Z"}


COUNTED = [
    pool(totalDevices=4, availableDevices=1, allocatedDevices=2, unavailableDevices=1),
    pool(totalDevices=3, availableDevices=3, allocatedDevices=0, unavailableDevices=0, validationError="x"),
]


@pytest.mark.behaviour("N-74")
@pytest.mark.parametrize(
    ("status", "cells"),
    [
        (None, ["-"] * 6 + ["Pending", "-"]),
        ({"poolCount": 0, "conditions": [condition("Failed")]}, ["-"] * 6 + ["Failed", "5m"]),
        (
            {"poolCount": 2, "pools": COUNTED, "conditions": [condition("Complete")]},
            ["7", "4", "2", "1", "1", "2", "Complete", "5m"],
        ),
        (
            {"poolCount": 9, "pools": COUNTED, "conditions": [condition("Complete")]},
            ["7", "4", "2", "1", "1", "9", "Complete (2/9 pools)", "5m"],
        ),
        (
            {"poolCount": 0, "conditions": [condition("Complete")]},
            ["0", "0", "0", "0", "0", "0", "Complete", "5m"],
        ),
    ],
)
def test_table(status: Document | None, cells: list[str]) -> None:
    names = [column.name for column in POOL_STATUS_REQUESTS.columns]
    assert " ".join(names) == "Name Driver Total Available Allocated Unavailable Errors Pools Status Completed"
    request = asking() | ({} if status is None else {"status": status})
    found = [column.cell(request, NOW) for column in POOL_STATUS_REQUESTS.columns]
    assert found == ["q", "gpu.example.com", *cells]


@pytest.mark.behaviour("N-82", "N-08", "N-13")
def test_roles() -> None:
    def granted(role: str) -> set[tuple[str, str]]:
        (found,) = [
            item for item in bootstrap_documents() if item["kind"] == "ClusterRole" and item["metadata"]["name"] == role
        ]
        return {
            (resource, verb)
            for rule in found["rules"]
            if rule.get("apiGroups") == ["resource.k8s.io"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    reads = {
        (resource, verb)
        for resource in ("resourceslices", "resourceclaims", "devicetaintrules")
        for verb in ("get", "list", "watch")
    }
    own = {("resourcepoolstatusrequests", verb) for verb in ("get", "list", "watch", "delete")}
    answers = {("resourcepoolstatusrequests/status", verb) for verb in ("update", "patch")}
    assert granted("system:controller:resourcepoolstatusrequest-controller") == reads | own | answers
    for role in ("system:kube-scheduler", "system:controller:resource-claim-controller"):
        assert {("resourceclaims/binding", "update"), ("resourceclaims/binding", "patch")} <= granted(role)
    for role in ("system:kube-scheduler", "system:controller:device-taint-eviction-controller"):
        assert ("devicetaintrules", "watch") in granted(role)
