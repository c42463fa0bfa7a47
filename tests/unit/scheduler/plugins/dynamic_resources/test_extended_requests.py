"""What containers' extended resources become as requests for devices, row by row."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from dray.api.pod_claims import FINALIZER
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.scheduler.plugins.dynamic_resources.extended_resources import (
    Wanted,
    claim_name,
    held_back,
    is_unused,
    is_used_by_others,
    make_claim,
    needs_of,
    plan_requests,
    same_requests,
)

GPU, NIC = "example.com/gpu", "example.com/nic"
IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"
CLASSES = ((GPU, "gpu"), (NIC, "nic"), (IMPLICIT, "gpu"))


def container(name: str, **requests: int | str) -> dict[str, Any]:
    names = {"gpu": GPU, "nic": NIC, "implicit": IMPLICIT}
    listed = {names.get(key, key): str(value) for key, value in requests.items()}
    return {"name": name, "image": "i", "resources": {"requests": listed, "limits": listed}}


def sidecar(name: str, **requests: int | str) -> dict[str, Any]:
    return container(name, **requests) | {"restartPolicy": "Always"}


def pod(containers: list[dict[str, Any]], init: list[dict[str, Any]] | None = None, **metadata: Any) -> Pod:
    document = {
        "metadata": {"name": "pod", "namespace": "team", "uid": "uid", **metadata},
        "spec": {"containers": containers, "initContainers": init or []},
    }
    return msgspec.convert(document, Pod)


@dataclass
class Case:
    """A Pod, the requests as (name, class, count), and the mappings as (container, resource, request)."""

    containers: list[dict[str, Any]]
    init: list[dict[str, Any]] = field(default_factory=list)
    classes: tuple[tuple[str, str], ...] = CLASSES
    requests: list[tuple[str, str, int]] = field(default_factory=list)
    mappings: list[tuple[str, str, str]] = field(default_factory=list)


CASES: dict[str, tuple[Case, tuple[str, ...]]] = {
    "nothing": (Case([container("c", cpu=1)]), ("XR-10",)),
    "zero is none": (Case([container("c", gpu=0)]), ("XR-10",)),
    "one": (
        Case([container("c", gpu=2)], requests=[("container-0-request-0", "gpu", 2)],
             mappings=[("c", GPU, "container-0-request-0")]),
        ("XR-19",),
    ),
    "the position counts all resources": (
        Case([container("c", cpu=1, memory="1Gi", gpu=1)], requests=[("container-0-request-1", "gpu", 1)],
             mappings=[("c", GPU, "container-0-request-1")]),
        ("XR-19",),
    ),
    "only those that devices serve on the node": (
        Case([container("c", gpu=1, nic=2)], classes=((NIC, "nic"),), requests=[("container-0-request-1", "nic", 2)],
             mappings=[("c", NIC, "container-0-request-1")]),
        ("XR-11", "XR-19"),
    ),
    "two containers": (
        Case([container("a", gpu=1), container("b", gpu=2)],
             requests=[("container-0-request-0", "gpu", 1), ("container-1-request-0", "gpu", 2)],
             mappings=[("a", GPU, "container-0-request-0"), ("b", GPU, "container-1-request-0")]),
        ("XR-06", "XR-19"),
    ),
    "requests are sorted as text, mappings by resource": (
        Case([container("a", nic=1), *(container(f"c{i}") for i in range(1, 10)), container("z", gpu=1)],
             requests=[("container-0-request-0", "nic", 1), ("container-10-request-0", "gpu", 1)],
             mappings=[("z", GPU, "container-10-request-0"), ("a", NIC, "container-0-request-0")]),
        ("XR-20",),
    ),
    "text order puts ten before two": (
        Case([*(container(f"c{i}") for i in range(2)), container("two", gpu=1), *(container(f"d{i}") for i in range(7)),
              container("ten", gpu=1)],
             requests=[("container-10-request-0", "gpu", 1), ("container-2-request-0", "gpu", 1)],
             mappings=[("two", GPU, "container-2-request-0"), ("ten", GPU, "container-10-request-0")]),
        ("XR-20",),
    ),
    "explicit and implicit name of one class": (
        Case([container("c", gpu=1, implicit=2)],
             requests=[("container-0-request-0", "gpu", 2), ("container-0-request-1", "gpu", 1)],
             mappings=[("c", IMPLICIT, "container-0-request-0"), ("c", GPU, "container-0-request-1")]),
        ("XR-24",),
    ),
    "an init container uses what a later container has": (
        Case([container("c", gpu=2)], [container("i", gpu=1)], requests=[("container-1-request-0", "gpu", 2)],
             mappings=[("c", GPU, "container-1-request-0"), ("i", GPU, "container-1-request-0")]),
        ("XR-21",),
    ),
    "an init container with a resource of its own": (
        Case([container("c", gpu=1)], [container("i", nic=2)],
             requests=[("container-0-request-0", "nic", 2), ("container-1-request-0", "gpu", 1)],
             mappings=[("c", GPU, "container-1-request-0"), ("i", NIC, "container-0-request-0")]),
        ("XR-21",),
    ),
    "init containers share the largest need": (
        Case([container("c")], [container("i", gpu=1), container("j", gpu=3), container("k", gpu=2)],
             requests=[("container-1-request-0", "gpu", 3)],
             mappings=[(name, GPU, "container-1-request-0") for name in "ijk"]),
        ("XR-21",),
    ),
    "what is lacking beside what is reused": (
        Case([container("c", gpu=1), container("d", gpu=1)], [container("i", gpu=5), container("j", gpu=3)],
             requests=[("container-0-request-0", "gpu", 3), ("container-2-request-0", "gpu", 1),
                       ("container-3-request-0", "gpu", 1)],
             mappings=[("c", GPU, "container-2-request-0"), ("d", GPU, "container-3-request-0"),
                       ("i", GPU, "container-2-request-0"), ("i", GPU, "container-3-request-0"),
                       ("i", GPU, "container-0-request-0"), ("j", GPU, "container-2-request-0"),
                       ("j", GPU, "container-3-request-0"), ("j", GPU, "container-0-request-0")]),
        ("XR-21", "XR-22"),
    ),
    "a sidecar is reused before it has started": (
        Case([container("c")], [container("i", gpu=1), sidecar("s", gpu=1), container("j", gpu=2)],
             requests=[("container-1-request-0", "gpu", 1), ("container-2-request-0", "gpu", 2)],
             mappings=[("s", GPU, "container-1-request-0"), ("i", GPU, "container-1-request-0"),
                       ("j", GPU, "container-2-request-0")]),
        ("XR-21",),
    ),
}  # fmt: skip


def planned(case: Case) -> Wanted:
    return plan_requests(needs_of(pod(case.containers, case.init)), case.classes)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=name, marks=pytest.mark.behaviour(*ids)) for name, (case, ids) in CASES.items()]
)
def test_requests_and_mappings(case: Case) -> None:
    wanted = planned(case)
    found = [(r.name, r.exactly.device_class_name, r.exactly.count) for r in wanted.requests if r.exactly]
    assert found == case.requests
    assert all(r.exactly is not None and r.exactly.allocation_mode == "ExactCount" for r in wanted.requests)
    assert [(m.container_name, m.resource_name, m.request_name) for m in wanted.mappings] == case.mappings


@pytest.mark.behaviour("XR-25")
@pytest.mark.parametrize(("count", "problem"), [(32, ""), (33, "number of requested devices 33 exceeds the claim lim")])
def test_a_claim_holds_so_many_devices(count: int, problem: str) -> None:
    wanted = planned(Case([container("a", gpu=count - 1), container("b", gpu=1)]))
    assert wanted.problem().startswith(problem)
    assert bool(wanted.problem()) is bool(problem)


@pytest.mark.behaviour("XR-05")
def test_the_special_claim() -> None:
    owner = pod([container("c", gpu=1)])
    wanted = plan_requests(needs_of(owner), CLASSES)
    claim = make_claim(owner, wanted.requests)
    metadata = claim.metadata
    assert re.fullmatch(r"pod-extended-resources-[bcdfghjklmnpqrstvwxz2456789]{5}", metadata.name or "")
    assert (metadata.generate_name, metadata.namespace) == ("pod-extended-resources-", "team")
    assert metadata.annotations == {"resource.kubernetes.io/extended-resource-claim": "true"}
    [reference] = metadata.owner_references
    assert (reference.kind, reference.name, reference.uid, reference.controller) == ("Pod", "pod", "uid", True)
    assert metadata.uid not in ("", "uid")
    assert same_requests(claim, wanted.requests)


@pytest.mark.behaviour("XR-05", "XR-06")
def test_the_name_is_the_pods_own_and_short_enough() -> None:
    one, again = pod([container("c")]), pod([container("c")])
    assert claim_name(one) == claim_name(again)
    assert claim_name(one) != claim_name(pod([container("c")], uid="other"))
    assert claim_name(one, 1) != claim_name(one)
    long = claim_name(pod([container("c")], name="x" * 37 + "." + "y" * 200))
    assert len(long) <= 63
    assert "." not in long


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"status": {"reservedFor": [{"resource": "pods", "name": "pod", "uid": "uid"}]}}, False),
        ({"status": {"allocation": {"devices": {"results": []}}}}, False),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, False),
        ({"finalizers": []}, False),
    ],
)
def test_a_claim_whose_creation_had_no_response_is_used_if_nothing_happened_to_it(
    change: dict[str, Any], expected: bool
) -> None:
    metadata = {"name": "claim", "namespace": "team", "finalizers": [FINALIZER]}
    metadata |= {name: value for name, value in change.items() if name != "status"}
    claim = {"metadata": metadata, "status": change.get("status", {})}
    assert is_unused(msgspec.convert(claim, ResourceClaim)) is expected


@pytest.mark.behaviour("XR-16")
def test_a_claim_is_used_by_others_if_anybody_else_has_it_reserved() -> None:
    own, other = ({"resource": "pods", "name": name, "uid": name} for name in ("uid", "other"))
    users: tuple[list[Any], ...] = ([], [own], [own, other], [other])
    claims = [msgspec.convert({"status": {"reservedFor": each}}, ResourceClaim) for each in users]
    assert [is_used_by_others(claim, pod([])) for claim in claims] == [False, False, True, True]


def test_claims_hold_back_any_number_of_devices() -> None:
    counts = [
        request.exactly.count
        for claim in held_back({"gpu": 70})
        for request in claim.spec.devices.requests
        if request.exactly is not None
    ]
    assert counts == [32, 32, 6]
