"""Claims that the scheduler created for extended resources, after their Pods have finished."""

from __future__ import annotations

import msgspec
import pytest

from dray.api.pod_claims import EXTENDED_RESOURCE_ANNOTATION
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.client.interface import DeleteOptions, Patch, PatchType, WriteOptions
from dray.client.resources import PODS, RESOURCE_CLAIMS
from dray.scheduler.plugins.dynamic_resources.extended_resources import make_claim, needs_of, plan_requests, status_of
from tests.unit.controllers.resource_claim.test_resource_claim_reconciler import TEAM, ClusterHarness, running, until

GPU = "example.com/gpu"
GAUGE = "resourceclaim_controller_resource_claims"


async def served(cluster: ClusterHarness, *, named: bool = True) -> tuple[Pod, ResourceClaim]:
    """A Pod with its special claim as the scheduler leaves them; unnamed, as it leaves them when it crashes."""
    limits = {"limits": {GPU: "1"}, "requests": {GPU: "1"}}
    container = {"name": "c", "image": "i", "resources": limits}
    pod = await cluster.pod("pod", [], containers=[container])
    wanted = plan_requests(needs_of(pod), ((GPU, "gpu"),))
    made = make_claim(pod, wanted.requests)
    body = msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, uid=None))
    claim = await cluster.user.create(RESOURCE_CLAIMS, body)
    result = {"request": "container-0-request-0", "driver": "gpu.example.com", "pool": "pool", "device": "gpu-0"}
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": "pod", "uid": pod.metadata.uid}],
    }
    claim = msgspec.structs.replace(claim, status=msgspec.convert(status, type(claim.status)))
    claim = await cluster.user.update_status(RESOURCE_CLAIMS, claim)
    if named:
        named_by = status_of(claim.metadata.name or "", wanted)
        patch = {"status": {"extendedResourceClaimStatus": msgspec.to_builtins(named_by)}}
        options = WriteOptions(subresource="status")
        pod = await cluster.user.patch(PODS, "pod", TEAM, Patch(PatchType.MERGE, patch), options)
    return pod, claim


def counted(cluster: ClusterHarness, allocated: str) -> float:
    labels = {
        "allocated": allocated,
        "admin_access": "false",
        "source": "extended_resource",
        "prioritized_list": "false",
    }
    return cluster.metrics.value(GAUGE, labels)


@pytest.mark.behaviour("XR-37", "XR-38")
@pytest.mark.parametrize("named", [True, False], ids=["named", "not named yet"])
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_the_claim_is_deleted_when_the_pod_has_finished(phase: str, named: bool) -> None:
    async with running() as cluster:
        pod, claim = await served(cluster, named=named)
        name = claim.metadata.name or ""
        await until(lambda: _seen(cluster))
        await cluster.finish(pod, phase)
        await until(lambda: _gone(cluster, name))


@pytest.mark.behaviour("XR-37")
async def test_the_claim_stays_while_the_pod_runs() -> None:
    async with running() as cluster:
        pod, claim = await served(cluster)
        await cluster.finish(pod, "Running")
        marker = await cluster.claim("marker")
        # One that is worked on after the Pod's change shows that the change was looked at.
        await cluster.user.delete(RESOURCE_CLAIMS, marker.metadata.name or "", TEAM)
        await until(lambda: _gone(cluster, "marker"))
        found = await cluster.get(claim.metadata.name or "")
        assert found is not None
        assert found.status == claim.status
        assert found.metadata.annotations == {EXTENDED_RESOURCE_ANNOTATION: "true"}


@pytest.mark.behaviour("XR-30", "XR-37")
async def test_the_claim_is_freed_with_a_pod_that_is_deleted_and_counted_until_then() -> None:
    async with running() as cluster:
        pod, claim = await served(cluster)
        await until(lambda: _counted(cluster, "true"))
        options = DeleteOptions(grace_period_seconds=0)
        await cluster.user.delete(PODS, pod.metadata.name or "", TEAM, options)
        await until(lambda: _freed(cluster, claim.metadata.name or ""))
        # The garbage collector's part.
        if await cluster.get(claim.metadata.name or "") is not None:
            await cluster.user.delete(RESOURCE_CLAIMS, claim.metadata.name or "", TEAM)
        await until(lambda: _gone(cluster, claim.metadata.name or ""))
        await until(lambda: _uncounted(cluster))


async def _seen(cluster: ClusterHarness) -> bool:
    return counted(cluster, "true") == 1


async def _counted(cluster: ClusterHarness, allocated: str) -> bool:
    return counted(cluster, allocated) == 1


async def _uncounted(cluster: ClusterHarness) -> bool:
    return counted(cluster, "true") == counted(cluster, "false") == 0


async def _gone(cluster: ClusterHarness, name: str) -> bool:
    return await cluster.get(name) is None


async def _freed(cluster: ClusterHarness, name: str) -> bool:
    claim = await cluster.get(name)
    return claim is None or claim.status.allocation is None
