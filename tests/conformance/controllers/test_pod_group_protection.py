"""What keeps a PodGroup that is being deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from dray.api.document import GroupVersion
from dray.api.features import FeatureGates
from dray.client.interface import DeleteOptions, unstructured
from dray.controllers.pod_group_protection import PodGroupProtectionController
from dray.sim.replica.virtual_time import run_virtually
from tests.conformance.controllers.cluster import PODS, TEAM, Cluster, running_cluster

POD_GROUPS = unstructured(GroupVersion("scheduling.k8s.io", "v1beta1"), "podgroups", "PodGroup")
NOW = DeleteOptions(grace_period_seconds=0)


def run(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        gates = FeatureGates.parse("GenericWorkload=true")
        async with running_cluster(PodGroupProtectionController, nodes=0, scheduler=False, gates=gates) as cluster:
            await scenario(cluster)

    run_virtually(main())


async def add_group(cluster: Cluster, name: str, *pods: str) -> None:
    await cluster.create(POD_GROUPS, name, {"schedulingPolicy": {"basic": {}}})
    for pod in pods:
        spec = {"containers": [{"name": "a", "image": "i"}], "schedulingGroup": {"podGroupName": name}}
        await cluster.create(PODS, pod, spec)


async def groups(cluster: Cluster) -> list[str]:
    return sorted(item["metadata"]["name"] for item in await cluster.list(POD_GROUPS))


@pytest.mark.behaviour("GW-70")
def test_a_group_stays_until_all_its_pods_have_finished() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_group(cluster, "first", "first-0", "first-1")
        await add_group(cluster, "second", "second-0", "second-1")
        for name in ("first", "second"):
            await cluster.user.delete(POD_GROUPS, name, TEAM)
        await cluster.settle()
        assert await groups(cluster) == ["first", "second"]
        # One is deleted, the other one finishes; the other group waits.
        await cluster.user.delete(PODS, "first-0", TEAM, NOW)
        await cluster.settle()
        assert await groups(cluster) == ["first", "second"]
        await cluster.patch(PODS, "first-1", {"status": {"phase": "Succeeded"}}, "status")
        await cluster.settle()
        assert await groups(cluster) == ["second"]
        for name in ("second-0", "second-1"):
            await cluster.user.delete(PODS, name, TEAM, NOW)
        await cluster.settle()
        assert await groups(cluster) == []

    run(scenario)


@pytest.mark.behaviour("GW-70")
def test_a_group_whose_pods_are_gone_before_it_is_deleted_goes_at_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        for _ in range(2):
            await add_group(cluster, "group", "pod")
            await cluster.settle()
            await cluster.user.delete(PODS, "pod", TEAM, NOW)
            await cluster.settle()
            assert await groups(cluster) == ["group"]
            await cluster.user.delete(POD_GROUPS, "group", TEAM)
            await cluster.settle()
            # The next group has the same name.
            assert await groups(cluster) == []

    run(scenario)


@pytest.mark.behaviour("GW-70")
@pytest.mark.parametrize("held", ["pods", "podgroups"])
def test_the_events_of_groups_and_pods_come_in_any_order(held: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_group(cluster, "group", "pod")
        await cluster.settle()
        cluster.transport.held.add(held)
        await cluster.user.delete(POD_GROUPS, "group", TEAM)
        await cluster.user.delete(PODS, "pod", TEAM, NOW)
        await cluster.settle()
        assert await groups(cluster) == ["group"]
        cluster.transport.held.clear()
        await cluster.settle()
        assert await groups(cluster) == []

    run(scenario)
