"""Pods leave devices that are tainted, by their driver or by an administrator."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dray.api.document import Document
from dray.client.interface import Patch, PatchType
from tests.conformance.evictions.world import CLAIMS, PODS, RULES, SLICES, STATUS, TEAM, World, virtually

pytestmark = pytest.mark.behaviour("SP-145")

DEVICE = "gpu.example.com/pool/d0"
SICK = {"key": "sick", "effect": "NoExecute"}
FOR_30 = ({"key": "sick", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30},)


async def furnish(world: World, *, tolerations: Any = (), device: str = DEVICE, name: str = "p") -> None:
    """A node, a Pod on it and its claim."""
    if not world.living:
        await world.node("n")
        await world.slice()
    pod = await world.pod(name, "n", resourceClaims=[{"name": "gpu", "resourceClaimName": f"{name}-claim"}])
    await world.claim(f"{name}-claim", device, pod, tolerations=tolerations)


async def rule(world: World, effect: str = "NoExecute", **selector: str) -> Document:
    spec = {"deviceSelector": selector, "taint": {"key": "sick", "effect": effect}}
    return await world.user.create(RULES, {"metadata": {"name": "r"}, "spec": spec})


async def condition(world: World) -> Document:
    found = await world.user.get(RULES, "r")
    return next(iter((found.get("status") or {}).get("conditions") or ()), {})


def says(world: World, reason: str) -> Any:
    async def look() -> bool:
        return (await condition(world)).get("reason") == reason

    return look


def test_a_driver_taints_its_device() -> None:
    async def story(world: World) -> None:
        await furnish(world)
        await furnish(world, name="other", device="gpu.example.com/pool/d1")
        world.living.clear()
        await world.slice(taints=[SICK])
        assert await world.until(lambda: world.terminating("p")) < 2.0
        found = await world.condition("p", "DisruptionTarget")
        assert (found["status"], found["reason"], found["message"]) == (
            "True",
            "DeletionByDeviceTaintManager",
            "Device Taint manager: deleting due to NoExecute taint",
        )
        await world.until(lambda: world.events("DeviceTaintManagerEviction"))
        assert await world.events("DeviceTaintManagerEviction") == [("p", "Normal", "Marking for deletion")]
        assert not await world.terminating("other")
        prefix = "device_taint_eviction_controller_pod_deletion"
        assert world.metrics.value(prefix + "s_total") == 1
        assert world.metrics.value(prefix + "_duration_seconds_count") == 1

    virtually(story)


def test_tolerated_for_a_while() -> None:
    async def story(world: World) -> None:
        await furnish(world, tolerations=FOR_30)
        await world.slice(taints=[SICK])
        assert 28.0 < await world.until(lambda: world.gone("p")) < 32.0

    virtually(story)


def test_cancelled_when_the_taint_goes() -> None:
    async def story(world: World) -> None:
        await furnish(world, tolerations=FOR_30)
        await world.slice(taints=[SICK])
        await asyncio.sleep(10)
        await world.slice()
        await world.until(lambda: world.events("DeviceTaintManagerEviction"))
        assert await world.events("DeviceTaintManagerEviction") == [("p", "Normal", "Cancelling deletion")]
        await asyncio.sleep(60)
        assert not await world.terminating("p")

    virtually(story)


def test_the_time_is_counted_from_the_taint_not_from_the_pod() -> None:
    async def story(world: World) -> None:
        await world.node("n")
        await world.slice(taints=[SICK])
        # The slice is there already: only the Pod and its claim are new.
        await asyncio.sleep(20)
        await furnish(world, tolerations=FOR_30)
        assert await world.until(lambda: world.gone("p")) < 12.0

    virtually(story)


def test_a_slice_that_is_gone_taints_no_more() -> None:
    async def story(world: World) -> None:
        await furnish(world, tolerations=FOR_30)
        await world.slice(taints=[SICK])
        await asyncio.sleep(5)
        await world.user.delete(SLICES, "s")
        await asyncio.sleep(60)
        assert not await world.terminating("p")

    virtually(story)


def test_a_rule_and_what_it_says() -> None:
    async def story(world: World) -> None:
        await furnish(world, tolerations=FOR_30)
        made = await rule(world, driver="gpu.example.com")
        assert await world.until(says(world, "PodsPendingEviction")) < 12.0
        found = await condition(world)
        assert found["type"] == "EvictionInProgress"
        assert found["status"] == "True"
        assert found["message"] == "1 pod needs to be evicted in 1 namespace."
        assert found["observedGeneration"] == made["metadata"]["generation"]
        await world.until(lambda: world.gone("p"))
        await world.until(says(world, "Completed"))
        found = await condition(world)
        assert (found["status"], found["message"]) == ("False", "1 pod evicted since starting the controller.")

    virtually(story)


def test_cancelled_when_the_rule_goes() -> None:
    async def story(world: World) -> None:
        await furnish(world, tolerations=FOR_30)
        await rule(world, pool="pool")
        await asyncio.sleep(10)
        await world.user.delete(RULES, "r")
        await world.until(lambda: world.events("DeviceTaintManagerEviction"))
        await asyncio.sleep(60)
        assert not await world.terminating("p")

    virtually(story)


def test_a_rule_for_nobody() -> None:
    async def story(world: World) -> None:
        await furnish(world)
        await rule(world, device="d9")
        await world.until(says(world, "NotStarted"))
        await asyncio.sleep(30)
        assert not await world.terminating("p")

    virtually(story)


def test_a_dry_run_and_then_for_real() -> None:
    async def story(world: World) -> None:
        await furnish(world)
        await rule(world, "None", driver="gpu.example.com")
        await world.until(says(world, "NoEffect"))
        found = await condition(world)
        assert found["status"] == "False"
        assert found["message"] == (
            "2 published devices selected. 1 allocated device selected. 1 pod would be evicted in 1 namespace "
            "if the effect was NoExecute. This information will not be updated again. "
            "Recreate the DeviceTaintRule to trigger an update."
        )
        await asyncio.sleep(60)
        assert not await world.terminating("p")
        effect = Patch(PatchType.MERGE, {"spec": {"taint": {"effect": "NoExecute"}}})
        await world.user.patch(RULES, "r", "", effect)
        assert await world.until(lambda: world.gone("p")) < 3.0

    virtually(story)


def test_a_rule_that_only_keeps_new_pods_away() -> None:
    async def story(world: World) -> None:
        await furnish(world)
        await rule(world, "NoSchedule", driver="gpu.example.com")
        await world.until(says(world, "OtherEffect"))
        assert (await condition(world))["message"] == "Eviction only happens for the NoExecute effect."
        await asyncio.sleep(30)
        assert not await world.terminating("p")

    virtually(story)


def test_without_rules_only_slices_taint() -> None:
    async def story(world: World) -> None:
        await furnish(world)
        await world.slice(taints=[SICK])
        await world.until(lambda: world.gone("p"))

    virtually(story, gates="DRADeviceTaintRules=false")


def test_extended_resources() -> None:
    async def story(world: World) -> None:
        await world.node("n")
        await world.slice()
        amounts = {"example.com/gpu": "1"}
        container = {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}
        pod = await world.pod("p", "n", containers=[container])
        claim = await world.claim("c", DEVICE, pod)
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"], "controller": True}
        await world.user.patch(CLAIMS, "c", TEAM, Patch(PatchType.MERGE, {"metadata": {"ownerReferences": [owner]}}))
        assert claim["status"]["allocation"]
        mapping = {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "r"}
        status = {"extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": [mapping]}}
        await world.user.patch(PODS, "p", TEAM, Patch(PatchType.MERGE, {"status": status}), STATUS)
        await world.slice(taints=[SICK])
        assert await world.until(lambda: world.gone("p")) < 3.0

    virtually(story)
