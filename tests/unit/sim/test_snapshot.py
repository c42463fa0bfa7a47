from __future__ import annotations

import pytest

from dray.sim.snapshot import Snapshot, SnapshotError
from tests.unit.sim.cluster import claim, pod

BETA = {
    "apiVersion": "resource.k8s.io/v1beta1",
    "kind": "ResourceClaim",
    "metadata": {"name": "old", "namespace": "team"},
    "spec": {"devices": {"requests": [{"name": "gpu", "deviceClassName": "gpu"}]}},
}
CLASSIC = {"apiVersion": "cdi.k8s.io/v1alpha1", "kind": "ResourceClaim", "metadata": {"name": "classic"}}


def test_every_version_and_lists_are_taken_in() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [claim("new"), BETA]}
    of_one_kind = {"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "p"}, "spec": {}}]}
    snapshot = Snapshot.of([listed, of_one_kind])
    assert [item.metadata.name for item in snapshot.claims] == ["new", "old"]
    exactly = snapshot.claims[1].spec.devices.requests[0].exactly
    assert exactly is not None
    assert exactly.device_class_name == "gpu"
    assert [item.metadata.name for item in snapshot.pods] == ["p"]


def test_kinds_of_another_group_are_kept_apart() -> None:
    snapshot = Snapshot.of([claim("new"), CLASSIC])
    assert len(snapshot.claims) == 1
    assert len(snapshot.documents["ResourceClaim.cdi.k8s.io"]) == 1


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param({"kind": "Pod"}, "has no apiVersion or no kind", id="no version"),
    ],
)
def test_what_is_no_object_is_refused(document: dict[str, object], message: str) -> None:
    with pytest.raises(SnapshotError, match=message):
        _ = Snapshot.of([document]).pods


def test_an_object_that_does_not_decode_is_left_out_and_noted() -> None:
    unset = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "team"}, "spec": 5}
    snapshot = Snapshot.of([pod("p") | {"spec": {"containers": "none"}}, pod("q"), unset])
    assert [item.metadata.name for item in snapshot.pods] == ["q"]
    assert [item.title for item in snapshot.undecodable] == ["pod team/p", "service team/s"]
    assert snapshot.hidden[0].startswith("pod team/p cannot be decoded and is not evaluated: Expected `array`")


def test_of_an_object_that_occurs_twice_the_last_counts() -> None:
    """As when the output of `kubectl get all` and of `kubectl get pods` are read together."""
    snapshot = Snapshot.of([pod("p"), pod("q"), pod("p") | {"spec": {"nodeName": "n", "containers": []}}])
    assert [(item.metadata.name, item.spec.node_name) for item in snapshot.pods] == [("p", "n"), ("q", None)]


def test_a_version_that_cannot_be_read_is_a_note() -> None:
    budget = {"apiVersion": "policy/v1beta1", "kind": "PodDisruptionBudget", "metadata": {"name": "a"}}
    snapshot = Snapshot.of([budget, budget | {"metadata": {"name": "b"}}, CLASSIC])
    assert "PodDisruptionBudget" not in snapshot.documents
    assert snapshot.hidden == ("PodDisruptionBudget of policy/v1beta1 (version not known): 2 not evaluated",)


def test_objects_without_a_namespace_are_in_the_default_namespace() -> None:
    bare = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    snapshot = Snapshot.of([bare, node])
    assert (snapshot.pods[0].metadata.namespace, snapshot.nodes[0].metadata.namespace) == ("default", None)
