"""Which claim gets which volume, in which order that is written, and the phases of both."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document
from dray.api.persistent_volumes import (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    LOCAL_PROVISIONER,
    PROVISIONED_BY,
    PROVISIONED_ON,
    SELECTED_NODE,
    VOLUMES_FOLDER,
    is_removable,
    smallest_match,
    suits,
)
from dray.controllers.persistent_volume import plan
from dray.controllers.persistent_volume.plan import plan_claim, plan_volume

DELAYED: Document = {"metadata": {"name": "local"}, "volumeBindingMode": "WaitForFirstConsumer"}
IMMEDIATE: Document = {"metadata": {"name": "local"}, "volumeBindingMode": "Immediate"}


def claim(name: str = "c", *, size: str = "1Gi", volume: str = "", annotations: Any = None, **spec: Any) -> Document:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "7"}
    content: Document = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local",
        "resources": {"requests": {"storage": size}},
        **spec,
    }
    if volume:
        content["volumeName"] = volume
    return {"metadata": metadata | ({"annotations": annotations} if annotations else {}), "spec": content}


def volume(name: str, size: str = "1Gi", *, phase: str = "Available", labels: Any = None, **spec: Any) -> Document:
    content: Document = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local",
        "capacity": {"storage": size},
        "local": {"path": "/data"},
        **spec,
    }
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": content, "status": {"phase": phase}}


def reference(name: str = "c", uid: str = "uid-c") -> Document:
    return {"namespace": "default", "name": name, **({"uid": uid} if uid else {})}


@pytest.mark.behaviour("SC-06")
@pytest.mark.parametrize(
    ("wanted", "offered", "expected"),
    [
        ({}, {}, True),
        ({"storageClassName": "other"}, {}, False),
        ({"storageClassName": ""}, {"storageClassName": ""}, True),
        ({"accessModes": ["ReadWriteMany"]}, {}, False),
        ({"accessModes": ["ReadWriteMany"]}, {"accessModes": ["ReadWriteOnce", "ReadWriteMany"]}, True),
        ({"volumeMode": "Block"}, {}, False),
        ({"volumeMode": "Filesystem"}, {}, True),
        ({"size": "2Gi"}, {}, False),
        ({"selector": {"matchLabels": {"disk": "ssd"}}}, {}, False),
        ({"selector": {"matchLabels": {"disk": "ssd"}}}, {"labels": {"disk": "ssd"}}, True),
    ],
)
def test_which_volume_suits_a_claim(wanted: Any, offered: Any, expected: bool) -> None:
    assert suits(volume("v", **offered), claim(**wanted)) is expected


@pytest.mark.behaviour("SC-06")
def test_the_smallest_available_volume_is_taken_and_one_that_names_the_claim_first() -> None:
    volumes = [
        volume("large", "10Gi"),
        volume("b", "2Gi"),
        volume("a", "2Gi"),
        volume("small", "500Mi"),
        volume("released", phase="Released"),
        volume("others", claimRef=reference("other", "uid-other")),
    ]

    def name(found: Document | None) -> str:
        return "" if found is None else str(found["metadata"]["name"])

    assert name(smallest_match(claim(), volumes)) == "a"
    assert name(smallest_match(claim(), volumes, taken={"a"})) == "b"
    assert name(smallest_match(claim(), volumes, accepts=lambda item: item["metadata"]["name"] == "large")) == "large"
    assert name(smallest_match(claim(size="11Gi"), volumes)) == ""
    reserved = volume("reserved", "20Gi", claimRef=reference(uid=""))
    assert name(smallest_match(claim(), [*volumes, reserved])) == "reserved"


@pytest.mark.behaviour("SC-06")
def test_an_immediate_claim_is_bound_with_kubernetes_annotations() -> None:
    found = plan_claim(claim(), [volume("v", "2Gi")], IMMEDIATE)
    assert found.volume is not None
    assert found.volume["spec"]["claimRef"] == {
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "resourceVersion": "7",
        **reference(),
    }
    assert found.volume["metadata"]["annotations"] == {BOUND_BY_CONTROLLER: "yes"}
    assert found.claim is not None
    assert found.claim["spec"]["volumeName"] == "v"
    assert found.claim["metadata"]["annotations"] == {BOUND_BY_CONTROLLER: "yes", BIND_COMPLETED: "yes"}
    assert found.status is not None
    assert found.status["status"] == {
        "phase": "Bound",
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "2Gi"},
    }


@pytest.mark.behaviour("SC-06")
def test_a_delayed_claim_waits_for_its_consumer_and_follows_the_scheduler() -> None:
    waits = plan_claim(claim(), [volume("v")], DELAYED)
    assert (waits.volume, waits.claim, waits.event) == (None, None, (plan.WAITING, plan.CONSUMER))
    chosen = volume("v", claimRef=reference())
    follows = plan_claim(claim(), [chosen], DELAYED)
    assert follows.volume is None
    assert follows.claim is not None
    assert follows.claim["spec"]["volumeName"] == "v"


BOUND: Document = {"annotations": {BIND_COMPLETED: "yes"}}


@pytest.mark.behaviour("SC-04")
@pytest.mark.parametrize(
    ("given", "volumes", "phase", "event"),
    [
        (claim(), [], "Pending", (plan.FAILED_BINDING, plan.NONE_AVAILABLE)),
        (claim(storageClassName=""), [], "Pending", (plan.FAILED_BINDING, plan.NO_CLASS)),
        (claim(volume="v"), [], "Pending", None),
        (claim(volume="v"), [volume("v", claimRef=reference("other", "uid-other"))], "Pending", None),
        (claim(**BOUND), [], "Lost", (plan.CLAIM_LOST, plan.NO_REFERENCE)),
        (claim(volume="v", **BOUND), [], "Lost", (plan.CLAIM_LOST, plan.NO_VOLUME)),
        (
            claim(volume="v", **BOUND),
            [volume("v", claimRef=reference("other", "uid-other"))],
            "Lost",
            ("ClaimMisbound", plan.MISBOUND),
        ),
    ],
)
def test_claims_that_cannot_be_bound(given: Document, volumes: Any, phase: str, event: Any) -> None:
    found = plan_claim(given, volumes, None)
    assert found.status is not None
    assert (found.status["status"]["phase"], found.event, found.claim, found.volume) == (phase, event, None, None)


def test_a_bound_claim_needs_nothing() -> None:
    bound = claim(volume="v", **BOUND)
    bound["status"] = {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
    assert plan_claim(bound, [volume("v", claimRef=reference())], None) == plan.ClaimPlan()


@pytest.mark.parametrize(
    ("given", "of", "phase"),
    [
        (volume("v", phase=""), None, "Available"),
        (volume("v", phase="", claimRef=reference(uid="")), None, "Available"),
        (volume("v", phase="Bound", claimRef=reference()), None, "Released"),
        (volume("v", phase="Bound", claimRef=reference(uid="uid-old")), claim(volume="v"), "Released"),
        (volume("v", claimRef=reference()), claim(volume="v"), "Bound"),
        (volume("v", claimRef=reference()), claim(), ""),
    ],
)
def test_phases_of_volumes(given: Document, of: Document | None, phase: str) -> None:
    found = plan_volume(given, of)
    assert (found["status"]["phase"] if found is not None else "") == phase


STANDARD: Document = DELAYED | {"provisioner": LOCAL_PROVISIONER, "reclaimPolicy": "Delete"}
NODE: Document = {
    "metadata": {
        "name": "n",
        "labels": {"kubernetes.io/hostname": "host-n"},
        "annotations": {VOLUMES_FOLDER: "/var/lib/kubelet/volumes"},
    }
}


@pytest.mark.behaviour("ST-42", "ST-44")
def test_a_volume_is_provisioned_on_the_node_of_the_first_consumer() -> None:
    waiting = plan_claim(claim(), [], STANDARD)
    assert waiting.event == ("WaitForFirstConsumer", "waiting for first consumer to be created before binding")
    selected = claim(annotations={SELECTED_NODE: "n"})
    found = plan_claim(selected, [], STANDARD, NODE)
    assert found.event == ("ProvisioningSucceeded", "Successfully provisioned volume pvc-uid-c")
    created = found.new_volume
    assert created is not None
    assert created["metadata"] == {
        "name": "pvc-uid-c",
        "labels": {PROVISIONED_ON: "n"},
        "annotations": {PROVISIONED_BY: LOCAL_PROVISIONER},
    }
    spec = created["spec"]
    assert spec["local"] == {"path": "/var/lib/kubelet/volumes/pvc-uid-c"}
    assert (spec["capacity"], spec["persistentVolumeReclaimPolicy"]) == ({"storage": "1Gi"}, "Delete")
    (term,) = spec["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["host-n"]
    # The next look binds both, and creates nothing.
    bound = plan_claim(selected, [created | {"status": {"phase": "Pending"}}], STANDARD, NODE)
    assert bound.new_volume is None
    assert bound.claim is not None
    assert bound.claim["spec"]["volumeName"] == "pvc-uid-c"


@pytest.mark.behaviour("ST-42", "ST-44")
@pytest.mark.parametrize(
    ("node", "spec", "reason"),
    [
        (None, {}, 'failed to get target node: nodes "n" not found'),
        ({"metadata": {"name": "n"}}, {}, 'node "n" provides no local volumes'),
        (NODE, {"volumeMode": "Block"}, "block volumes are not supported"),
    ],
)
def test_a_node_that_cannot_provision_is_given_up(node: Document | None, spec: Any, reason: str) -> None:
    found = plan_claim(claim(annotations={SELECTED_NODE: "n", "other": "x"}, **spec), [], STANDARD, node)
    assert found.new_volume is None
    text = f'failed to provision volume with StorageClass "local": {reason}'
    assert found.event == ("ProvisioningFailed", text)
    assert found.claim is not None
    assert found.claim["metadata"]["annotations"] == {"other": "x"}


@pytest.mark.behaviour("ST-41", "ST-42")
def test_other_provisioners_are_waited_for() -> None:
    found = plan_claim(claim(), [], IMMEDIATE | {"provisioner": "csi.example.com"})
    assert found.event is not None
    assert found.event[0] == "ExternalProvisioning"
    assert "external provisioner 'csi.example.com'" in found.event[1]
    wrong = plan_claim(claim(), [], IMMEDIATE | {"provisioner": LOCAL_PROVISIONER})
    assert wrong.event is not None
    assert wrong.event[0] == "ProvisioningFailed"


@pytest.mark.behaviour("ST-44")
@pytest.mark.parametrize(
    ("phase", "policy", "annotations", "expected"),
    [
        ("Released", "Delete", {PROVISIONED_BY: LOCAL_PROVISIONER}, True),
        ("Bound", "Delete", {PROVISIONED_BY: LOCAL_PROVISIONER}, False),
        ("Released", "Retain", {PROVISIONED_BY: LOCAL_PROVISIONER}, False),
        ("Released", "Delete", {}, False),
    ],
)
def test_only_released_local_volumes_are_removed(phase: str, policy: str, annotations: Any, expected: bool) -> None:
    subject = volume("v", phase=phase, persistentVolumeReclaimPolicy=policy)
    subject["metadata"]["annotations"] = annotations
    assert is_removable(subject) is expected
