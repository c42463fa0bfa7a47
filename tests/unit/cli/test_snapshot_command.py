"""What `dray snapshot` leaves out."""

from __future__ import annotations

from dray.api.document import Document
from dray.cli.snapshot import items_of
from dray.sim.snapshot import Snapshot
from tests.unit.sim.cluster import pod

SECRET = {"env": [{"name": "PASSWORD", "value": "x"}], "envFrom": [{"secretRef": {"name": "s"}}]}


def documents() -> list[Document]:
    made = pod("p")
    made["spec"]["containers"][0] |= SECRET
    made["spec"]["initContainers"] = [{"name": "i", "image": "i", **SECRET}]
    applied = {"kubectl.kubernetes.io/last-applied-configuration": "PASSWORD", "kept": "yes"}
    made["metadata"] |= {"managedFields": [{}], "annotations": applied}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", "namespace": "team"},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i", **SECRET}]}}},
    }
    return [made, job]


def test_environments_and_managed_fields_are_left_out() -> None:
    items = items_of(Snapshot.of(documents()), environment=False)
    assert "PASSWORD" not in str(items)
    assert "secretRef" not in str(items)
    made, job = items
    assert made["metadata"]["annotations"] == {"kept": "yes"}
    assert "managedFields" not in made["metadata"]
    assert job["spec"]["template"]["spec"]["containers"] == [{"name": "c", "image": "i"}]


def test_environments_are_there_if_asked_for() -> None:
    made = items_of(Snapshot.of(documents()), environment=True)[0]
    assert made["spec"]["containers"][0]["env"] == SECRET["env"]
