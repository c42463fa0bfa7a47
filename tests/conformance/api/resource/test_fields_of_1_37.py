"""Fields that Kubernetes 1.37 adds to slices and claims: their rules, and their form in v1beta1."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document
from dray.api.field_errors import Path
from dray.api.validation.resource_claim import validate_claim
from dray.api.validation.resource_claim_status import validate_claim_status_update
from dray.api.validation.resource_expressions import Compilers, SelectorResult
from dray.api.validation.resource_node_allocatable import validate_node_allocatable_statuses
from dray.api.validation.resource_slice import validate_slice
from tests.conformance.api.resource.resource_rows import COMPILERS, LABEL, params, row, texts
from tests.conformance.api.resource.test_resource_slice import consumes, device, resource_slice

D0 = "spec.devices[0]"
NODE = f"{D0}.nodeAllocatableResources"
MAPPING = f"{NODE}[cpu].mapping"
OVERHEAD = f"{NODE}[cpu].overhead"
SKIP_BOTH = "NodePrepareResources cannot be skipped unless NodeUnprepareResources is also skipped"


def uses(resource: Document, name: str = "cpu") -> Document:
    """A slice with a device that uses a resource of its node."""
    return resource_slice(device(capacity={"cores": {"value": "4"}}, nodeAllocatableResources={name: resource}))


def mapped(**mapping: str) -> Document:
    return uses({"mapping": mapping})


def partition(*groups: str, **fields: Any) -> Document:
    return device(consumesCounters=[{**consumes(), "compatibilityGroups": list(groups)}], **fields)


def typed(attribute: str, *devices: Document) -> Document:
    return resource_slice(*devices, partitionTypeAttribute=attribute)


HALF = {"string": "Half"}
SLICES = {
    "cpu by capacity": row("N-36 N-37", mapped(capacityKey="cores", capacityMultiplier="1")),
    "cpu by device": row("N-37", mapped(deviceMultiplier="500m")),
    "memory": row("N-36", uses({"overhead": {"perPod": "1Gi"}}, "memory")),
    "huge pages": row("N-36", uses({"overhead": {"perContainer": "2Mi"}}, "hugepages-2Mi")),
    "mapping and overhead": row("N-36", uses({"mapping": {"deviceMultiplier": "1"}, "overhead": {"perPod": "0"}})),
    "storage": row(
        "N-36",
        uses({"overhead": {"perPod": "1"}}, "ephemeral-storage"),
        f'{NODE}[ephemeral-storage]: Invalid value: "ephemeral-storage": must be a node allocatable resource name',
    ),
    "neither mapping nor overhead": row(
        "N-36", uses({}), f"{NODE}[cpu]: Required value: at least one of mapping or overhead must be set"
    ),
    "an empty mapping": row(
        "N-37", mapped(), f"{MAPPING}: Required value: exactly one of capacityKey or deviceMultiplier must be set"
    ),
    "two mappings": row(
        "N-37",
        mapped(capacityKey="cores", capacityMultiplier="1", deviceMultiplier="1"),
        f'{MAPPING}: Invalid value: "{{capacityKey, deviceMultiplier}}": '
        "only one of capacityKey or deviceMultiplier may be set",
    ),
    "an unknown capacity": row(
        "N-37", mapped(capacityKey="gone", capacityMultiplier="1"), f'{MAPPING}.capacityKey: Not found: "gone"'
    ),
    "an empty key": row(
        "N-37",
        mapped(capacityKey="", capacityMultiplier="1"),
        f'{MAPPING}.capacityKey: Invalid value: "": capacityKey must not be an empty string',
    ),
    "a key without its multiplier": row(
        "N-37",
        mapped(capacityKey="cores"),
        f"{MAPPING}.capacityMultiplier: Required value: capacityMultiplier is required when capacityKey is set",
    ),
    "a multiplier without its key": row(
        "N-37",
        mapped(deviceMultiplier="1", capacityMultiplier="1"),
        f'{MAPPING}.capacityMultiplier: Invalid value: "1": '
        "capacityMultiplier may only be set together with capacityKey",
    ),
    "a multiplier of nothing": row(
        "N-37",
        mapped(deviceMultiplier="0"),
        f'{MAPPING}.deviceMultiplier: Invalid value: "0": must be positive',
    ),
    "an empty overhead": row(
        "N-38",
        uses({"overhead": {}}),
        f"{OVERHEAD}: Required value: at least one of perPod or perContainer must be set",
    ),
    "negative overheads": row(
        "N-38",
        uses({"overhead": {"perPod": "-1", "perContainer": "-1m"}}),
        f'{OVERHEAD}.perPod: Invalid value: "-1": must be non-negative',
        f'{OVERHEAD}.perContainer: Invalid value: "-1m": must be non-negative',
    ),
    "two groups": row("N-100", resource_slice(partition("b", "a"))),
    "three groups": row(
        "N-100",
        resource_slice(partition("a", "b", "c")),
        f"{D0}.consumesCounters[0].compatibilityGroups: Too many: 3: must have at most 2 items",
    ),
    "a group twice": row(
        "N-100",
        resource_slice(partition("a", "a")),
        f'{D0}.consumesCounters[0].compatibilityGroups[1]: Duplicate value: "a"',
    ),
    "a bad group": row(
        "N-100",
        resource_slice(partition("A")),
        f'{D0}.consumesCounters[0].compatibilityGroups[0]: Invalid value: "A": {LABEL}',
    ),
    "skip everything": row("N-105", resource_slice(skipNodeOperations=["*"])),
    "skip unprepare": row("N-105", resource_slice(skipNodeOperations=["NodeUnprepareResources"])),
    "skip prepare and everything": row("N-105", resource_slice(skipNodeOperations=["NodePrepareResources", "*"])),
    "skip prepare alone": row(
        "N-105",
        resource_slice(skipNodeOperations=["NodePrepareResources"]),
        f'spec.skipNodeOperations: Invalid value: ["NodePrepareResources"]: {SKIP_BOTH}',
    ),
    "skip the unknown": row(
        "N-105",
        resource_slice(skipNodeOperations=["Other"]),
        'spec.skipNodeOperations[0]: Unsupported value: "Other": '
        'supported values: "*", "NodePrepareResources", "NodeUnprepareResources"',
    ),
    "skip twice": row(
        "N-105",
        resource_slice(skipNodeOperations=["*", "*"]),
        'spec.skipNodeOperations[1]: Duplicate value: "*"',
    ),
    "a type": row("N-83", typed("other.example.com/type", partition(attributes={"other.example.com/type": HALF}))),
    "the driver's own type": row("N-83", typed("gpu.example.com/type", partition(attributes={"type": HALF}))),
    "the full name wins": row(
        "N-83",
        typed(
            "gpu.example.com/type",
            partition(attributes={"type": {"int": 1}, "gpu.example.com/type": HALF}),
        ),
    ),
    "a device that consumes nothing needs no type": row(
        "N-83", typed("gpu.example.com/type", partition(attributes={"type": HALF}), device("other"))
    ),
    "a type of devices that consume nothing": row(
        "N-83",
        typed("gpu.example.com/type", device()),
        'spec.partitionTypeAttribute: Invalid value: "gpu.example.com/type": '
        "may only be set on a slice which declares devices that consume counters",
    ),
    "a type that is missing": row(
        "N-83",
        typed("other.example.com/type", partition(attributes={"type": HALF})),
        f"{D0}.attributes[other.example.com/type]: Required value: must be set on a device that consumes counters",
    ),
    "a type that is a number": row(
        "N-83",
        typed("gpu.example.com/type", partition(attributes={"type": {"int": 1}})),
        f'{D0}.attributes[gpu.example.com/type]: Invalid value: "": must be a string attribute',
    ),
    "a type without domain": row(
        "N-83",
        typed("type", partition(attributes={"type": HALF})),
        'spec.partitionTypeAttribute: Invalid value: "type": '
        "a fully qualified name must be a domain and a name separated by a slash",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), params(SLICES))
def test_slices(given: Document, expected: list[str]) -> None:
    assert texts(validate_slice(given)) == expected


@pytest.mark.behaviour("N-106")
def test_skipped_operations_of_results() -> None:
    result = {"request": "r", "driver": "d.example.com", "pool": "p", "device": "d"}
    old = {"spec": {"devices": {"requests": [{"name": "r"}]}}}
    for operations, complaint in ((["*"], None), (["NodePrepareResources"], SKIP_BOTH)):
        results = [{**result, "skipNodeOperations": operations}]
        new = {**old, "status": {"allocation": {"devices": {"results": results}}}}
        errors = texts(validate_claim_status_update(new, old))
        assert [error.split(": ")[-1] for error in errors] == ([complaint] if complaint else [])


REQUEST = {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1}
ROOT = {"name": "derived/root", "expression": "device.driver"}
R0 = "spec.devices.requests[0].exactly.derivedAttributes"
UNREFERENCED = (
    "must be referenced by at least one matchAttribute or distinctAttribute constraint targeting this request"
)


def deriving(*items: Document, constraints: list[Document] | None = None) -> Document:
    request = {"name": "r", "exactly": {**REQUEST, "derivedAttributes": list(items)}}
    used = [{"matchAttribute": item["name"]} for item in items if "/" in item.get("name", "")]
    return {"spec": {"devices": {"requests": [request], "constraints": used if constraints is None else constraints}}}


def alternatives(*constraint_requests: str) -> Document:
    sub = {"name": "a", **REQUEST, "derivedAttributes": [ROOT]}
    constraint = {"matchAttribute": "derived/root", "requests": list(constraint_requests)}
    requests = [{"name": "r", "firstAvailable": [sub]}, {"name": "other", "exactly": REQUEST}]
    return {"spec": {"devices": {"requests": requests, "constraints": [constraint]}}}


CLAIMS = {
    "one": row("N-85 N-86", deriving(ROOT)),
    "distinct": row("N-86", deriving(ROOT, constraints=[{"distinctAttribute": "derived/root"}])),
    "by the request's name": row(
        "N-86", deriving(ROOT, constraints=[{"matchAttribute": "derived/root", "requests": ["r"]}])
    ),
    "by the main request": row("N-86", alternatives("r", "other")),
    "by the alternative": row("N-86", alternatives("r/a", "other")),
    "by no constraint on it": row(
        "N-86",
        alternatives("other"),
        "spec.devices.requests[0].firstAvailable[0].derivedAttributes[0].name: "
        f'Invalid value: "derived/root": {UNREFERENCED}',
    ),
    "by no constraint": row(
        "N-86", deriving(ROOT, constraints=[]), f'{R0}[0].name: Invalid value: "derived/root": {UNREFERENCED}'
    ),
    "a name without domain": row(
        "N-85",
        deriving({**ROOT, "name": "root"}),
        f'{R0}[0].name: Invalid value: "root": a fully qualified name must be a domain and a name separated by a slash',
    ),
    "twice": row(
        "N-85",
        deriving(ROOT, ROOT, constraints=[{"matchAttribute": "derived/root"}]),
        f'{R0}[1]: Duplicate value: "derived/root"',
    ),
    "without expression": row(
        "N-85", deriving({"name": "derived/root"}), f"{R0}[0].expression: Required value"
    ),
    "a long expression": row(
        "N-85",
        deriving({**ROOT, "expression": "x" * 10241}),
        f"{R0}[0].expression: Too long: may not be more than 10240 bytes",
    ),
    "33": row(
        "N-85",
        deriving(*[{**ROOT, "name": f"derived/a{i}"} for i in range(33)], constraints=[]),
        f"{R0}: Too many: 33: must have at most 32 items",
    ),
    "a bad expression": row(
        "N-87",
        deriving({**ROOT, "expression": "bad("}),
        f'{R0}[0].expression: Invalid value: "bad(": compilation failed: ERROR: <input>:1:5: Syntax error',
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), params(CLAIMS))
def test_derived_attributes(given: Document, expected: list[str]) -> None:
    assert texts(validate_claim(given, COMPILERS)) == expected


@pytest.mark.behaviour("N-88")
def test_costs_of_derived_attributes_are_added_up() -> None:
    def cost(each: int) -> list[str]:
        compilers = Compilers(COMPILERS.selector, lambda _expression: SelectorResult(cost=each))
        items = [{**ROOT, "name": f"derived/a{i}"} for i in range(2)]
        return texts(validate_claim(deriving(*items), compilers))

    assert cost(500_000) == []
    assert cost(500_001) == [
        "spec.devices: Forbidden: too complex, total cost of derived attribute CEL expressions in the claim "
        "exceeds cost limit"
    ]
    assert cost(1_000_001)[0] == f"{R0}[0].expression: Forbidden: too complex, exceeds cost limit"


STATUSES = {
    "amounts": row(
        "N-46",
        [
            {
                "resourceClaimName": "c",
                "containers": ["a", "b"],
                "mapping": [{"name": "cpu", "quantity": "1"}],
                "overhead": [{"name": "memory", "perPod": "1Gi"}],
            }
        ],
    ),
    "of another Pod's claim": row(
        "N-46",
        [{"resourceClaimName": "x"}],
        'status.s[0].resourceClaimName: Invalid value: "x": no mapping found in pod reference',
    ),
    "of no claim": row("N-46", [{}], "status.s[0].resourceClaimName: Required value"),
    "a claim twice": row(
        "N-46", [{"resourceClaimName": "c"}, {"resourceClaimName": "c"}], 'status.s[1]: Duplicate value: "c"'
    ),
    "a container twice": row(
        "N-46",
        [{"resourceClaimName": "c", "containers": ["a", "a"]}],
        'status.s[0].containers[1]: Duplicate value: "a"',
    ),
    "bad amounts": row(
        "N-46",
        [
            {
                "resourceClaimName": "c",
                "mapping": [{"name": "disk", "quantity": "-1"}],
                "overhead": [{"name": "cpu"}, {"name": "cpu", "perPod": "1"}],
            }
        ],
        'status.s[0].mapping[0].name: Invalid value: "disk": must be a node allocatable resource name',
        'status.s[0].mapping[0].quantity: Invalid value: "-1": must be non-negative',
        "status.s[0].overhead[0]: Required value: at least one of perPod or perContainer must be set",
        'status.s[0].overhead[1]: Duplicate value: "cpu"',
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), params(STATUSES))
def test_amounts_in_the_status_of_a_pod(given: list[Document], expected: list[str]) -> None:
    assert texts(validate_node_allocatable_statuses(given, frozenset({"c"}), Path("status.s"))) == expected
