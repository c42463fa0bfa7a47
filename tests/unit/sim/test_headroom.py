"""How many more Pods of typical kinds fit, compared with placing them."""

from __future__ import annotations

import pytest

from dray.api.document import Document
from dray.api.pod_claims import EXTENDED_RESOURCE_ANNOTATION, POD_CLAIM_NAME_ANNOTATION
from dray.sim.free_resources import FreeResources
from dray.sim.headroom import headroom, typical_kinds
from dray.sim.snapshot import Snapshot
from dray.sim.trial_cluster import TrialCluster, Unplaced
from tests.property.sim.test_rebalance import random_cluster
from tests.unit.sim.cluster import GPU, device, device_class, exactly, node, resource_slice, template
from tests.unit.sim.gpu_cluster import gpu_cluster, gpu_node, gpu_pod


def numbers(snapshot: Snapshot) -> dict[str, tuple[int, int]]:
    return {row.requests: (row.fit, row.at_most) for row in headroom(snapshot)}


@pytest.mark.parametrize("seed", range(12))
def test_the_count_equals_what_the_scheduler_places(seed: int) -> None:
    snapshot = random_cluster(seed)
    found = headroom(snapshot)
    cluster = TrialCluster(snapshot)
    for row, kind in zip(found, typical_kinds(cluster, FreeResources(cluster)), strict=True):
        placed = []
        for number in range(50):
            pod = kind.example.copy(str(number))
            if isinstance(cluster.place(pod), Unplaced):
                break
            placed.append(pod)
        assert row.fit == len(placed) <= row.at_most
        for pod in placed:
            cluster.remove(pod.uid)


def test_fragmented_devices() -> None:
    snapshot = gpu_cluster({"a": 2, "b": 2}, gpu_pod("x", 1, "a", [0]), gpu_pod("y", 1, "b", [0]), gpu_pod("big", 2))
    assert numbers(snapshot) == {"1 gpu": (2, 2), "2 gpu": (0, 1)}


def test_cordoned_nodes_do_not_count() -> None:
    snapshot = gpu_cluster({"a": 2}, gpu_pod("x", 1, "a", [0]), others=gpu_node("b", 2, unschedulable=True))
    assert numbers(snapshot) == {"1 gpu": (1, 1)}


def test_cpu_limits_what_devices_would_allow() -> None:
    (document,) = gpu_pod("x", 1)
    document["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "3"}}
    assert numbers(gpu_cluster({"a": 4, "b": 4}, [document])) == {"1 gpu, 3 cpu": (2, 2)}


def test_shares_of_devices() -> None:
    """Two cards of ten parts each: two Pods of five parts fit on each card."""
    policy = {"default": "10", "validRange": {"min": "1", "step": "1", "max": "10"}}
    cards: list[Document] = [
        device(f"gpu-{n}", allowMultipleAllocations=True, capacity={"parts": {"value": "10", "requestPolicy": policy}})
        for n in range(2)
    ]
    request = exactly(1)
    request["exactly"]["capacity"] = {"requests": {"parts": "5"}}
    snapshot = Snapshot.of(
        [
            device_class("gpu", f'device.driver == "{GPU}"'),
            node("a"),
            resource_slice("a", GPU, *cards, nodeName="a"),
            template("gpus-1", request),
            *gpu_pod("x", 1),
        ]
    )
    assert numbers(snapshot) == {"1 gpu (parts 5)": (4, 4)}


def test_no_devices_no_rows() -> None:
    assert headroom(gpu_cluster({"a": 0})) == ()


def test_equal_nodes_are_counted_once_for_all() -> None:
    """The count of many equal nodes is that of one, times their number; a full cluster has no room."""
    pods = [gpu_pod(f"p{number}", 1, f"n{number}", [0]) for number in range(20)]
    assert numbers(gpu_cluster({f"n{number}": 3 for number in range(20)}, *pods)) == {"1 gpu": (40, 40)}
    assert numbers(gpu_cluster({f"n{number}": 1 for number in range(20)}, *pods)) == {"1 gpu": (0, 0)}


def test_extended_resources_are_named() -> None:
    """The claim for extended resources is the scheduler's, not the Pod's: the row says what the Pod requests."""
    running, claim = gpu_pod("x", 1, "a", [0])
    del running["spec"]["resourceClaims"]
    running["spec"]["containers"][0]["resources"] = {"requests": {"example.com/gpu": "1"}}
    claim["metadata"]["annotations"] = {EXTENDED_RESOURCE_ANNOTATION: "true"}
    assert numbers(gpu_cluster({"a": 3}, [running, claim])) == {"1 example.com/gpu": (2, 2)}


def test_a_claim_that_the_status_does_not_have_yet_is_not_created_again() -> None:
    """The controller creates the claim, and writes it into the Pod's status afterwards."""
    pending, claim = gpu_pod("x", 1, "a", [0])
    del pending["spec"]["nodeName"]
    pending["status"] = {"phase": "Pending"}
    del claim["status"]
    claim["metadata"]["annotations"] = {POD_CLAIM_NAME_ANNOTATION: "gpu"}
    assert numbers(gpu_cluster({"a": 3}, [pending, claim])) == {"1 gpu": (3, 3)}
