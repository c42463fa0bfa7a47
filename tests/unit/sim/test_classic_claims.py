"""Classic claims in the tools: their rows, and what they wait for."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document
from dray.sim.claims import ClaimState, claim_rows
from dray.sim.classic_claims import claims_of, driver_of, summary
from dray.sim.snapshot import CLASSIC_CLAIM, Snapshot
from tests.unit.sim.cluster import CLASSIC_DRIVER, claim, classic_claim, pod, resource_class

ON_NODE_A = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}]}
ANYWHERE = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "Exists"}]}]}
DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["acme.example.com/deletion-protection"]}
NO_ROOM = {
    "type": "Allocated",
    "status": "False",
    "reason": "NoRoom",
    "message": "all cards are in use",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
NODES = ["a", "b", "c", "d", "e", "f"]


def negotiating(*potential: str, unsuitable: tuple[str, ...] | None = None, selected: str = "") -> Document:
    scheduling: Document = {"scheduler": {"potentialNodes": list(potential), "selectedNode": selected or None}}
    if unsuitable is not None:
        scheduling["driver"] = {"unsuitableNodes": list(unsuitable)}
    return scheduling


def available(selector: Document) -> Document:
    return {"driver": {"availableOnNodes": selector}}


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (classic_claim("c"), "is pending: the scheduler selects a node once a Pod uses it"),
        (
            classic_claim("c", scheduling=negotiating("a", "b")),
            f"is pending: driver {CLASSIC_DRIVER} has to report which of nodes a, b are suitable",
        ),
        (
            classic_claim("c", scheduling=negotiating("a", "b", unsuitable=("b",))),
            f"is pending: driver {CLASSIC_DRIVER} cannot allocate it for node b",
        ),
        (
            classic_claim("c", scheduling=negotiating(*NODES, unsuitable=())),
            "is pending: the scheduler has to select one of 6 nodes",
        ),
        (
            classic_claim("c", scheduling=negotiating("a", selected="a")),
            f"is pending: driver {CLASSIC_DRIVER} has to allocate it for node a",
        ),
        (classic_claim("c", mode="Immediate"), f"is pending: driver {CLASSIC_DRIVER} has to allocate it"),
        (
            classic_claim("c", mode="Immediate", conditions=[NO_ROOM]),
            f"is pending: driver {CLASSIC_DRIVER} could not allocate it: all cards are in use",
        ),
        (
            classic_claim("c", phase="Reallocate"),
            f"is pending: driver {CLASSIC_DRIVER} has to deallocate it first: its Pod cannot use it where it is",
        ),
        (
            classic_claim("c", phase="Allocated", scheduling=available(ON_NODE_A)),
            f"is allocated by driver {CLASSIC_DRIVER} on node node-a and not in use",
        ),
        (
            classic_claim("c", "p", "q", phase="Allocated", scheduling=available(ANYWHERE)),
            f"is allocated by driver {CLASSIC_DRIVER} on some nodes and used by p, q",
        ),
        (
            classic_claim("c", "p", phase="Allocated", driverName="other.example.com"),
            "is allocated by driver other.example.com and used by p",
        ),
        (
            classic_claim("c", metadata=DELETED, phase="Allocated"),
            f"is being deleted: driver {CLASSIC_DRIVER} has to deallocate it",
        ),
        (classic_claim("c", "p", metadata=DELETED, phase="Allocated"), "is being deleted: it is used by p"),
    ],
)
def test_summary(item: Document, expected: str) -> None:
    snapshot = Snapshot.of([resource_class(), item])
    assert summary(snapshot.classic_claims[0], snapshot) == expected


def test_a_claim_without_its_class() -> None:
    snapshot = Snapshot.of([classic_claim("c", mode="Immediate")])
    (item,) = snapshot.classic_claims
    assert driver_of(item, snapshot) == ""
    assert summary(item, snapshot) == "is pending: resource class acme does not exist"


@pytest.mark.parametrize(
    ("item", "state", "node", "pods"),
    [
        (classic_claim("c"), ClaimState.PENDING, "", ()),
        (classic_claim("c", mode="Immediate"), ClaimState.PENDING, "", ()),
        (classic_claim("c", phase="Reallocate"), ClaimState.PENDING, "", ()),
        (classic_claim("c", phase="Allocated", scheduling=available(ON_NODE_A)), ClaimState.ALLOCATED, "node-a", ()),
        (classic_claim("c", "p", phase="Allocated"), ClaimState.RESERVED, "node-b", ("p",)),
        (classic_claim("c", metadata=DELETED), ClaimState.DELETING, "", ()),
    ],
)
def test_rows(item: Document, state: ClaimState, node: str, pods: tuple[str, ...]) -> None:
    (row,) = claim_rows(Snapshot.of([item, pod("p", "node-b")]))
    assert (row.name, row.requests, row.group) == ("c", ("acme",), "cdi.k8s.io")
    assert (row.state, row.node, row.pods) == (state, node, pods)


def test_claims_of_both_groups_are_listed_by_name() -> None:
    snapshot = Snapshot.of([classic_claim("b"), claim("a"), claim("c")])
    assert [(row.name, row.group) for row in claim_rows(snapshot)] == [
        ("a", "resource.k8s.io"),
        ("b", "cdi.k8s.io"),
        ("c", "resource.k8s.io"),
    ]
    assert [item["metadata"]["name"] for item in snapshot.documents[CLASSIC_CLAIM]] == ["b"]


def test_claims_of_a_pod() -> None:
    user: Any = pod("p")
    template = {"metadata": {}, "spec": {"resourceClassName": "acme"}}
    user["spec"]["resourceClaims"] = [
        {"name": "own", "template": template},
        {"name": "shared", "resourceClaimName": "shared"},
        {"name": "structured", "resourceClaimName": "a"},
        {"name": "missing", "resourceClaimName": "nowhere"},
    ]
    snapshot = Snapshot.of([user, classic_claim("p-own"), classic_claim("shared"), claim("a")])
    assert [item.metadata.name for item in claims_of(snapshot.pods[0], snapshot)] == ["p-own", "shared"]
