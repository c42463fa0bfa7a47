"""A trial cluster places, moves and puts back Pods."""

from __future__ import annotations

from dray.sim.placer import PlacedPod
from dray.sim.snapshot import Snapshot
from dray.sim.trial_cluster import TrialCluster, TrialPod, devices_of
from tests.unit.sim.cluster import GPU, claim, device, device_class, node, pod, resource_slice

DEVICE = f"{GPU}/node-a/gpu-0"
SHARED = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]}


def cluster_with_two_users_of_a_claim() -> tuple[TrialCluster, TrialPod, TrialPod]:
    users = [pod("first"), pod("second")]
    for item in users:
        item["spec"] |= SHARED | {"schedulerName": "default-scheduler"}
    cluster = TrialCluster(
        Snapshot.of(
            [
                device_class("gpu", f'device.driver == "{GPU}"'),
                node("node-a"),
                resource_slice("node-a", GPU, device("gpu-0"), nodeName="node-a"),
                claim("shared"),
                *users,
            ]
        )
    )
    first, second = cluster.pending
    return cluster, first, second


def placed(cluster: TrialCluster, pod: TrialPod) -> PlacedPod:
    found = cluster.place(pod)
    assert isinstance(found, PlacedPod)
    return found


def test_a_claim_that_exists_without_its_pod_stays_when_the_pod_goes() -> None:
    cluster, first, second = cluster_with_two_users_of_a_claim()
    placed(cluster, first)
    cluster.remove(first.uid)
    assert devices_of(placed(cluster, second)) == (DEVICE,)


def test_a_shared_claim_keeps_its_device_until_its_last_user_goes() -> None:
    cluster, first, second = cluster_with_two_users_of_a_claim()
    placed(cluster, first)
    placed(cluster, second)
    allocations = cluster.placer.devices.allocator.allocations
    cluster.remove(first.uid)
    assert allocations.in_use(DEVICE, shareable=False)
    gone = cluster.remove(second.uid)
    assert not allocations.in_use(DEVICE, shareable=False)
    cluster.restore(gone)
    assert allocations.in_use(DEVICE, shareable=False)
