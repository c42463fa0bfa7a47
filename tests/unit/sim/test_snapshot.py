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
        pytest.param(pod("p") | {"spec": {"containers": "none"}}, "a Pod does not decode", id="wrong type"),
    ],
)
def test_what_is_no_object_is_refused(document: dict[str, object], message: str) -> None:
    with pytest.raises(SnapshotError, match=message):
        _ = Snapshot.of([document]).pods
