"""How the use of physical devices is divided among namespaces and requested classes."""

from __future__ import annotations

import pytest

from dray.api.document import Document
from dray.sim.snapshot import Snapshot
from dray.sim.usage_sample import Sample, sample
from tests.unit.sim.cluster import GPU, claim, device, device_class, node, pod, resource_slice
from tests.unit.sim.test_physical_devices import card

RESOURCE = "example.com/card"


def sampled(*documents: Document) -> Sample:
    return sample(Snapshot.of([device_class("gpu", "true"), device_class("other", "true"), *documents]))


def used(found: Sample) -> dict[tuple[str, str], float]:
    return {owner: part.used for owner, part in found.namespaces.items()}


def test_a_whole_device_is_one_in_the_requested_class_only() -> None:
    slices = resource_slice("a", GPU, device("gpu-0"), device("gpu-1"), nodeName="a")
    found = sampled(slices, claim("c", f"{GPU}/a/gpu-0"), claim("waiting"))
    assert used(found) == {("team", "gpu"): 1.0}
    assert {name: (use.total, use.held, use.used) for name, use in found.classes.items()} == {
        "gpu": (2, 1, 1.0),
        "other": (2, 1, 1.0),
    }


def test_partitions_are_weighed_by_the_most_used_counter() -> None:
    documents = card("card", "half-0")
    small = claim("small", f"{GPU}/a/small-4", namespace="other")
    found = sampled(*documents, small)
    assert used(found) == {("other", "gpu"): 0.125, ("team", "gpu"): 0.5}
    assert found.classes["gpu"].used == 0.625


def test_shares_are_weighed_by_their_capacity() -> None:
    shared = resource_slice("a", GPU, device("gpu-0", allowMultipleAllocations=True), nodeName="a")
    claims = []
    for number, (namespace, memory) in enumerate([("one", "10Gi"), ("two", "20Gi")]):
        share = claim("c", f"{GPU}/a/gpu-0", namespace=namespace)
        result = share["status"]["allocation"]["devices"]["results"][0]
        result |= {"shareID": f"00000000-0000-0000-0000-00000000000{number}", "consumedCapacity": {"memory": memory}}
        claims.append(share)
    assert used(sampled(shared, *claims)) == {("one", "gpu"): 0.25, ("two", "gpu"): 0.5}


def test_admin_access_uses_nothing() -> None:
    watching = claim("c", f"{GPU}/a/gpu-0")
    watching["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    found = sampled(resource_slice("a", GPU, device("gpu-0"), nodeName="a"), watching)
    assert (used(found), found.classes["gpu"].used) == ({}, 0.0)


def test_the_class_of_the_chosen_alternative() -> None:
    chosen = claim("c", f"{GPU}/a/gpu-0")
    alternatives = [{"name": "best", "deviceClassName": "gpu"}, {"name": "next", "deviceClassName": "other"}]
    chosen["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": alternatives}]
    chosen["status"]["allocation"]["devices"]["results"][0]["request"] = "gpu/next"
    slices = resource_slice("a", GPU, device("gpu-0"), nodeName="a")
    assert used(sampled(slices, chosen)) == {("team", "other"): 1.0}


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_devices_of_plugins_count_while_the_pod_runs(phase: str) -> None:
    machine, user = node("a"), pod("p", "a")
    for field in ("allocatable", "capacity"):
        machine["status"].setdefault(field, {})[RESOURCE] = "4"
    user["spec"]["containers"][0]["resources"] = {"requests": {RESOURCE: "3", "cpu": "1"}, "limits": {RESOURCE: "3"}}
    user["status"] = {"phase": phase}
    found = sampled(machine, user)
    running = phase == "Running"
    assert used(found) == ({("team", RESOURCE): 3.0} if running else {})
    assert (found.classes[RESOURCE].total, found.classes[RESOURCE].used) == (4, 3.0 if running else 0.0)
