"""Pods that no node will finish."""

from __future__ import annotations

import asyncio

from dray.api.pod_claims import FINALIZER
from dray.client.interface import Patch, PatchType
from tests.conformance.evictions.cluster import CLAIMS, NODES, PODS, STATUS, TEAM, Cluster, virtually

OUT = "node.kubernetes.io/out-of-service:NoExecute"
STAY = [{"operator": "Exists"}]


def removed(cluster: Cluster, reason: str) -> float:
    labels = {"namespace": TEAM, "reason": reason}
    return cluster.metrics.value("pod_gc_collector_force_delete_pods_total", labels)


def test_the_pods_of_a_node_that_is_gone() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.node("n", alive=False)
        await cluster.pod("p", "n")
        finalizers = Patch(PatchType.MERGE, {"metadata": {"finalizers": ["a.example.com/hold"]}})
        await cluster.user.patch(PODS, "p", TEAM, finalizers)
        await cluster.pod("q", "n")
        await cluster.user.delete(NODES, "n")
        assert 39.0 < await cluster.until(lambda: cluster.gone("q")) < 42.0
        found = await cluster.find("p")
        assert found is not None
        assert found["status"]["phase"] == "Failed"
        condition = await cluster.condition("p", "DisruptionTarget")
        assert (condition["status"], condition["reason"], condition["message"]) == (
            "True",
            "DeletionByPodGC",
            "PodGC: node no longer exists",
        )
        assert removed(cluster, "orphaned") == 2

    virtually(scenario)


def test_a_node_that_comes_back_in_time_keeps_its_pods() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.node("n")
        await cluster.pod("p", "n")
        await cluster.user.delete(NODES, "n")
        await asyncio.sleep(30)
        await cluster.node("n")
        await asyncio.sleep(100)
        found = await cluster.find("p")
        assert found is not None
        assert found["status"]["phase"] == "Running"

    virtually(scenario)


def test_a_pod_on_a_node_that_never_was() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.pod("p", "nowhere")
        assert 39.0 < await cluster.until(lambda: cluster.gone("p")) < 42.0

    virtually(scenario)


def test_a_node_out_of_service_and_its_devices() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.node("other")
        await cluster.node("n", alive=False)
        pod = await cluster.pod("p", "n", resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}])
        claim = await cluster.claim("c", "gpu.example.com/pool/d0", pod)
        await cluster.user.patch(CLAIMS, "c", TEAM, Patch(PatchType.MERGE, {"metadata": {"finalizers": [FINALIZER]}}))
        assert claim["status"]["reservedFor"]
        await cluster.until(lambda: cluster.terminating("p"))
        # Its node is dead, so that its finalizer stays.
        await asyncio.sleep(200)
        assert not await cluster.gone("p")
        await cluster.taint("n", OUT)
        assert await cluster.until(lambda: cluster.gone("p")) < 5.0
        assert removed(cluster, "out-of-service") == 1

        async def free() -> bool:
            return not (await cluster.user.get(CLAIMS, "c", TEAM)).get("status", {}).get("allocation")

        await cluster.until(free)

    virtually(scenario)


def test_a_ready_node_out_of_service_finishes_its_pods_itself() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.node("n")
        await cluster.pod("p", "n", tolerations=STAY)
        cluster.living.clear()
        await cluster.taint("n", OUT)
        await cluster.user.delete(PODS, "p", TEAM)
        await asyncio.sleep(20)
        assert not await cluster.gone("p")
        # As soon as it is known to be dead, the taint counts.
        assert 10.0 < await cluster.until(lambda: cluster.gone("p")) < 60.0

    virtually(scenario)


def test_finished_pods_above_the_threshold() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.node("n")
        for number in range(8):
            await cluster.pod(f"p{number}", "n")
            await cluster.user.patch(
                PODS, f"p{number}", TEAM, Patch(PatchType.MERGE, {"status": {"phase": "Succeeded"}}), STATUS
            )
            await asyncio.sleep(1)

        async def names() -> list[str]:
            return sorted(pod["metadata"]["name"] for pod in (await cluster.user.list(PODS, TEAM)).items)

        async def five() -> bool:
            return len(await names()) == 5

        await cluster.until(five)
        assert await names() == ["p3", "p4", "p5", "p6", "p7"]
        await asyncio.sleep(100)
        assert len(await names()) == 5
        assert removed(cluster, "terminated") == 3

    virtually(scenario, finished_max=5)
