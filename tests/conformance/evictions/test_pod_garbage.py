"""Pods that no node will finish."""

from __future__ import annotations

import asyncio

from dray.api.pod_claims import FINALIZER
from dray.client.interface import Patch, PatchType
from tests.conformance.evictions.world import CLAIMS, NODES, PODS, STATUS, TEAM, World, virtually

OUT = "node.kubernetes.io/out-of-service:NoExecute"
STAY = [{"operator": "Exists"}]


def removed(world: World, reason: str) -> float:
    labels = {"namespace": TEAM, "reason": reason}
    return world.metrics.value("pod_gc_collector_force_delete_pods_total", labels)


def test_the_pods_of_a_node_that_is_gone() -> None:
    async def story(world: World) -> None:
        await world.node("n", alive=False)
        await world.pod("p", "n")
        finalizers = Patch(PatchType.MERGE, {"metadata": {"finalizers": ["a.example.com/hold"]}})
        await world.user.patch(PODS, "p", TEAM, finalizers)
        await world.pod("q", "n")
        await world.user.delete(NODES, "n")
        assert 39.0 < await world.until(lambda: world.gone("q")) < 42.0
        found = await world.find("p")
        assert found is not None
        assert found["status"]["phase"] == "Failed"
        condition = await world.condition("p", "DisruptionTarget")
        assert (condition["status"], condition["reason"], condition["message"]) == (
            "True",
            "DeletionByPodGC",
            "PodGC: node no longer exists",
        )
        assert removed(world, "orphaned") == 2

    virtually(story)


def test_a_node_that_comes_back_in_time_keeps_its_pods() -> None:
    async def story(world: World) -> None:
        await world.node("n")
        await world.pod("p", "n")
        await world.user.delete(NODES, "n")
        await asyncio.sleep(30)
        await world.node("n")
        await asyncio.sleep(100)
        found = await world.find("p")
        assert found is not None
        assert found["status"]["phase"] == "Running"

    virtually(story)


def test_a_pod_on_a_node_that_never_was() -> None:
    async def story(world: World) -> None:
        await world.pod("p", "nowhere")
        assert 39.0 < await world.until(lambda: world.gone("p")) < 42.0

    virtually(story)


def test_a_node_out_of_service_and_its_devices() -> None:
    async def story(world: World) -> None:
        await world.node("other")
        await world.node("n", alive=False)
        pod = await world.pod("p", "n", resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}])
        claim = await world.claim("c", "gpu.example.com/pool/d0", pod)
        await world.user.patch(CLAIMS, "c", TEAM, Patch(PatchType.MERGE, {"metadata": {"finalizers": [FINALIZER]}}))
        assert claim["status"]["reservedFor"]
        await world.until(lambda: world.terminating("p"))
        # Its node is dead, so nobody lets go of it.
        await asyncio.sleep(200)
        assert not await world.gone("p")
        await world.taint("n", OUT)
        assert await world.until(lambda: world.gone("p")) < 5.0
        assert removed(world, "out-of-service") == 1

        async def free() -> bool:
            return not (await world.user.get(CLAIMS, "c", TEAM)).get("status", {}).get("allocation")

        await world.until(free)

    virtually(story)


def test_a_ready_node_out_of_service_finishes_its_pods_itself() -> None:
    async def story(world: World) -> None:
        await world.node("n")
        await world.pod("p", "n", tolerations=STAY)
        world.living.clear()
        await world.taint("n", OUT)
        await world.user.delete(PODS, "p", TEAM)
        await asyncio.sleep(20)
        assert not await world.gone("p")
        # As soon as it is known to be dead, the taint counts.
        assert 10.0 < await world.until(lambda: world.gone("p")) < 60.0

    virtually(story)


def test_finished_pods_above_the_threshold() -> None:
    async def story(world: World) -> None:
        await world.node("n")
        for number in range(8):
            await world.pod(f"p{number}", "n")
            await world.user.patch(
                PODS, f"p{number}", TEAM, Patch(PatchType.MERGE, {"status": {"phase": "Succeeded"}}), STATUS
            )
            await asyncio.sleep(1)

        async def names() -> list[str]:
            return sorted(pod["metadata"]["name"] for pod in (await world.user.list(PODS, TEAM)).items)

        async def five() -> bool:
            return len(await names()) == 5

        await world.until(five)
        assert await names() == ["p3", "p4", "p5", "p6", "p7"]
        await asyncio.sleep(100)
        assert len(await names()) == 5
        assert removed(world, "terminated") == 3

    virtually(story, finished_max=5)
