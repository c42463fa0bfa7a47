"""The tables of the dashboard: incremental results equal those of a snapshot, counted as by `dray top`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from dray.api.document import Document
from dray.dashboard import cluster_view
from dray.dashboard.cluster_view import ClusterView
from dray.dashboard.pool_templates import PoolTemplates
from dray.dashboard.rows import CARD_COLUMNS, COLUMNS, STATE_LETTERS
from dray.dashboard.summaries import summarize
from dray.sim.devices import DeviceSurvey
from dray.sim.physical_devices import physical_devices
from dray.sim.snapshot import Snapshot, kind_key
from tests.unit.sim.cluster import (
    GPU,
    device,
    device_class,
    exactly,
    resource_slice,
    taint_rule,
)

GPU_CLASS = device_class("gpu", f'device.driver == "{GPU}"')


def view_of(*documents: Document) -> ClusterView:
    view = ClusterView()
    for document in documents:
        put(view, None, document)
    refresh(view)
    return view


def put(view: ClusterView, old: Document | None, new: Document | None) -> None:
    document = new or old
    assert document is not None
    kind = kind_key(document["kind"], document["apiVersion"].rpartition("/")[0])
    view.apply(kind, *(None if item is None else summarize(kind, item) for item in (old, new)))


def refresh(view: ClusterView) -> None:
    while view.is_stale:
        view.refresh(1)


def named(view: ClusterView, table: str, key: str) -> dict[str, Any]:
    return dict(zip(COLUMNS[table], view.tables[table][key], strict=True))


def cards(view: ClusterView) -> dict[str, dict[str, Any]]:
    """The physical devices as the page puts them together."""
    states = {letter: state for state, letter in STATE_LETTERS.items()}
    found = {}
    for row in (named(view, "pools", key) for key in view.tables["pools"]):
        for position, fixed in enumerate(view.tables["shapes"][str(row["shape"])][0]):
            card = dict(zip(CARD_COLUMNS, fixed, strict=True)) | {"classes": list(fixed[1])}
            card["state"] = states[row["states"][position]]
            card["used"] = row["used"].get(str(position), float(card["state"] == "used"))
            card["segments"] = row["segments"].get(str(position), [])
            found[f"{row['pool']}/{card['name']}"] = card
    return found


def claim(name: str, *devices: str, pool: str = "a", **more: Any) -> Document:
    results = [{"request": "gpu", "driver": GPU, "pool": pool, "device": item, **more} for item in devices]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": [pod_reference(name)]} if devices else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": [exactly(1)]}},
        "status": status,
    }


def pod_reference(name: str) -> Document:
    return {"resource": "pods", "name": name, "uid": f"pod-{name}"}


def node(name: str, **status: Any) -> Document:
    labels = {"topology.kubernetes.io/zone": "z1", "example.com/rack": "r7"}
    metadata = {"name": name, "uid": name, "labels": labels}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": ready | status}


def pod(name: str, *, node_name: str = "", phase: str = "Pending", **more: Any) -> Document:
    metadata = {"name": name, "namespace": "team", "uid": f"pod-{name}", **more.pop("metadata", {})}
    spec: Document = {"containers": [{"name": "main", "image": "i", "resources": more.pop("resources", {})}]}
    if node_name:
        spec["nodeName"] = node_name
    status = {"phase": phase, **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def event(name: str, at: str, about: str, message: str = "oh", kind: str = "Warning") -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "team", "uid": name},
        "involvedObject": {"kind": "Pod", "namespace": "team", "name": about},
        "type": kind,
        "reason": "Failed",
        "message": message,
        "lastTimestamp": at,
    }


def partition(name: str, memory: str) -> Document:
    return device(name, consumesCounters=[{"counterSet": "card-0", "counters": {"memory": {"value": memory}}}])


def partitioned_slice() -> Document:
    """A card of 40 Gi that is published as a whole, a half and two quarters."""
    made = resource_slice("a-devices", GPU, nodeName="a")
    counters = {"name": "card-0", "counters": {"memory": {"value": "40Gi"}}}
    made["metadata"]["name"] = "a-counters"
    made["spec"]["sharedCounters"] = [counters]
    made["spec"].pop("devices", None)
    parts = [partition("whole", "40Gi"), partition("half", "20Gi"), partition("q0", "10Gi"), partition("q1", "10Gi")]
    devices = resource_slice("a-devices", GPU, *parts, nodeName="a")
    for item in (made, devices):
        item["spec"]["pool"] = {"name": "a", "generation": 1, "resourceSliceCount": 2}
    return {"apiVersion": "v1", "kind": "List", "items": [made, devices]}


def equals_snapshot(view: ClusterView, documents: Iterable[Document]) -> None:
    """The fractions in use are those of `dray top`."""
    refresh(view)
    expected = {
        f"{item.pool}/{item.name}": (round(item.used, 4), sorted(item.classes))
        for item in physical_devices(Snapshot.of(documents))
        if item.driver == GPU
    }
    assert {key: (card["used"], card["classes"]) for key, card in cards(view).items()} == expected


def test_a_partitioned_card_is_one_card_with_segments() -> None:
    documents = [GPU_CLASS, *partitioned_slice()["items"], claim("one", "half"), claim("two", "q0")]
    view = view_of(*documents)
    (card,) = cards(view).values()
    assert (card["name"], card["state"], card["used"], card["published"]) == ("card-0", "partly", 0.75, 4)
    assert card["segments"] == [["half", 0.5], ["q0", 0.25]]
    equals_snapshot(view, documents)


def test_changes_lead_to_the_same_as_a_fresh_view() -> None:
    slices = partitioned_slice()["items"]
    view = view_of(GPU_CLASS, *slices, claim("one", "half"))
    put(view, claim("one", "half"), claim("one"))
    put(view, None, claim("all", "whole"))
    equals_snapshot(view, [GPU_CLASS, *slices, claim("one"), claim("all", "whole")])
    (card,) = cards(view).values()
    assert (card["state"], card["used"]) == ("used", 1.0)
    put(view, claim("all", "whole"), None)
    put(view, GPU_CLASS, None)
    equals_snapshot(view, [*slices, claim("one")])
    assert view.tables["classes"] == {}
    for item in slices:
        put(view, item, None)
    refresh(view)
    assert (view.tables["pools"], view.tables["shapes"]) == ({}, {})


def test_states_of_devices() -> None:
    unhealthy = {"resources": [{"resourceID": f"{GPU}/a/gpu-3", "health": "Unhealthy", "message": "ECC"}]}
    status = [{"name": "main", "allocatedResourcesStatus": [{"name": "claim:gpu", **unhealthy}]}]
    sick = pod("sick", node_name="a", phase="Running", containerStatuses=status)
    view = view_of(
        resource_slice("a", GPU, *(device(f"gpu-{number}") for number in range(4)), nodeName="a"),
        taint_rule("rule", driver=GPU, pool="a", device="gpu-1"),
        claim("one", "gpu-0"),
        claim("admin", "gpu-2", adminAccess=True),
        sick,
    )
    assert {name: card["state"] for name, card in cards(view).items()} == {
        "a/gpu-0": "used",
        "a/gpu-1": "tainted",
        "a/gpu-2": "free",
        "a/gpu-3": "unhealthy",
    }
    put(view, sick, None)
    put(view, taint_rule("rule", driver=GPU, pool="a", device="gpu-1"), None)
    refresh(view)
    assert [card["state"] for card in cards(view).values()] == ["used", "free", "free", "free"]


@pytest.mark.parametrize(
    "claims",
    [
        (),
        (claim("one", "whole"),),
        (claim("one", "half"),),
        (claim("one", "q0"), claim("two", "q1")),
        (claim("one", "half"), claim("two", "q0"), claim("three", "q1")),
        (claim("admin", "half", adminAccess=True),),
        (claim("admin", "q0", adminAccess=True), claim("one", "q0")),
        (claim("one", "gpu-0", "gpu-1", pool="b"), claim("admin", "gpu-2", pool="b", adminAccess=True)),
        (claim("gone", "missing"),),
    ],
)
def test_pools_without_peculiarities_have_the_rows_that_any_pool_has(
    claims: tuple[Document, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = resource_slice("b", GPU, *(device(f"gpu-{number}") for number in range(3)), nodeName="b")
    documents = (GPU_CLASS, *partitioned_slice()["items"], whole, *claims)
    templated = view_of(*documents)
    assert not list(templated._survey.inventory.pools())
    monkeypatch.setattr(PoolTemplates, "find", lambda *_: None)
    plain = view_of(*documents)
    assert {plain._survey.is_plain(pool) for pool in plain._survey.inventory.pools()} == {True}
    monkeypatch.setattr(DeviceSurvey, "is_plain", lambda *_: False)
    assert view_of(*documents).tables == plain.tables == templated.tables


def test_a_rule_makes_only_the_pools_stale_that_it_selects() -> None:
    view = view_of(*(resource_slice(name, GPU, device("gpu-0"), nodeName=name) for name in ("a", "b", "c")))
    view.changes()
    put(view, None, taint_rule("rule", driver=GPU, pool="b", device="gpu-0"))
    refresh(view)
    changed, removed = view.changes()["pools"]
    assert (list(changed), removed) == ([f"{GPU}/b"], [])
    rule = named(view, "rules", "rule")
    assert (rule["driver"], rule["pool"], rule["device"]) == (GPU, "b", "gpu-0")
    assert rule["taint"].endswith(":NoSchedule")


def test_nodes_have_their_pods_and_the_resources_of_device_plugins() -> None:
    resources = {"limits": {"example.com/fpga": "2"}, "requests": {"example.com/fpga": "2"}}
    user = pod("user", node_name="a", phase="Running", resources=resources)
    amounts = {"allocatable": {"cpu": "8", "example.com/fpga": "3"}, "capacity": {"cpu": "8", "example.com/fpga": "4"}}
    view = view_of(node("a", **amounts), user, pod("done", node_name="a", phase="Succeeded"))
    row = named(view, "nodes", "a")
    assert (row["pods"], row["plugins"]) == (1, [["example.com/fpga", 3, 1, 2]])
    assert (row["zone"], row["rack"], row["ready"], row["cordoned"]) == ("z1", "r7", "True", False)
    put(view, user, {**user, "status": {"phase": "Failed"}})
    refresh(view)
    row = named(view, "nodes", "a")
    assert (row["pods"], row["plugins"]) == (0, [["example.com/fpga", 3, 1, 0]])


@pytest.mark.behaviour("TT-15")
def test_a_node_says_why_it_takes_no_pods() -> None:
    view = view_of(node("a"), node("b"))
    assert [named(view, "nodes", name)["closed"] for name in "ab"] == ["", ""]
    cordoned = node("a")
    cordoned["spec"]["unschedulable"] = True
    put(view, node("a"), cordoned)
    tainted = node("b")
    tainted["spec"]["taints"] = [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]
    put(view, node("b"), tainted)
    refresh(view)
    assert [named(view, "nodes", name)["closed"] for name in "ab"] == ["node cordoned", "node taint dedicated"]


def test_the_state_of_pods() -> None:
    waiting = [{"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "again"}}}]
    message = "0/3 nodes are available: 3 Insufficient cpu."
    conditions = [{"type": "PodScheduled", "status": "False", "message": message}]
    view = view_of(
        pod("pending", conditions=conditions),
        pod("crashing", node_name="a", phase="Running", containerStatuses=waiting),
        pod("starting", node_name="a"),
        event("old", "2026-01-01T00:00:00Z", "starting", "first"),
        event("new", "2026-01-01T00:00:09Z", "starting", "prepare failed"),
        event("late", "2026-01-01T00:00:05Z", "starting", "between"),
    )
    states = {key: (row[2], row[6]) for key, row in view.tables["pods"].items()}
    assert states == {
        "team/pending": ("pending", message),
        "team/crashing": ("error", "CrashLoopBackOff: again"),
        "team/starting": ("error", "Failed: prepare failed"),
    }


@pytest.mark.parametrize(
    ("owner", "labels", "expected"),
    [
        (None, {}, ""),
        ({"kind": "ReplicaSet", "name": "web-5d"}, {"pod-template-hash": "5d"}, "Deployment/web"),
        ({"kind": "ReplicaSet", "name": "web"}, {}, "ReplicaSet/web"),
        ({"kind": "Job", "name": "train"}, {}, "Job/train"),
    ],
)
def test_pods_are_grouped_by_workload(owner: Document | None, labels: Document, expected: str) -> None:
    references = [] if owner is None else [{**owner, "apiVersion": "apps/v1", "uid": "u", "controller": True}]
    view = view_of(pod("p", metadata={"labels": labels, "ownerReferences": references}))
    assert named(view, "pods", "team/p")["owner"] == expected


def test_only_replica_sets_that_cannot_create_pods_have_a_row() -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: q"}
    owner = [{"kind": "Deployment", "name": "web", "controller": True}]
    metadata = {"name": "web-5d", "namespace": "team", "ownerReferences": owner}
    well = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "status": {}}
    ill = {**well, "status": {"conditions": [failure]}}
    view = view_of(ill)
    assert view.tables["blocked"]["team/web-5d"] == ["Deployment", "team", "web", "FailedCreate: exceeded quota: q"]
    put(view, ill, well)
    assert view.tables["blocked"] == {}


def test_the_newest_events_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_view, "EVENTS_MAX", 2)
    monkeypatch.setattr(cluster_view, "_EVENTS_SLACK", 0)
    view = view_of(*(event(f"e{number}", f"2026-01-01T00:00:0{number}Z", "p") for number in (3, 1, 2)))
    changed, removed = view.changes()["events"]
    assert (sorted(changed), removed) == (["e2", "e3"], ["e1"])


def test_a_row_that_stays_the_same_is_no_change() -> None:
    view = view_of(node("a"))
    assert set(view.changes()) == {"nodes"}
    put(view, node("a"), {**node("a"), "spec": {"podCIDR": "10.0.0.0/24"}})
    refresh(view)
    assert view.changes() == {}


def test_a_pod_whose_claim_cannot_be_created_says_why() -> None:
    conditions = [{"type": "PodScheduled", "status": "False", "message": 'pod "team/p": ResourceClaim not created yet'}]
    refused = event("refused", "2026-01-01T00:00:01Z", "p", "exceeded quota: gpus")
    refused["reason"] = "FailedResourceClaimCreation"
    repeated = event("repeated", "2026-01-01T00:00:02Z", "p", "not created yet")
    repeated["reason"] = "FailedScheduling"
    view = view_of(pod("p", conditions=conditions), refused, repeated)
    row = named(view, "pods", "team/p")
    assert (row["state"], row["reason"]) == ("pending", "FailedResourceClaimCreation: exceeded quota: gpus")


def test_shapes_are_shared_by_pools_and_go_with_the_last() -> None:
    slices = [resource_slice(name, GPU, device("gpu-0"), device("gpu-1"), nodeName=name) for name in ("a", "b")]
    view = view_of(*slices)
    assert list(view.tables["shapes"].values()) == [[(("gpu-0", (), "a100", 1), ("gpu-1", (), "a100", 1))]]
    assert [named(view, "pools", f"{GPU}/{name}")["states"] for name in ("a", "b")] == ["ff", "ff"]
    put(view, slices[0], None)
    refresh(view)
    assert len(view.tables["shapes"]) == 1
    view.changes()
    put(view, slices[1], resource_slice("b", GPU, device("gpu-0"), nodeName="b"))
    refresh(view)
    shapes, removed = view.changes()["shapes"]
    assert ([len(row[0]) for row in shapes.values()], len(removed)) == ([1], 1)


def test_a_claim_of_the_same_name_releases_the_devices_of_the_old_one() -> None:
    slices = resource_slice("a", GPU, device("gpu-0"), device("gpu-1"), nodeName="a")
    view = view_of(slices, claim("one", "gpu-0"))
    again = claim("one", "gpu-1")
    again["metadata"]["uid"] = "uid-of-another"
    put(view, claim("one", "gpu-0"), again)
    equals_snapshot(view, [slices, again])


def test_devices_are_shown_before_their_allocations_are_known() -> None:
    view = ClusterView(are_states_known=False)
    documents = [GPU_CLASS, *partitioned_slice()["items"], resource_slice("b", GPU, device("gpu-0"), nodeName="b")]
    for document in documents:
        put(view, None, document)
    refresh(view)
    shown = cards(view)
    assert {card["state"] for card in shown.values()} == {"loading"}
    put(view, None, claim("half", "half"))
    put(view, None, claim("one", "gpu-0", pool="b"))
    refresh(view)
    assert {card["state"] for card in cards(view).values()} == {"loading"}, "a part of the claims says nothing"
    view.set_states_known()
    refresh(view)
    known = cards(view_of(*documents, claim("half", "half"), claim("one", "gpu-0", pool="b")))
    assert cards(view) == known
    fixed = ("name", "classes", "model", "published")
    assert [[card[name] for name in fixed] for card in shown.values()] == [
        [card[name] for name in fixed] for card in known.values()
    ]
