"""Pods leave devices that are tainted, by their driver or by an administrator."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dray.api.document import Document, GroupVersion
from dray.client.interface import Patch, PatchType, unstructured
from tests.conformance.evictions.cluster import CLAIMS, PODS, RULES, SLICES, STATUS, TEAM, Cluster, virtually

pytestmark = pytest.mark.behaviour("SP-145")

DEVICE = "gpu.example.com/pool/d0"
GROUPS = unstructured(GroupVersion("scheduling.k8s.io", "v1beta1"), "podgroups", "PodGroup")
SICK = {"key": "sick", "effect": "NoExecute"}
FOR_30 = ({"key": "sick", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30},)


async def furnish(cluster: Cluster, *, tolerations: Any = (), device: str = DEVICE, name: str = "p") -> None:
    """A node, a Pod on it and its claim."""
    if not cluster.living:
        await cluster.node("n")
        await cluster.slice()
    pod = await cluster.pod(name, "n", resourceClaims=[{"name": "gpu", "resourceClaimName": f"{name}-claim"}])
    await cluster.claim(f"{name}-claim", device, pod, tolerations=tolerations)


async def rule(cluster: Cluster, effect: str = "NoExecute", **selector: str) -> Document:
    spec = {"deviceSelector": selector, "taint": {"key": "sick", "effect": effect}}
    return await cluster.user.create(RULES, {"metadata": {"name": "r"}, "spec": spec})


async def condition(cluster: Cluster) -> Document:
    found = await cluster.user.get(RULES, "r")
    return next(iter((found.get("status") or {}).get("conditions") or ()), {})


def says(cluster: Cluster, reason: str) -> Any:
    async def look() -> bool:
        return (await condition(cluster)).get("reason") == reason

    return look


def test_a_driver_taints_its_device() -> None:
    async def scenario(cluster: Cluster) -> None:
        await furnish(cluster)
        await furnish(cluster, name="other", device="gpu.example.com/pool/d1")
        cluster.living.clear()
        await cluster.slice(taints=[SICK])
        assert await cluster.until(lambda: cluster.terminating("p")) < 2.0
        found = await cluster.condition("p", "DisruptionTarget")
        assert (found["status"], found["reason"], found["message"]) == (
            "True",
            "DeletionByDeviceTaintManager",
            "Device Taint manager: deleting due to NoExecute taint",
        )
        await cluster.until(lambda: cluster.events("DeviceTaintManagerEviction"))
        assert await cluster.events("DeviceTaintManagerEviction") == [("p", "Normal", "Marking for deletion")]
        assert not await cluster.terminating("other")
        prefix = "device_taint_eviction_controller_pod_deletion"
        assert cluster.metrics.value(prefix + "s_total") == 1
        assert cluster.metrics.value(prefix + "_duration_seconds_count") == 1

    virtually(scenario)


def test_tolerated_for_a_while() -> None:
    async def scenario(cluster: Cluster) -> None:
        await furnish(cluster, tolerations=FOR_30)
        await cluster.slice(taints=[SICK])
        assert 28.0 < await cluster.until(lambda: cluster.gone("p")) < 32.0

    virtually(scenario)


def test_cancelled_when_the_taint_goes() -> None:
    async def scenario(cluster: Cluster) -> None:
        await furnish(cluster, tolerations=FOR_30)
        await cluster.slice(taints=[SICK])
        await asyncio.sleep(10)
        await cluster.slice()
        await cluster.until(lambda: cluster.events("DeviceTaintManagerEviction"))
        assert await cluster.events("DeviceTaintManagerEviction") == [("p", "Normal", "Cancelling deletion")]
        await asyncio.sleep(60)
        assert not await cluster.terminating("p")

    virtually(scenario)


def test_the_time_is_counted_from_the_taint_not_from_the_pod() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.node("n")
        await cluster.slice(taints=[SICK])
        # The slice is there already: only the Pod and its claim are new.
        await asyncio.sleep(20)
        await furnish(cluster, tolerations=FOR_30)
        assert await cluster.until(lambda: cluster.gone("p")) < 12.0

    virtually(scenario)


def test_a_slice_that_is_gone_taints_no_more() -> None:
    async def scenario(cluster: Cluster) -> None:
        await furnish(cluster, tolerations=FOR_30)
        await cluster.slice(taints=[SICK])
        await asyncio.sleep(5)
        await cluster.user.delete(SLICES, "s")
        await asyncio.sleep(60)
        assert not await cluster.terminating("p")

    virtually(scenario)


def test_a_rule_and_what_it_says() -> None:
    async def scenario(cluster: Cluster) -> None:
        await furnish(cluster, tolerations=FOR_30)
        made = await rule(cluster, driver="gpu.example.com")
        assert await cluster.until(says(cluster, "PodsPendingEviction")) < 12.0
        found = await condition(cluster)
        assert found["type"] == "EvictionInProgress"
        assert found["status"] == "True"
        assert found["message"] == "1 pod needs to be evicted in 1 namespace."
        assert found["observedGeneration"] == made["metadata"]["generation"]
        await cluster.until(lambda: cluster.gone("p"))
        await cluster.until(says(cluster, "Completed"))
        found = await condition(cluster)
        assert (found["status"], found["message"]) == ("False", "1 pod evicted since starting the controller.")

    virtually(scenario)


def test_cancelled_when_the_rule_goes() -> None:
    async def scenario(cluster: Cluster) -> None:
        await furnish(cluster, tolerations=FOR_30)
        await rule(cluster, pool="pool")
        await asyncio.sleep(10)
        await cluster.user.delete(RULES, "r")
        await cluster.until(lambda: cluster.events("DeviceTaintManagerEviction"))
        await asyncio.sleep(60)
        assert not await cluster.terminating("p")

    virtually(scenario)


def test_a_rule_that_selects_no_device() -> None:
    async def scenario(cluster: Cluster) -> None:
        await furnish(cluster)
        await rule(cluster, device="d9")
        await cluster.until(says(cluster, "NotStarted"))
        await asyncio.sleep(30)
        assert not await cluster.terminating("p")

    virtually(scenario)


def test_a_dry_run_and_then_for_real() -> None:
    async def scenario(cluster: Cluster) -> None:
        await furnish(cluster)
        await rule(cluster, "None", driver="gpu.example.com")
        await cluster.until(says(cluster, "NoEffect"))
        found = await condition(cluster)
        assert found["status"] == "False"
        assert found["message"] == (
            "2 published devices selected. 1 allocated device selected. 1 pod would be evicted in 1 namespace "
            "if the effect was NoExecute. This information will not be updated again. "
            "Recreate the DeviceTaintRule to trigger an update."
        )
        await asyncio.sleep(60)
        assert not await cluster.terminating("p")
        effect = Patch(PatchType.MERGE, {"spec": {"taint": {"effect": "NoExecute"}}})
        await cluster.user.patch(RULES, "r", "", effect)
        assert await cluster.until(lambda: cluster.gone("p")) < 3.0

    virtually(scenario)


def test_a_rule_that_only_keeps_new_pods_away() -> None:
    async def scenario(cluster: Cluster) -> None:
        await furnish(cluster)
        await rule(cluster, "NoSchedule", driver="gpu.example.com")
        await cluster.until(says(cluster, "OtherEffect"))
        assert (await condition(cluster))["message"] == "Eviction only happens for the NoExecute effect."
        await asyncio.sleep(30)
        assert not await cluster.terminating("p")

    virtually(scenario)


def test_without_rules_only_slices_taint() -> None:
    async def scenario(cluster: Cluster) -> None:
        await furnish(cluster)
        await cluster.slice(taints=[SICK])
        await cluster.until(lambda: cluster.gone("p"))

    virtually(scenario, gates="DRADeviceTaintRules=false")


def test_extended_resources() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.node("n")
        await cluster.slice()
        amounts = {"example.com/gpu": "1"}
        container = {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}
        pod = await cluster.pod("p", "n", containers=[container])
        claim = await cluster.claim("c", DEVICE, pod)
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"], "controller": True}
        await cluster.user.patch(CLAIMS, "c", TEAM, Patch(PatchType.MERGE, {"metadata": {"ownerReferences": [owner]}}))
        assert claim["status"]["allocation"]
        mapping = {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "r"}
        status = {"extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": [mapping]}}
        await cluster.user.patch(PODS, "p", TEAM, Patch(PatchType.MERGE, {"status": status}), STATUS)
        await cluster.slice(taints=[SICK])
        assert await cluster.until(lambda: cluster.gone("p")) < 3.0

    virtually(scenario)


GROUP_GATES = "GenericWorkload=true,DRAWorkloadResourceClaims=true"


@pytest.mark.behaviour("N-07")
def test_a_claim_reserved_for_a_group_drives_out_the_pods_of_the_group_that_use_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.node("n", alive=False)
        await cluster.slice()
        spec = {
            "schedulingPolicy": {"basic": {}},
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}],
        }
        group = await cluster.user.create(GROUPS, {"metadata": {"name": "g", "namespace": TEAM}, "spec": spec})
        entry, member = {"name": "gpu", "resourceClaimName": "shared"}, {"podGroupName": "g"}
        for name in ("a", "b"):
            await cluster.pod(name, "n", resourceClaims=[entry], schedulingGroup=member)
        await cluster.pod("member-without-claim", "n", schedulingGroup=member)
        claim = await cluster.claim("shared", DEVICE)
        user = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": group["metadata"]["uid"]}
        claim["status"]["reservedFor"] = [user]
        await cluster.user.update_status(CLAIMS, claim)
        await cluster.slice(taints=[SICK])
        for name in ("a", "b"):
            await cluster.until(lambda name=name: cluster.terminating(name))  # type: ignore[misc]
        await asyncio.sleep(60)
        assert not await cluster.terminating("member-without-claim")

    virtually(scenario, gates=GROUP_GATES)
