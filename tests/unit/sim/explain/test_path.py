"""The verdict on a Pod or workload that is stopped outside of the scheduler's filters, in one sentence."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.document import Document, NamespacedName
from dray.api.features import FeatureGates
from dray.sim.explain.answers import Stage
from dray.sim.explain.explainer import explain, explain_workload
from dray.sim.explain.subject import pod_subject
from dray.sim.explain.workload import find_workload
from dray.sim.snapshot import Snapshot, SnapshotError
from dray.sim.trial_cluster import TrialCluster, Unplaced
from tests.unit.sim.cluster import (
    GPU,
    claim,
    classic_claim,
    device,
    device_class,
    exactly,
    node,
    pod,
    resource_class,
    resource_slice,
    template,
    waiting_pod,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LONG_AGO = "2026-01-01T00:00:00Z"
CLUSTER = [
    node("node-a"),
    device_class("gpu", f'device.driver == "{GPU}"'),
    resource_slice("node-a", GPU, device("gpu-0"), device("gpu-1"), nodeName="node-a"),
    template("one", exactly(1)),
]


def event(about: Document, reason: str, message: str, **fields: Any) -> Document:
    metadata = about["metadata"]
    involved = {"kind": about["kind"], "namespace": metadata["namespace"], "name": metadata["name"]}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{reason}", "namespace": metadata["namespace"]},
        "involvedObject": involved | {"uid": metadata.get("uid", "")},
        "reason": reason,
        "message": message,
        "type": "Warning",
        "lastTimestamp": LONG_AGO,
    } | fields


def said(*documents: Document, name: str = "train") -> str:
    """The sentence about a Pod of the cluster."""
    snapshot = Snapshot.of([*CLUSTER, *documents])
    subject = pod_subject(snapshot, NamespacedName("team", name))
    answer = explain(snapshot, subject, NOW, gates=FeatureGates())
    assert answer.verdict is not None
    return answer.sentence.removeprefix(f"pod team/{name} ")


def said_of(kind: str, *documents: Document, name: str = "web") -> str:
    """The sentence about a workload."""
    snapshot = Snapshot.of([*CLUSTER, *documents])
    workload = find_workload(snapshot, kind, NamespacedName("team", name))
    answer = explain_workload(snapshot, workload, NOW, gates=FeatureGates())
    return answer.sentence.removeprefix(f"{kind} team/{name} ")


# --- Before the scheduler. ---


def test_a_gate() -> None:
    gated = waiting_pod("train", "one", schedulingGates=[{"name": "example.com/hold"}])
    assert said(gated) == (
        "is not scheduled yet: scheduling gate example.com/hold in its spec; the component that set it has to remove it"
    )


def test_a_scheduler_that_nobody_runs() -> None:
    assert said(waiting_pod("train", "one", schedulerName="default-schedular")) == (
        'waits for scheduler "default-schedular", which has handled no Pod of this cluster '
        '(did you mean "default-scheduler"?); start it, or use schedulerName default-scheduler'
    )


def test_a_scheduler_that_has_placed_other_pods_is_believed() -> None:
    other = pod("other", "node-a")
    other["spec"]["schedulerName"] = "volcano"
    assert said(waiting_pod("train", "one", schedulerName="volcano"), other).startswith("fits on 1 of 1 nodes")


def test_a_missing_template_of_a_similar_name() -> None:
    assert said(waiting_pod("train", "onne")) == (
        'waits for ResourceClaimTemplate "onne", which does not exist in namespace team (did you mean "one"?); '
        "create it, or correct resourceClaimTemplateName in the Pod"
    )


def test_a_missing_claim_that_another_namespace_has() -> None:
    wants = pod("train")
    wants["spec"] |= {"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}
    assert said(wants, claim("mine", namespace="other")) == (
        'waits for ResourceClaim "mine", which does not exist in namespace team '
        "(namespace other has one of that name); create it, or correct resourceClaimName in the Pod"
    )


def test_a_missing_class() -> None:
    request = exactly(1)
    request["exactly"]["deviceClassName"] = "gpus"
    assert said(template("bad", request), waiting_pod("train", "bad")) == (
        'waits for DeviceClass "gpus" of template team/bad, which does not exist (did you mean "gpu"?); '
        "correct deviceClassName, or create the class"
    )


def test_a_class_that_may_not_be_read_is_not_missing() -> None:
    wants = pod("train")
    wants["spec"] |= {"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}
    snapshot = Snapshot.of([wants, claim("mine")], partial={"DeviceClass": None, "Node": None})
    answer = explain(snapshot, pod_subject(snapshot, NamespacedName("team", "train")), NOW, gates=FeatureGates())
    assert answer.sentence == (
        "pod team/train is pending: no scheduler has reported why; "
        "for the cause on each node, ask an administrator to run dray explain"
    )


def test_a_claim_that_a_quota_forbids() -> None:
    waiting = waiting_pod("train", "one")
    message = (
        'PodResourceClaim gpu: resourceclaims.resource.k8s.io "train-gpu-x" is forbidden: exceeded quota: gpus, '
        "requested: gpu.deviceclass.resource.k8s.io/devices=1, used: gpu.deviceclass.resource.k8s.io/devices=4, "
        "limited: gpu.deviceclass.resource.k8s.io/devices=4"
    )
    sentence = said(waiting, event(waiting, "FailedResourceClaimCreation", message))
    assert sentence.startswith("has no claim: exceeded quota: gpus, requested: ")
    assert sentence.endswith(
        "; raise gpu.deviceclass.resource.k8s.io/devices to 5 in quota gpus, or delete what uses it in namespace team"
    )


@pytest.mark.behaviour("TT-08")
def test_no_claim_is_taken_from_a_pod_that_its_controller_would_create_again() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}

    def advice(*, of_same: bool) -> list[str]:
        held = claim("held", f"{GPU}/node-a/gpu-0", pods=("first",), uid="held")
        other = claim("other", f"{GPU}/node-a/gpu-1", pods=("second",), uid="other")
        waiting, documents = waiting_pod("train", "one"), [held, other]
        waiting["metadata"]["ownerReferences"] = [owner]
        for name, used in (("first", "held"), ("second", "other")):
            user = pod(name, "node-a")
            user["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": used}]
            user["metadata"]["ownerReferences"] = [owner] if of_same or name == "first" else []
            documents.append(user)
        snapshot = Snapshot.of([*CLUSTER, *documents, waiting])
        subject = pod_subject(snapshot, NamespacedName("team", "train"))
        return [change.text for change in explain(snapshot, subject, NOW, gates=FeatureGates()).changes]

    assert next(text.partition(" (")[0] for text in advice(of_same=False)) == "free claim team/other"
    assert not any(text.startswith("free claim") for text in advice(of_same=True))


@pytest.mark.behaviour("TT-12")
def test_changes_are_tested_without_pods_that_are_scheduled_first() -> None:
    held = [claim(f"held-{number}", f"{GPU}/node-a/gpu-{number}", uid=f"held-{number}") for number in range(2)]
    waiting = [waiting_pod(name, "one", priority=priority) for name, priority in (("first", 9), ("last", 0))]
    snapshot = Snapshot.of([*CLUSTER, *held, waiting_pod("train", "one", priority=5), *waiting])
    answer = explain(snapshot, pod_subject(snapshot, NamespacedName("team", "train")), NOW, gates=FeatureGates())
    assert answer.changes
    assert answer.notes == (
        "changes were tested without Pods that are scheduled first, and may take the devices: team/first",
    )


@pytest.mark.behaviour("TT-12")
def test_devices_that_a_plugin_has_given_out_are_a_note() -> None:
    machine = node("node-a")
    amounts = {**machine["status"]["allocatable"], "example.com/gpu": "2"}
    machine["status"] |= {"allocatable": amounts, "capacity": amounts}
    served = device_class("gpu", f'device.driver == "{GPU}"')
    served["spec"]["extendedResourceName"] = "example.com/gpu"
    user = pod("user", "node-a")
    user["spec"]["containers"][0]["resources"] = {
        "requests": {"example.com/gpu": "1"},
        "limits": {"example.com/gpu": "1"},
    }
    documents = [machine, served, *CLUSTER[2:], user, waiting_pod("train", "one")]
    snapshot = Snapshot.of(documents)
    answer = explain(snapshot, pod_subject(snapshot, NamespacedName("team", "train")), NOW, gates=FeatureGates())
    assert answer.fitting == 1
    (note,) = answer.notes
    assert note == (
        "node-a: Pods have 1 of the 2 devices as example.com/gpu, which the scheduler does not see (dray doctor)"
    )


@pytest.mark.behaviour("TT-09")
def test_a_claim_for_extended_resources_that_a_quota_forbids() -> None:
    served = device_class("gpu", f'device.driver == "{GPU}"')
    served["spec"]["extendedResourceName"] = "example.com/gpu"
    train = pod("train")
    amounts = {"example.com/gpu": "1"}
    train["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    counted = "count/resourceclaims.resource.k8s.io"
    limited = quota("0", "0") | {"spec": {"hard": {counted: "1"}}}
    limited["status"] = {"hard": {counted: "1"}, "used": {counted: "1"}}
    documents = [item for item in CLUSTER if item["kind"] != "DeviceClass"]
    snapshot = Snapshot.of([*documents, served, train, limited])
    answer = explain(snapshot, pod_subject(snapshot, NamespacedName("team", "train")), NOW, gates=FeatureGates())
    assert answer.verdict is not None
    assert answer.verdict.sentence == (
        "is pending: its claim for extended resources cannot be created: exceeded quota: small, "
        f"requested: {counted}=1, used: {counted}=1, limited: {counted}=1; "
        f"raise {counted} to 2 in quota small, or delete what uses it in namespace team"
    )
    cluster = TrialCluster(snapshot)
    (waiting,) = cluster.pending
    unplaced = cluster.place(waiting)
    assert isinstance(unplaced, Unplaced)
    assert unplaced.why.startswith("its claim for extended resources cannot be created: exceeded quota: small, ")
    raised = {**limited, "status": {"hard": {counted: "2"}, "used": {counted: "1"}}}
    other = pod("other") | {"spec": train["spec"]}
    cluster = TrialCluster(Snapshot.of([*documents, served, train, raised, other]))
    placed = [not isinstance(cluster.place(item), Unplaced) for item in cluster.pending]
    assert placed == [True, False], "the claim of the first uses up the quota"


def test_a_deployment_whose_claims_a_quota_forbids() -> None:
    """The limit that is advised is enough for all of its Pods, not for the one that is named."""
    web, web_1 = deployment(4)
    metadata = of_set("x")["metadata"]
    waiting = [waiting_pod(name, "one") for name in ("web-1-a", "web-1-b")]
    for item in waiting:
        item["metadata"] |= {"ownerReferences": metadata["ownerReferences"]}
    message = "resourceclaims is forbidden: exceeded quota: q, requested: d=2, used: d=4, limited: d=4"
    failed = [event(item, "FailedResourceClaimCreation", message) for item in waiting]
    assert said_of("deployment", web, web_1, *waiting, *failed).endswith(
        "; raise d to 12 in quota q, or delete what uses it in namespace team"
    )


def test_no_claim_controller() -> None:
    waiting = waiting_pod("train", "one")
    waiting["metadata"]["creationTimestamp"] = LONG_AGO
    other = event(pod("other"), "Scheduled", "")
    assert said(waiting, other) == (
        'has no claim from template "one" after 1d: no claim controller has acted; '
        "check that the controller manager is running"
    )


def test_no_scheduler() -> None:
    waiting = pod("train")
    waiting["metadata"]["creationTimestamp"] = LONG_AGO
    assert said(waiting) == (
        'fits, but scheduler "default-scheduler" has not handled it for 1d; check that the scheduler is running'
    )


@pytest.mark.behaviour("PE-48")
def test_a_preemptor_names_what_it_waits_for() -> None:
    waiting = waiting_pod("train", "one", priority=1000)
    waiting["status"] = {"nominatedNodeName": "node-a", "phase": "Pending"}
    victim = pod("batch", "node-a")
    victim["metadata"] |= {"deletionTimestamp": "2026-01-02T00:00:20Z", "finalizers": ["example.com/wait"]}
    held = claim("held", f"{GPU}/node-a/gpu-0", pods=("batch",))
    assert said(waiting, victim, held) == (
        "preempts Pods on node-a and waits for Pod team/batch (ends in 20s), claim team/held to go; "
        "check finalizer example.com/wait of Pod team/batch"
    )


@pytest.mark.behaviour("PE-48")
def test_a_preemptor_whose_victim_should_have_ended() -> None:
    waiting = waiting_pod("train", "one", priority=1000)
    waiting["status"] = {"nominatedNodeName": "node-a", "phase": "Pending"}
    victim = pod("batch", "node-a")
    victim["metadata"]["deletionTimestamp"] = "2026-01-01T23:58:00Z"
    assert said(waiting, victim) == (
        "preempts Pods on node-a and waits for Pod team/batch (should have ended 2m ago) to go; "
        "check that the node agent of node-a is running, which ends Pods"
    )


@pytest.mark.behaviour("PE-48", "PE-82")
def test_a_preemptor_whose_victims_are_gone_names_their_claims() -> None:
    waiting = waiting_pod("train", "one", priority=1000)
    waiting["status"] = {"nominatedNodeName": "node-a", "phase": "Pending"}
    held = claim("held", f"{GPU}/node-a/gpu-0", pods=("gone",))
    elsewhere = claim("elsewhere", f"{GPU}/node-b/gpu-0", pods=("gone",))
    used = claim("used", f"{GPU}/node-a/gpu-1", pods=("runs",))
    for item, name in ((held, "node-a"), (elsewhere, "node-b"), (used, "node-a")):
        field = {"key": "metadata.name", "operator": "In", "values": [name]}
        item["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    assert said(waiting, pod("runs", "node-a"), held, elsewhere, used) == (
        "preempts Pods on node-a and waits for claim team/held to go; "
        "check that the controller manager is running, which deallocates claims"
    )


@pytest.mark.behaviour("PE-38", "PE-48")
@pytest.mark.parametrize(
    ("priority", "sentence"),
    [
        (1000, "is pending, 0 of 1 nodes fit: node-a: kept for nominated Pod team/first"),
        (1001, "fits on 1 of 1 nodes and will be scheduled"),
    ],
)
def test_what_is_kept_for_a_nominated_pod(priority: int, sentence: str) -> None:
    """Its victims are gone, and it is about to get a device. The other device is in use."""
    first = waiting_pod("first", "one", priority=1000)
    first["status"] = {"nominatedNodeName": "node-a", "phase": "Pending"}
    used = claim("used", f"{GPU}/node-a/gpu-1", pods=("runs",))
    runs = pod("runs", "node-a")
    runs["spec"] |= {"priority": 2000, "resourceClaims": [{"name": "gpu", "resourceClaimName": "used"}]}
    found = said(first, runs, used, waiting_pod("train", "one", priority=priority))
    assert found.partition("; ")[0] == sentence


@pytest.mark.behaviour("PE-48")
def test_a_victim_names_who_took_its_place() -> None:
    victim = pod("train", "node-a")
    victim["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:20Z"
    urgent = pod("urgent")
    taker = {"kind": "Pod", "namespace": "team", "name": "urgent"}
    gone = event(victim, "Preempted", "Preempted by pod uid-urgent on node node-a", type="Normal", related=taker)
    assert said(victim, urgent, gone) == (
        "is being deleted from node-a (ends in 20s): it is preempted for Pod team/urgent, which has a higher priority"
    )


@pytest.mark.parametrize(
    ("class_name", "sentence"),
    [
        (
            "standrad",
            ', whose StorageClass "standrad" does not exist (did you mean "standard"?); '
            "correct storageClassName in a new claim, or create the class",
        ),
        (
            "standard",
            ", for which provisioner disks.example.com has created no volume; "
            "check provisioner disks.example.com: kubectl describe pvc data",
        ),
        ("", ", which no PersistentVolume without a StorageClass suits; create a PersistentVolume of 5Gi or more"),
    ],
)
def test_a_volume_claim_that_is_not_bound(class_name: str, sentence: str) -> None:
    waiting = waiting_pod("train", "one", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
    message = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    waiting["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}
    wanted: Document = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "team", "name": "data"},
        "spec": {"storageClassName": class_name, "resources": {"requests": {"storage": "5Gi"}}},
        "status": {"phase": "Pending"},
    }
    standard: Document = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "standard"},
        "provisioner": "disks.example.com",
    }
    assert said(waiting, wanted, standard) == f'waits for PersistentVolumeClaim "data"{sentence}'


def test_a_missing_volume_claim() -> None:
    waiting = waiting_pod("train", "one", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "dta"}}])
    existing = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "team"},
    }
    message = '0/1 nodes are available: persistentvolumeclaim "dta" not found.'
    waiting["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}
    assert said(waiting, existing) == (
        'waits for PersistentVolumeClaim "dta", which does not exist in namespace team (did you mean "data"?); '
        "create it, or correct claimName in the Pod"
    )


def test_what_cannot_be_evaluated_is_left_to_the_scheduler() -> None:
    waiting = waiting_pod("train", "one", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
    message = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    waiting["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}
    assert said(waiting) == (f"fits on 1 of 1 nodes as far as can be evaluated, but the scheduler reports: {message}")


def test_a_binding_condition() -> None:
    held = claim("mine", f"{GPU}/node-a/gpu-0", pods=("train",))
    result = held["status"]["allocation"]["devices"]["results"][0]
    result |= {"bindingConditions": ["Attached"], "bindingFailureConditions": ["Failed"]}
    wants = pod("train")
    wants["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "mine"}]
    assert said(wants, held) == (
        "has device gpu.example.com/node-a/gpu-0 and is bound when its condition Attached is true; "
        "wait for driver gpu.example.com to set it"
    )


# --- On the node. ---


def placed(*statuses: Document, **status: Any) -> Document:
    found = pod("train", "node-a")
    containers = [{"name": "c", "image": "i", "restartCount": 0} | item for item in statuses]
    found["status"] = {"phase": "Pending", "containerStatuses": containers} | status
    return found


def waits(reason: str, message: str = "") -> Document:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


def test_a_failed_prepare() -> None:
    train = placed(waits("ContainerCreating"))
    train["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "c"}]
    message = "Failed to prepare dynamic resources: prepare claim c: no such card"
    assert said(
        train,
        claim("c", f"{GPU}/node-a/gpu-0", pods=("train",)),
        event(train, "FailedPrepareDynamicResources", message),
    ) == (f"is on node-a, but its devices cannot be prepared: {message}; check driver gpu.example.com on node-a")


def test_a_failed_prepare_that_is_over() -> None:
    train = placed({"state": {"running": {}}, "ready": True}, conditions=[{"type": "Ready", "status": "True"}])
    assert said(train, event(train, "FailedPrepareDynamicResources", "x")) == "is running on node-a"


def test_a_missing_image() -> None:
    train = placed(waits("ImagePullBackOff", 'Back-off pulling image "i"'))
    images = node("node-a")
    images["status"]["images"] = [{"names": ["i2"]}]
    snapshot = Snapshot.of([images, train])
    answer = explain(snapshot, pod_subject(snapshot, NamespacedName("team", "train")), NOW, gates=FeatureGates())
    assert answer.sentence == (
        'pod team/train has no image i for container c on node-a: Back-off pulling image "i"; '
        'use image "i2", which is on the node'
    )


@pytest.mark.parametrize(
    ("ended", "text"),
    [
        ({"exitCode": 3}, "ended 4 times, last with exit code 3"),
        ({"exitCode": 137, "reason": "OOMKilled"}, "was killed 4 times (OOMKilled): it may need more memory"),
    ],
)
def test_a_crash_loop(ended: Document, text: str) -> None:
    train = placed(waits("CrashLoopBackOff") | {"restartCount": 4, "lastState": {"terminated": ended}})
    assert said(train) == (
        f"is in a crash loop: container c on node-a {text}; read kubectl logs -n team train -c c --previous"
    )


def test_a_command_that_does_not_exist() -> None:
    ended = {"exitCode": 128, "reason": "StartError", "message": 'exec: "nosuch": not found'}
    train = placed(waits("CrashLoopBackOff") | {"restartCount": 4, "lastState": {"terminated": ended}})
    assert said(train) == 'cannot start container c on node-a: exec: "nosuch": not found; correct its command'


def test_a_missing_volume() -> None:
    train = placed(waits("ContainerCreating"))
    message = 'MountVolume.SetUp failed for volume "v": configmap "settings" not found'
    assert said(train, event(train, "FailedMount", message)) == (
        f"is on node-a, but a volume is missing: {message}; "
        "create what the volume refers to, or correct the Pod's volumes"
    )


def test_a_probe() -> None:
    train = placed({"state": {"running": {}}, "ready": False}, phase="Running")
    # Of a probe's output, which may quote secrets, a snapshot keeps the status code.
    problem = "Readiness probe failed: HTTP probe failed with statuscode: 503"
    assert said(train, event(train, "Unhealthy", problem)) == (
        f"is running but not ready: container c on node-a: {problem}; correct the probe, or what it checks"
    )


def test_a_rejected_pod() -> None:
    train = placed(phase="Failed", reason="UnexpectedAdmissionError", message="Allocate failed: no devices")
    assert said(train) == (
        "has failed: UnexpectedAdmissionError: Allocate failed: no devices; "
        "delete it, so that it is created again, and check the device plugin on the node"
    )


def test_a_node_that_is_not_ready() -> None:
    train = placed(waits("ContainerCreating"))
    sick = node("node-a")
    ready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": LONG_AGO}
    sick["status"]["conditions"] = [ready]
    snapshot = Snapshot.of([sick, train])
    answer = explain(snapshot, pod_subject(snapshot, NamespacedName("team", "train")), NOW, gates=FeatureGates())
    assert answer.verdict is not None
    assert answer.verdict.stage is Stage.NODE
    assert answer.verdict.text == "is on node-a, which is not ready since 1d (NodeStatusUnknown)"


# --- Workloads. ---


def deployment(replicas: int = 3, **spec: Any) -> list[Document]:
    uid = {"uid": "d"}
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": True}
    metadata = {"namespace": "team", "name": "web"}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata | uid,
            "spec": {"replicas": replicas} | spec,
        },
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": metadata | {"name": "web-1", "uid": "r", "ownerReferences": [owner]},
            "spec": {"replicas": replicas},
        },
    ]


def quota(used: str, hard: str) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"namespace": "team", "name": "small"},
        "spec": {"hard": {"pods": hard}},
        "status": {"hard": {"pods": hard}, "used": {"pods": used}},
    }


EXCEEDED = 'pods "web-1-x" is forbidden: exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1'


def of_set(name: str, **fields: Any) -> Document:
    made = pod(name)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "r", "controller": True}
    made["metadata"]["ownerReferences"] = [owner]
    return made | fields


@pytest.mark.parametrize("by", ["condition", "event"])
def test_a_deployment_that_a_quota_stops(by: str) -> None:
    web, web_1 = deployment()
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": EXCEEDED}
    documents = [web, web_1, of_set("web-1-a", spec=pod("x", "node-a")["spec"]), quota("1", "1")]
    if by == "condition":
        web_1["status"] = {"conditions": [failure]}
    else:
        documents.append(event(web_1, "FailedCreate", f"Error creating: {EXCEEDED}"))
    assert said_of("deployment", *documents) == (
        "has 1 of 3 Pods: exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1; "
        "raise pods to 3 in quota small, or delete what uses it in namespace team"
    )


@pytest.mark.behaviour("TT-03")
def test_all_limits_that_stop_the_missing_pods_are_named() -> None:
    web, web_1 = deployment()
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "500m"}}}
    web["spec"]["template"] = {"spec": {"containers": [container]}}
    small = quota("1", "1")
    for amounts, cpu in (
        (small["spec"]["hard"], "1"),
        (small["status"]["hard"], "1"),
        (small["status"]["used"], "500m"),
    ):
        amounts["requests.cpu"] = cpu
    memory = quota("1", "10")
    memory["metadata"] = {"name": "other", "namespace": "team"}
    memory["status"]["hard"] = {"requests.cpu": "2"}
    memory["status"]["used"] = {"requests.cpu": "1"}
    made = event(web_1, "FailedCreate", f"Error creating: {EXCEEDED}")
    assert said_of("deployment", web, web_1, made, small, memory).endswith(
        "; raise pods to 4 and requests.cpu to 2 in quota small, raise requests.cpu to 2500m in quota other, "
        "or delete what uses them in namespace team"
    )


def test_a_quota_that_was_raised_meanwhile() -> None:
    web, web_1 = deployment()
    made = event(web_1, "FailedCreate", f"Error creating: {EXCEEDED}")
    assert said_of("deployment", web, web_1, made, quota("1", "10")).endswith(
        "; quota small has room now: the controller tries again soon"
    )


def test_a_deployment_whose_pod_waits() -> None:
    missing = of_set("web-1-a")
    missing["spec"] |= {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "two"}]}
    assert said_of("deployment", *deployment(1), missing).startswith(
        'has 0 of 1 Pods ready: pod web-1-a waits for ResourceClaimTemplate "two", which does not exist'
    )


def test_a_deployment_that_is_ready() -> None:
    running = of_set("web-1-a", spec=pod("x", "node-a")["spec"])
    running["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    assert said_of("deployment", *deployment(1), running) == "has its Pod ready"


def test_states_of_workloads() -> None:
    metadata = {"namespace": "team", "name": "web", "uid": "j"}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"suspend": True}}
    assert said_of("job", job) == "is suspended; set spec.suspend to false"
    failed = [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too many"}]
    assert said_of("job", job | {"status": {"conditions": failed}}) == (
        "has failed: BackoffLimitExceeded: too many; read the logs of its Pods"
    )
    daemons = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": {}}
    assert said_of("daemonset", daemons) == (
        "wants no Pods: no node matches its node selector, affinity and tolerations"
    )
    refused = event(
        job, "FailedCreate", 'Error creating: pods "w" is forbidden: no PriorityClass with name hihg was found'
    )
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1}
    assert said_of("job", job | {"spec": {}}, refused, high) == (
        "has 0 of 1 Pods: no PriorityClass with name hihg was found; "
        'create PriorityClass hihg, or use another (did you mean "high"?)'
    )


def test_a_workload_that_does_not_exist() -> None:
    with pytest.raises(
        SnapshotError, match=r'deployments "wep" not found in namespace "team" \(did you mean "web"\?\)'
    ):
        said_of("deployment", *deployment(), name="wep")


@pytest.mark.parametrize("owned", [True, False])
def test_a_classic_claim_of_somebody_else_is_told_before_what_it_waits_for(owned: bool) -> None:
    train: Any = pod("train")
    train["spec"]["resourceClaims"] = [{"name": "gpu", "template": {"spec": {"resourceClassName": "acme"}}}]
    own: Any = classic_claim("train-gpu")
    own["metadata"]["ownerReferences"] = [{"uid": train["metadata"]["uid"] if owned else "another"}]
    text = "cannot use classic claim team/train-gpu, which was not created for it"
    assert said(train, own).startswith(text) is not owned


def test_a_pod_that_fits_waits_for_its_classic_claim_if_the_scheduler_says_so() -> None:
    train: Any = pod("train")
    train["spec"]["resourceClaims"] = [{"name": "gpu", "template": {"spec": {"resourceClassName": "acme"}}}]
    own: Any = classic_claim("train-gpu", scheduling={"scheduler": {"potentialNodes": ["node-a"]}})
    own["metadata"]["ownerReferences"] = [{"uid": train["metadata"]["uid"]}]
    cluster = [train, own, resource_class("acme")]
    assert said(*cluster).startswith("fits on 1 of 1 nodes")
    refused = "0/1 nodes are available: 1 resource driver has refused the node."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": refused}
    train["status"] = {"conditions": [condition]}
    assert said(*cluster).startswith("waits for classic claim team/train-gpu, which is pending: ")


@pytest.mark.behaviour("XR-16")
def test_a_claim_that_poses_as_that_of_a_pods_extended_resources_is_named() -> None:
    train: Any = pod("train")
    train["spec"]["containers"][0]["resources"] = {"requests": {"example.com/gpu": "1"}}
    posing: Any = claim("posing", f"{GPU}/node-a/gpu-0", pods=("other",))
    posing["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
    posing["metadata"]["ownerReferences"] = [{"uid": train["metadata"]["uid"], "controller": True}]
    text = "waits until claim team/posing is no longer annotated as its own: used by other"
    assert said(train, posing).startswith(text)


@pytest.mark.behaviour("PL-36")
@pytest.mark.parametrize("skips", [True, False])
def test_an_alternative_that_the_scheduler_skips_is_not_waited_for(skips: bool) -> None:
    asked = {"allocationMode": "ExactCount", "count": 3}
    parts = [{"name": name, "deviceClassName": name, **asked} for name in ("no", "gpu")]
    train = waiting_pod("train", "listed")
    told = '0/1 nodes are available: 1 cannot allocate all claims (request "gpu/gpu": 2 devices: 2 usable but 3 needed'
    told += "; request gpu/no skipped: device class no does not exist)." if skips else ")."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": told}
    train["status"] = {"conditions": [condition]}
    sentence = said(train, template("listed", {"name": "gpu", "firstAvailable": parts}))
    assert sentence.startswith('waits for DeviceClass "no"') is not skips
    assert ("2 devices" in sentence or "3 needed" in sentence) is skips
