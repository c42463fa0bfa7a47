"""The note on a pending Pod of a group whose Pods fit together only."""

from __future__ import annotations

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.sim.explain.joint_hint import joint_notes
from tests.unit.sim.gpu_cluster import gpu_cluster, gpu_pod

GATES = FeatureGates()


def member(name: str, gpus: int, group: str = "gang") -> list[Document]:
    (document,) = gpu_pod(name, gpus)
    document["spec"]["schedulingGroup"] = {"podGroupName": group}
    return [document]


def pod_group(name: str) -> list[Document]:
    spec = {"schedulingPolicy": {"gang": {"minCount": 1}}}
    metadata = {"name": name, "namespace": "team"}
    return [{"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": metadata, "spec": spec}]


def test_a_group_that_fits_together_only() -> None:
    pods = member("a-small", 1), member("b-large", 2), member("other", 8, "g2")
    snapshot = gpu_cluster({"a": 2, "b": 1}, *pods, pod_group("gang"), pod_group("g2"))
    assert joint_notes(snapshot, snapshot.pods[0], GATES) == (
        "one by one the 2 pending Pods of PodGroup gang do not fit, but placed together they do: "
        "dray plan --joint --group gang shows where",
    )


def test_a_group_that_cannot_fit() -> None:
    snapshot = gpu_cluster({"a": 3, "b": 1}, member("x", 2), member("y", 2), pod_group("gang"))
    (note,) = joint_notes(snapshot, snapshot.pods[0], GATES)
    assert note == ("the 2 pending Pods of PodGroup gang do not fit on these nodes together, however they are placed")


def test_no_note_without_a_group_or_where_one_by_one_is_enough() -> None:
    fits = gpu_cluster({"a": 3}, member("x", 1), member("y", 2), pod_group("gang"))
    assert joint_notes(fits, fits.pods[0], GATES) == ()
    alone = gpu_cluster({"a": 1}, gpu_pod("x", 2))
    assert joint_notes(alone, alone.pods[0], GATES) == ()
