"""What-if runs on a small cluster: three nodes with four GPUs each, a controller's Pods on the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from dray.api.document import Document
from dray.api.errors import InvalidError
from dray.api.features import FeatureGates
from dray.cli.simulate import lines
from dray.sim.snapshot import Snapshot, SnapshotError
from dray.sim.whatif.changes import (
    Changed,
    DeviceTaintChange,
    add_nodes,
    drain,
    remove_driver,
    remove_node,
    taint_devices,
)
from dray.sim.whatif.outcome import Outcome
from dray.sim.whatif.simulation import Run, count_fit, count_nodes, simulate
from tests.unit.sim.cluster import (
    GPU,
    claim,
    device,
    device_class,
    exactly,
    node,
    pod,
    resource_slice,
    template,
    waiting_pod,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC)
NEW_NODE = [node("new"), resource_slice("new", GPU, *(device(f"gpu-{n}") for n in range(4)), nodeName="new")]


def worker(number: int) -> list[Document]:
    """A Pod of a ReplicaSet on node-a with the claim that was made for it."""
    name = f"w-{number}"
    placed = pod(name, "node-a")
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "w", "uid": "rs", "controller": True}
    placed["metadata"]["ownerReferences"] = [owner]
    placed["spec"] |= {
        "schedulerName": "default-scheduler",
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}],
    }
    statuses = [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}]
    placed["status"] = {"phase": "Running", "resourceClaimStatuses": statuses}
    made_for = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": f"uid-{name}", "controller": True}
    held = claim(
        f"{name}-gpu",
        f"{GPU}/node-a/gpu-{number}",
        pods=(name,),
        ownerReferences=[made_for],
        annotations={"resource.kubernetes.io/pod-claim-name": "gpu"},
        finalizers=["resource.kubernetes.io/delete-protection"],
    )
    return [placed, held]


def cluster() -> Snapshot:
    documents = [device_class("gpu", f'device.driver == "{GPU}"'), template("one", exactly(1)), pod("bare", "node-a")]
    for name in ("node-a", "node-b", "node-c"):
        devices = (device(f"gpu-{number}") for number in range(4))
        documents += [node(name), resource_slice(name, GPU, *devices, nodeName=name)]
    for number in range(3):
        documents += worker(number)
    return Snapshot.of(documents)


BEFORE = cluster()


def run_of(changed: Changed | None = None) -> Run:
    return Run(BEFORE, changed or Changed(BEFORE), NOW, FeatureGates(), lambda _done, _of, _what: None)


def after(changed: Changed | None = None, manifests: Sequence[Document] = ()) -> Outcome:
    return simulate(run_of(changed), manifests)


def nodes_of(outcome: Outcome) -> dict[str, tuple[str, str]]:
    rows = [*outcome.placed, *outcome.moved, *outcome.pending]
    return {row.name: (row.before, row.node) for row in rows}


def test_without_a_change_nothing_happens() -> None:
    outcome = after()
    assert (nodes_of(outcome), outcome.lost, outcome.unchanged) == ({}, (), 4)


def test_a_pod_that_exists_is_applied_again_without_what_admission_added() -> None:
    """The manifest of a user has no token volume; a replacement would remove it, which no one may."""
    existing, manifest = pod("again"), pod("again")
    existing["spec"] |= {
        "volumes": [{"name": "kube-api-access", "emptyDir": {}}],
        "containers": [
            {"name": "c", "image": "i", "volumeMounts": [{"name": "kube-api-access", "mountPath": "/token"}]}
        ],
    }
    for item in (existing, manifest):
        del item["metadata"]["uid"]
    outcome = after(manifests=[existing, manifest])
    assert [row.name for row in outcome.placed] == ["again"]


def test_draining_moves_what_a_controller_makes_again_and_loses_the_rest() -> None:
    outcome = after(drain(BEFORE, "node-a"))
    assert {name: places[0] for name, places in nodes_of(outcome).items()} == dict.fromkeys(
        ("w-0", "w-1", "w-2"), "node-a"
    )
    assert all(row.node in ("node-b", "node-c") and len(row.devices) == 1 for row in outcome.moved)
    assert outcome.lost == ("team/bare",)
    (gpu,) = outcome.classes
    # The devices of the drained node are free, but no Pod can use them.
    assert (gpu.before.held, gpu.after.held, gpu.after.free, gpu.after.out) == (3, 3, 5, 4)


def test_draining_leaves_static_pods_and_names_the_budget_that_forbids_it() -> None:
    static = pod("proxy", "node-a")
    static["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "f00"}
    labelled = pod("bare", "node-a")
    labelled["metadata"]["labels"] = {"app": "bare"}
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep", "namespace": "team"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "bare"}}},
        "status": {"disruptionsAllowed": 0},
    }
    before = Snapshot.of([*(item for items in BEFORE.documents.values() for item in items), static, labelled, budget])
    changed = drain(before, "node-a")
    assert changed.lost == ("team/bare",)
    assert changed.notes == (
        "the disruption budget team/keep allows 0 evictions, the drain needs 1 (bare): `kubectl drain` waits until it "
        "allows them",
    )
    assert after(changed).notes == changed.notes


def local_volume(name: str, on: str) -> Document:
    names = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [on]}]
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": names}]}}
    spec = {
        "local": {"path": "/disk"},
        "storageClassName": "local",
        "volumeMode": "Filesystem",
        "persistentVolumeReclaimPolicy": "Retain",
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "nodeAffinity": affinity,
    }
    metadata = {"name": name, "uid": name}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}


@pytest.mark.behaviour("SC-06")
def test_local_volumes_are_bound_as_in_the_cluster() -> None:
    """A claim that waits for its consumer decides where the Pod goes; without a volume, the Pod waits."""
    storage = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "local", "uid": "local"},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    spec = {
        "storageClassName": "local",
        "volumeMode": "Filesystem",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    claims: list[Document] = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "team", "uid": name},
            "spec": spec,
        }
        for name in ("data-0", "data-1")
    ]
    pods = [
        waiting_pod(f"p-{n}", "one", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": f"data-{n}"}}])
        for n in range(2)
    ]
    known = [item for items in BEFORE.documents.values() for item in items]
    before = Snapshot.of([*known, storage, local_volume("pv", "node-c"), *claims, *pods])
    outcome = simulate(Run(before, Changed(before), NOW, FeatureGates(), lambda _done, _of, _what: None), ())
    assert [(row.name, row.node) for row in outcome.placed] == [("p-0", "node-c")]
    assert [row.name for row in outcome.pending] == ["p-1"]
    assert "3 nodes: didn't find available persistent volumes to bind" in outcome.pending[0].why
    assert outcome.notes == ()


def volume_claim(name: str = "data", class_name: str = "", volume: str = "") -> Document:
    spec: Document = {"storageClassName": class_name, "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem"}
    spec |= {"resources": {"requests": {"storage": "1Gi"}}} | ({"volumeName": volume} if volume else {})
    status = {"phase": "Bound" if volume else "Pending"}
    metadata = {"name": name, "namespace": "team", "uid": name}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": spec,
        "status": status,
    }


def storage_class(name: str, provisioner: str) -> Document:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "uid": name},
        "provisioner": provisioner,
        "volumeBindingMode": "Immediate",
    }


def with_volume(message: str = "") -> Document:
    """A pending Pod with a volume claim, and what the scheduler has said about it."""
    asking = waiting_pod("p", "one", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return asking | {"status": asking.get("status", {}) | ({"conditions": [condition]} if message else {})}


NOT_FOUND = '0/3 nodes are available: persistentvolumeclaim "data" not found.'
UNBOUND = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
CSI = storage_class("fast", "csi.example.com")
VOLUME_KINDS = frozenset({"PersistentVolume", "PersistentVolumeClaim", "StorageClass"})


@pytest.mark.parametrize(
    ("known", "listed", "manifests", "reason"),
    [
        ([with_volume(NOT_FOUND)], False, [], "does not exist in namespace team"),
        ([with_volume()], True, [], "does not exist in namespace team"),
        ([], True, [with_volume()], "does not exist in namespace team"),
        ([with_volume(), volume_claim("other")], False, [], "does not exist in namespace team"),
        ([with_volume(UNBOUND), volume_claim()], False, [], "which no PersistentVolume without a StorageClass suits"),
        (
            [with_volume(UNBOUND), CSI, volume_claim(class_name="fast")],
            False,
            [],
            "csi.example.com has created no volume",
        ),
        ([with_volume(UNBOUND), volume_claim(class_name="fast")], False, [], '"data"'),
        ([], True, [volume_claim(), with_volume()], "which no PersistentVolume without a StorageClass suits"),
    ],
)
def test_a_pod_without_its_volume_claim_is_pending(
    known: list[Document], listed: bool, manifests: list[Document], reason: str
) -> None:
    """As in the cluster, and as `dray explain` says: the claim is missing, or nothing binds it."""
    outcome = with_claims(known, listed, manifests)
    assert [row.name for row in outcome.placed] == []
    assert [(row.name, reason in row.why) for row in outcome.pending] == [("p", True)]
    assert outcome.notes == ()


@pytest.mark.parametrize(
    ("known", "listed", "manifests", "note"),
    [
        # Files may lack a claim or a class that exists.
        ([with_volume()], False, [], "is not in the snapshot"),
        ([with_volume(), volume_claim(class_name="fast")], False, [], "is not bound"),
        # The volume exists, although it cannot be read.
        ([with_volume(), volume_claim(volume="pv")], True, [], "is not in the snapshot"),
        # The provisioner of a claim that is only planned has not been asked yet.
        ([CSI], True, [volume_claim(class_name="fast"), with_volume()], "is not bound"),
    ],
)
def test_what_is_not_known_of_a_volume_claim_is_a_note(
    known: list[Document], listed: bool, manifests: list[Document], note: str
) -> None:
    outcome = with_claims(known, listed, manifests)
    assert [row.name for row in outcome.placed] == ["p"]
    assert [note in text for text in outcome.notes] == [True]


def test_volumes_that_are_applied_are_bound() -> None:
    volume = local_volume("pv", "node-c")
    volume["spec"]["storageClassName"] = ""
    outcome = with_claims([], True, [volume, volume_claim(), with_volume()])
    assert [(row.name, row.node) for row in outcome.placed] == [("p", "node-c")]


def with_claims(known: list[Document], listed: bool, manifests: list[Document]) -> Outcome:
    before = Snapshot.of([*(item for items in BEFORE.documents.values() for item in items), *known])
    before = replace(before, listed=VOLUME_KINDS if listed else frozenset())
    return simulate(Run(before, Changed(before), NOW, FeatureGates(), _quiet), manifests)


def test_a_quota_that_is_used_up_has_room_for_replacements() -> None:
    """The claims of evicted Pods no longer count."""
    hard = {"gpu.deviceclass.resource.k8s.io/devices": "3"}
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": "team", "uid": "quota"},
        "spec": {"hard": hard},
        "status": {"hard": hard, "used": hard},
    }
    before = Snapshot.of([*(item for items in BEFORE.documents.values() for item in items), quota])
    outcome = simulate(Run(before, drain(before, "node-a"), NOW, FeatureGates(), _quiet), ())
    assert {row.name for row in outcome.moved} == {row.name for row in after(drain(BEFORE, "node-a")).moved}
    assert outcome.pending == ()


def test_a_node_that_goes_takes_its_devices_along() -> None:
    outcome = after(remove_node(BEFORE, "node-a"))
    assert len(outcome.moved) == 3
    assert [(row.name, row.after.total) for row in outcome.nodes] == [("node-a", 0), ("node-b", 4), ("node-c", 4)]


def test_pods_that_are_too_many_wait_and_say_why() -> None:
    manifests = [template("three", exactly(3)), *(waiting_pod(f"big-{number}", "three") for number in range(4))]
    outcome = after(manifests=manifests)
    assert (len(outcome.placed), len(outcome.pending)) == (2, 2)
    assert outcome.pending[0].why.endswith("of 12 devices 9 in use, 3 usable but 3 needed on one node")


def test_a_tainted_device_moves_its_pod_only_when_the_taint_says_so() -> None:
    place = f"{GPU}/node-a/gpu-1=bad"
    stays = after(taint_devices(BEFORE, DeviceTaintChange.parse(f"{place}:NoSchedule")))
    assert (nodes_of(stays), stays.unchanged) == ({}, 4)
    moves = after(taint_devices(BEFORE, DeviceTaintChange.parse(f"{place}:NoExecute")))
    ((name, places),) = nodes_of(moves).items()
    assert (name, places[0]) == ("w-1", "node-a")
    assert places[1]


def test_without_their_driver_devices_are_not_given_again() -> None:
    outcome = after(remove_driver(BEFORE, GPU), [waiting_pod("new", "one")])
    assert [row.name for row in outcome.pending] == ["new"]
    assert outcome.unchanged == 4


def test_added_nodes_take_pods() -> None:
    changed = add_nodes(BEFORE, NEW_NODE, 2)
    outcome = after(changed, [template("four", exactly(4)), *(waiting_pod(f"p-{n}", "four") for n in range(4))])
    assert {row.node for row in outcome.placed} == {"new-1", "new-2", "node-b", "node-c"}


def test_how_many_more_fit() -> None:
    fit = count_fit(run_of(), [waiting_pod("more", "one")])
    assert (fit.count, [row.after.free for row in fit.outcome.classes]) == (9, [0])
    first = next(iter(lines(fit)))
    assert first == "9 more fit; the next one does not: 0 of 3 nodes fit: 3 nodes: all 12 devices are in use"
    assert count_fit(run_of(), [waiting_pod("more", "one")], most=5).count == 5


def test_how_many_nodes_to_add() -> None:
    manifests = [template("three", exactly(3)), *(waiting_pod(f"big-{number}", "three") for number in range(5))]
    growth = count_nodes(run_of(), manifests, NEW_NODE)
    assert (growth.nodes, growth.enough) == (3, True)
    assert next(iter(lines(growth))) == "Add 3 nodes: no Pod is pending then"


def test_nodes_that_would_not_help() -> None:
    growth = count_nodes(run_of(), [template("ten", exactly(10)), waiting_pod("huge", "ten")], NEW_NODE)
    assert (growth.nodes, growth.enough) == (0, False)
    assert next(iter(lines(growth))) == "Adding nodes does not help: with 0 more nodes, 1 Pods are still pending"


def test_the_same_run_comes_out_the_same() -> None:
    changed = drain(BEFORE, "node-a")
    assert after(changed) == after(changed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: drain(BEFORE, "node-x"), 'nodes "node-x" not found; there are: node-a, node-b, node-c'),
        (lambda: remove_driver(BEFORE, "x"), 'no devices of driver "x"; there are: gpu.example.com'),
        (lambda: DeviceTaintChange.parse("gpu"), "cannot read the taint 'gpu': expected DRIVER"),
        (lambda: DeviceTaintChange.parse("gpu=a:Sometimes"), "with an effect of NoSchedule, NoExecute, None"),
        (lambda: taint_devices(BEFORE, DeviceTaintChange.parse("x=a:NoSchedule")), "no device of x/*/*"),
        (lambda: add_nodes(BEFORE, [], 1), "a node template needs a Node"),
        (lambda: count_fit(run_of(), []), "exactly one Pod; it has 0"),
        (lambda: after(manifests=[{"apiVersion": "v1", "kind": "No", "metadata": {}}]), 'no matches for kind "No"'),
    ],
)
def test_what_cannot_be_done_is_said(change: object, message: str) -> None:
    assert callable(change)
    with pytest.raises(SnapshotError) as refused:
        change()
    assert message in str(refused.value)


def test_manifests_are_judged_as_the_server_would() -> None:
    broken = waiting_pod("x", "one")
    broken["spec"]["containers"] = []
    with pytest.raises(InvalidError, match=r"spec\.containers: Required value"):
        after(manifests=[broken])


def test_workloads_are_made_into_pods() -> None:
    labels = {"app": "train"}
    spec = waiting_pod("x", "one")["spec"]
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "train", "namespace": "team"},
        "spec": {
            "replicas": 11,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    outcome = after(manifests=[deployment])
    assert (len(outcome.placed), len(outcome.pending)) == (9, 2)
    assert all(row.name.startswith("train-") for row in outcome.placed)


def test_what_kube_scheduler_placed_stays_and_moves_with_a_note() -> None:
    """Volumes of a CSI driver are not evaluated; the Pod is neither called pending nor kept from moving."""
    placed = pod("db", "node-a")
    placed["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "sts", "controller": True}
    ]
    placed["spec"] |= {
        "schedulerName": "default-scheduler",
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
    }
    before = Snapshot.of([*(item for items in cluster().documents.values() for item in items), placed])
    unchanged = simulate(Run(before, Changed(before), NOW, FeatureGates(), _quiet), [])
    assert (unchanged.pending, unchanged.placed, unchanged.notes) == ((), (), ())
    moved = simulate(Run(before, drain(before, "node-a"), NOW, FeatureGates(), _quiet), [])
    assert "db" in {item.name for item in moved.moved}
    assert not moved.pending
    assert moved.notes == ("pod team/db: its volume claim data is not in the snapshot, and is not evaluated",)
    assert list(lines(moved))[-1] == f"Note: {moved.notes[0]}"


def _quiet(_done: int, _total: int, _text: str) -> None:
    pass
