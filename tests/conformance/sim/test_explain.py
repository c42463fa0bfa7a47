"""What `dray explain` says, word for word, and that what it advises is what then works."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dray.api.document import Document, NamespacedName
from dray.api.features import FeatureGates
from dray.cli.explain import lines
from dray.sim.explain.answers import Answer, Standing
from dray.sim.explain.explainer import explain
from dray.sim.explain.subject import claim_subject, pod_subject
from dray.sim.snapshot import Snapshot, SnapshotError
from tests.unit.sim.cluster import (
    GPU,
    claim,
    device,
    device_class,
    exactly,
    node,
    pod,
    resource_slice,
    taint_rule,
    template,
    waiting_pod,
)

GATES = FeatureGates.parse("DRADeviceTaintRules=true")
NOW = datetime(2026, 1, 2, tzinfo=UTC)
A100 = "device.attributes['gpu.example.com'].model == 'a100'"
T4 = {"model": {"string": "t4"}}
CORDONED = node(
    "node-c", unschedulable=True, taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
)
CLUSTER = [
    node("node-a"),
    node("node-b"),
    CORDONED,
    device_class("gpu", f'device.driver == "{GPU}"'),
    resource_slice("node-a", GPU, device("gpu-0"), device("gpu-1"), device("gpu-2"), nodeName="node-a"),
    resource_slice("node-b", GPU, device("gpu-0", attributes=T4), device("gpu-1", attributes=T4), nodeName="node-b"),
    resource_slice("node-c", GPU, device("gpu-0"), device("gpu-1"), nodeName="node-c"),
    taint_rule("rule", driver=GPU, pool="node-a", device="gpu-2"),
    claim("one", f"{GPU}/node-a/gpu-0", pods=("p",)),
    pod("p", "node-a"),
]


def asked(*more: Document, kind: str = "pod", name: str = "train", on: str = "") -> Answer:
    snapshot = Snapshot.of([*CLUSTER, *more])
    find = {"pod": pod_subject, "claim": claim_subject}[kind]
    return explain(snapshot, find(snapshot, NamespacedName("team", name)), NOW, node=on, gates=GATES)


def text(answer: Answer, on: str = "") -> str:
    return "\n".join(lines(answer, on))


def test_a_waiting_pod_hears_from_every_node_and_what_would_help() -> None:
    answer = asked(template("two", exactly(2, A100)), waiting_pod("train", "two"))
    assert (
        text(answer)
        == """\
pod team/train is pending, 0 of 3 nodes fit: node-a: of 3 devices 1 in use, 1 tainted (broken:NoSchedule), \
1 usable but 2 needed on one node; node-c: cordoned; 1 more for other reasons; uncordon node-c

NODES   REASON                                                                                    FOR EXAMPLE
1       of 3 devices 1 in use, 1 tainted (broken:NoSchedule), 1 usable but 2 needed on one node   node-a
1       cordoned                                                                                  node-c
1       no device matches `model == 'a100'`                                                       node-b

What would help (each change was tested):
  - uncordon node-c
  - free claim team/one (Pod p, for 1d): fits on node-a
  - lower the count of request gpu to 1: fits on node-a
  - add an alternative with model t4 to request gpu: fits on node-b
  - remove the device taint broken:NoSchedule (kubectl delete devicetaintrule rule), or tolerate it: fits on node-a
  - add a node like node-a

Claims that hold the devices:
  - node-a has 1 of 2: claim team/one (Pod p, for 1d) holds gpu-0"""
    )


def test_a_taint_of_the_driver_names_no_rule() -> None:
    """A rule with the same taint for other devices does not set it."""
    taint = {"key": "broken", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
    documents = [item for item in CLUSTER if item["metadata"]["name"] != "node-b" or item["kind"] == "Node"]
    tainted = resource_slice("node-b", GPU, device("gpu-9", taints=[taint], attributes=T4), nodeName="node-b")
    asking = waiting_pod("train", "t4")
    snapshot = Snapshot.of([*documents, tainted, template("t4", exactly(1, A100.replace("a100", "t4"))), asking])
    answer = explain(snapshot, pod_subject(snapshot, NamespacedName("team", "train")), NOW, gates=GATES)
    assert "remove the device taint broken:NoSchedule, or tolerate it" in [change.text for change in answer.changes]


def test_one_node_tells_of_every_device() -> None:
    answer = asked(template("two", exactly(2, A100)), waiting_pod("train", "two"), on="node-a")
    shown = [line.strip() for line in lines(answer, "node-a")]
    assert "gpu.example.com/node-a/gpu-0: in use by claim team/one" in shown
    assert "gpu.example.com/node-a/gpu-2: taint broken:NoSchedule is not tolerated" in shown


def test_constraints_can_be_what_is_too_much() -> None:
    different = {"matchAttribute": "gpu.example.com/serial"}
    serials = [device(f"gpu-{n}", attributes={"serial": {"string": str(n)}}) for n in range(2)]
    extra = [
        resource_slice("node-b", GPU, *serials, nodeName="node-b"),
        template("pair", exactly(2), constraints=[different]),
    ]
    documents = [item for item in CLUSTER if item["metadata"]["name"] != "node-b" or item["kind"] == "Node"]
    snapshot = Snapshot.of([*documents, *extra, waiting_pod("train", "pair")])
    answer = explain(snapshot, pod_subject(snapshot, NamespacedName("team", "train")), NOW, gates=GATES)
    advice = [(change.text, change.nodes) for change in answer.changes]
    assert advice[:2] == [
        ("lower the count of request gpu to 1", ("node-b",)),
        ("drop the constraint on attribute gpu.example.com/serial", ("node-b",)),
    ]


def test_nodes_that_refuse_for_other_reasons_get_other_advice() -> None:
    needs = {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "64"}}}]}
    answer = asked(template("one", exactly(1)), waiting_pod("train", "one", **needs))
    assert [(change.text, change.nodes) for change in answer.changes] == [
        ("lower the Pod's request of cpu to 4", ("node-a", "node-b"))
    ]


def test_a_pod_that_fits_says_so() -> None:
    answer = asked(template("one", exactly(1)), waiting_pod("train", "one"))
    assert (answer.fitting, answer.changes) == (2, ())
    assert text(answer).splitlines()[0] == "pod team/train fits on 2 of 3 nodes and will be scheduled"
    assert text(answer).splitlines()[3] == "2       fits       node-a, node-b"
    assert "\n".join(lines(answer, all_nodes=True)).splitlines()[3] == "node-a   yes    fits: gpu: gpu-1"


def test_a_pod_that_is_not_even_tried_says_why() -> None:
    answer = asked(waiting_pod("train", "missing"))
    assert text(answer) == (
        'pod team/train waits for ResourceClaimTemplate "missing", which does not exist in namespace team; '
        "create it, or correct resourceClaimTemplateName in the Pod"
    )


def _alternatives(*names: str) -> Document:
    selected = {
        "big": [{"cel": {"expression": "device.attributes['gpu.example.com'].model == 'h100'"}}],
        "any": [],
    }
    return {
        "name": "gpu",
        "firstAvailable": [
            {
                "name": name,
                "deviceClassName": "gpu",
                "allocationMode": "ExactCount",
                "count": 1,
                "selectors": selected[name],
            }
            for name in names
        ],
    }


def test_what_was_given_is_explained_by_what_was_passed_over() -> None:
    held = claim("list", f"{GPU}/node-b/gpu-1", pods=("user",))
    held["spec"]["devices"]["requests"] = [_alternatives("big", "any")]
    held["status"]["allocation"]["devices"]["results"][0]["request"] = "gpu/any"
    user = pod("user", "node-b")
    user["spec"] |= {
        "schedulerName": "default-scheduler",
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "list"}],
    }
    verdicts = {"pod": "pod team/user is starting on node-b", "claim": "claim team/list is allocated on node-b"}
    for answer in (asked(held, user, name="user"), asked(held, user, kind="claim", name="list")):
        assert answer.standing is Standing.PLACED
        assert text(answer).splitlines()[:3] == [
            verdicts[answer.kind] + (" for Pod user" if answer.kind == "claim" else ""),
            "  gpu/any: gpu.example.com/node-b/gpu-1 (claim team/list)",
            '    instead of request "gpu/big": 2 devices: 2 do not match request selector',
        ]


def test_an_unused_claim_is_explained_alone() -> None:
    answer = asked(claim("lonely"), kind="claim", name="lonely")
    assert (answer.standing, answer.fitting) == (Standing.PENDING, 3)


@pytest.mark.parametrize(("kind", "plural"), [("pod", "pods"), ("claim", "resourceclaims")])
def test_what_is_not_there_is_named(kind: str, plural: str) -> None:
    with pytest.raises(SnapshotError, match=f'{plural} "nobody" not found in namespace "team"'):
        asked(kind=kind, name="nobody")


def test_the_same_question_has_the_same_answer() -> None:
    question = (template("two", exactly(2, A100)), waiting_pod("train", "two"))
    assert asked(*question) == asked(*question)


def test_extended_resources_are_explained_by_the_devices_that_serve_them() -> None:
    served = device_class("gpu", f'device.driver == "{GPU}"')
    served["spec"]["extendedResourceName"] = "example.com/gpu"
    asking = pod("train")
    asking["spec"] |= {
        "schedulerName": "default-scheduler",
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"example.com/gpu": "3"}}}],
    }
    documents = [item for item in CLUSTER if item["kind"] != "DeviceClass"]
    snapshot = Snapshot.of([*documents, served, asking])
    answer = explain(snapshot, pod_subject(snapshot, NamespacedName("team", "train")), NOW, gates=GATES)
    shown = {item.node: item.why for item in answer.nodes}
    assert shown["node-a"] == (
        'request "container-0-request-0": 3 devices: 1 in use, 1 tainted (broken:NoSchedule), 1 usable but 3 needed'
    )


VOLUME = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}


def volume_claim(name: str = "data", volume: str = "pv") -> Document:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "team", "uid": f"pvc-{name}"},
        "spec": {"volumeName": volume, "accessModes": ["ReadWriteOnce"]},
        "status": {"phase": "Bound"},
    }


def csi_volume(on: str) -> Document:
    names = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [on]}]
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": names}]}}
    spec = {"csi": {"driver": "d", "volumeHandle": "h"}, "capacity": {"storage": "1Gi"}, "nodeAffinity": affinity}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv", "uid": "pv"}, "spec": spec}


def test_ordinary_constraints_do_not_hide_the_devices() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "none"}}}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    spread = {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    wanted = waiting_pod("train", "two", affinity=affinity, topologySpreadConstraints=[spread])
    answer = asked(template("two", exactly(2, A100)), wanted)
    shown = "\n".join(lines(answer, all_nodes=True))
    assert "node-a   no     node(s) didn't match pod topology spread constraints (missing required label); " in shown
    assert 'node(s) didn\'t match pod affinity rules; request "gpu": 3 devices: 1 in use' in shown


def test_what_cannot_be_evaluated_is_a_note() -> None:
    answer = asked(template("two", exactly(2, A100)), waiting_pod("train", "two", **VOLUME))
    assert answer.notes == ("pod team/train: its volume claim data is not in the snapshot, and is not evaluated",)
    assert "of 3 devices 1 in use" in text(answer)
    assert text(answer).endswith(f"\n\nNote: {answer.notes[0]}")


def test_the_node_affinity_of_a_volume_is_evaluated_though_its_driver_is_not() -> None:
    documents = (volume_claim(), csi_volume("node-b"))
    answer = asked(*documents, template("two", exactly(1)), waiting_pod("train", "two", **VOLUME))
    assert answer.notes == (
        "pod team/train: volume claim data: only the node affinity of its volume is evaluated, "
        "not how many volumes of d a node can have",
    )
    reasons = {item.node: item.rejections.get("VolumeBinding") for item in answer.nodes}
    assert reasons["node-a"] == ("node(s) didn't match PersistentVolume's node affinity",)


def test_pods_of_other_schedulers_are_evaluated_with_the_default_profile() -> None:
    answer = asked(template("one", exactly(1)), waiting_pod("train", "one", schedulerName="volcano"))
    assert answer.notes == ("Pods of the scheduler volcano are evaluated with the default profile",)
    assert answer.nodes
