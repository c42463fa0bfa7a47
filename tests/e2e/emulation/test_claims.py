"""KEP-3063, rollout: DynamicResourceAllocation in 1.34, where it can be switched off, and releases without `v1`."""

from __future__ import annotations

import pytest

from dray.api.document import GroupVersion
from dray.api.errors import PathNotFoundError
from dray.api.gate_table import Release
from dray.client.interface import Patch, PatchType, unstructured
from dray.client.resources import PODS
from tests.e2e.emulation.rollout import Rollout, exactly, first_available, gates, rollout, started_at

ON = gates(release=Release(1, 34))
# Whatever needs the gate goes with it.
OFF = gates(
    "DynamicResourceAllocation=false,DRAAdminAccess=false,DRAPrioritizedList=false,DRASchedulerFilterTimeout=false",
    Release(1, 34),
)
LABEL = Patch(PatchType.MERGE, {"metadata": {"labels": {"a": "b"}}})


async def start(cluster: Rollout) -> None:
    """Everything on."""
    await cluster.serve(ON)
    await cluster.prepare()
    await cluster.control(ON)
    await cluster.schedule(ON)
    await cluster.start_node()


@pytest.mark.behaviour("EV-23")
def test_the_gate_is_switched_off_and_on_again_while_a_pod_runs() -> None:
    async def test(cluster: Rollout) -> None:
        await start(cluster)
        await cluster.claim("early", exactly())
        await cluster.pod("early", "early")
        running = started_at(await cluster.running("early"))
        before = (await cluster.stored_claim("early"))["status"]

        await cluster.serve(OFF)
        await cluster.control(OFF)
        await cluster.schedule(OFF)
        # The fields of a Pod that has them are kept in updates; those of a new one are dropped, with a warning.
        kept = await cluster.client.patch(PODS.unstructured, "early", "default", LABEL)
        assert kept["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimName": "early"}]
        assert kept["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]
        made = await cluster.pod("plain", "early")
        assert "resourceClaims" not in made["spec"]
        assert "claims" not in made["spec"]["containers"][0]["resources"]
        await cluster.running("plain")

        await cluster.serve(ON)
        await cluster.control(ON)
        await cluster.schedule(ON)
        # It has no device until somebody deletes it.
        assert "resourceClaims" not in (await cluster.running("plain"))["spec"]
        await cluster.claim("late", exactly())
        await cluster.pod("late", "late")
        await cluster.running("late")
        after = (await cluster.stored_claim("late"))["status"]
        devices = [status["allocation"]["devices"]["results"][0]["device"] for status in (before, after)]
        assert len(set(devices)) == 2
        assert (await cluster.stored_claim("early"))["status"] == before
        assert started_at(await cluster.stored_pod("early")) == running

    rollout(test)


@pytest.mark.behaviour("EV-10", "EV-11", "EV-24")
def test_a_cluster_is_rolled_back_to_a_release_without_the_version_that_it_uses() -> None:
    old = gates("DynamicResourceAllocation=true,DRAPrioritizedList=true", Release(1, 33))

    async def test(cluster: Rollout) -> None:
        await cluster.serve(gates())
        await cluster.prepare()
        await cluster.control(gates())
        await cluster.schedule(gates())
        await cluster.start_node()
        await cluster.claim("early", first_available(4, 1))
        await cluster.pod("early", "early")
        running = started_at(await cluster.running("early"))

        await cluster.serve(old)
        await cluster.control(old)
        await cluster.schedule(old)
        with pytest.raises(PathNotFoundError):
            await cluster.client.get_path("/apis/resource.k8s.io/v1")
        # The node has not been restarted, and followed v1 until now.
        await cluster.claim("late", first_available(1), version="v1beta2")
        await cluster.pod("late", "late")
        await cluster.running("late")
        # What is stored is served, with fields that the release did not have.
        found = await cluster.client.get(
            unstructured(GroupVersion("resource.k8s.io", "v1beta1"), "resourceclaims", "ResourceClaim"),
            "early",
            "default",
        )
        assert found["spec"]["devices"]["requests"][0]["firstAvailable"][1]["name"] == "a1"

        await cluster.serve(gates())
        await cluster.control(gates())
        await cluster.schedule(gates())
        await cluster.delete("late")
        await cluster.claim("again", exactly())
        await cluster.pod("again", "again")
        await cluster.running("again")
        assert started_at(await cluster.stored_pod("early")) == running

    rollout(test)
