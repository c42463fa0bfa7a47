"""KEP-5004, rollout: enabled, disabled in one component after the other, and enabled again, while Pods run."""

from __future__ import annotations

import pytest

from dray.api.document import Document
from dray.api.gate_table import Release
from dray.client.interface import Patch, PatchType
from dray.client.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS
from tests.e2e.emulation.rollout import GPU, Rollout, gates, rollout, started_at

NAME = "example.com/gpu"
ON = gates(release=Release(1, 36))
OFF = gates("DRAExtendedResource=false", Release(1, 36))


async def start(cluster: Rollout) -> None:
    """Everything on, and the class has a name."""
    await cluster.serve(ON)
    await cluster.prepare()
    await cluster.control(ON)
    await cluster.schedule(ON)
    await cluster.start_node()
    await cluster.name_extended_resource(NAME)


async def device_of(cluster: Rollout, pod: str) -> str:
    status: Document = (await cluster.stored_pod(pod))["status"]["extendedResourceClaimStatus"]
    claim = await cluster.stored_claim(status["resourceClaimName"])
    return str(claim["status"]["allocation"]["devices"]["results"][0]["device"])


@pytest.mark.behaviour("EV-21", "XR-44")
def test_the_gate_is_switched_off_and_on_again_while_a_pod_runs() -> None:
    async def test(cluster: Rollout) -> None:
        await start(cluster)
        await cluster.pod("early", **{NAME: "1"})
        running = started_at(await cluster.running("early"))
        device = await device_of(cluster, "early")

        await cluster.schedule(OFF)
        await cluster.pod("waits", **{NAME: "1"})
        await cluster.pending("waits", f"Insufficient {NAME}")
        await cluster.serve(OFF)
        await cluster.control(OFF)
        # The class and the Pod keep what they have, whatever is written.
        label = Patch(PatchType.MERGE, {"metadata": {"labels": {"a": "b"}}})
        patched = await cluster.client.patch(DEVICE_CLASSES.unstructured, GPU, "", label)
        assert patched["spec"]["extendedResourceName"] == NAME
        await cluster.client.patch(PODS.unstructured, "early", "default", label)
        made = await cluster.client.create(
            DEVICE_CLASSES.unstructured, {"metadata": {"name": "other"}, "spec": {"extendedResourceName": "a.b/c"}}
        )
        assert made["spec"] == {}

        await cluster.serve(ON)
        await cluster.control(ON)
        await cluster.schedule(ON)
        # The devices of Pods that were started before are not forgotten: each has its own.
        await cluster.running("waits")
        assert await device_of(cluster, "waits") != device
        assert await device_of(cluster, "early") == device
        assert started_at(await cluster.stored_pod("early")) == running

    rollout(test)


@pytest.mark.behaviour("EV-21", "XR-37")
def test_a_device_is_freed_while_the_gate_is_off() -> None:
    async def test(cluster: Rollout) -> None:
        await start(cluster)
        await cluster.pod("early", **{NAME: "2"})
        await cluster.running("early")
        await cluster.serve(OFF)
        await cluster.control(OFF)
        await cluster.schedule(OFF)
        await cluster.delete("early")

        async def left() -> list[str]:
            page = await cluster.client.list(RESOURCE_CLAIMS.unstructured, "default")
            return [item["metadata"]["name"] for item in page.items]

        await cluster.eventually(left, lambda names: not names)
        await cluster.serve(ON)
        await cluster.schedule(ON)
        await cluster.pod("late", **{NAME: "2"})
        await cluster.running("late")

    rollout(test)


@pytest.mark.behaviour("EV-22")
def test_a_server_without_the_feature_and_a_scheduler_with_it() -> None:
    async def test(cluster: Rollout) -> None:
        await start(cluster)
        await cluster.serve(OFF)
        await cluster.pod("new", **{NAME: "1"})
        # It would run without the device, of which its node would not know.
        await cluster.pending("new", "the API server drops status.extendedResourceClaimStatus")
        await cluster.serve(ON)
        await cluster.running("new")
        assert await device_of(cluster, "new")

    rollout(test)
