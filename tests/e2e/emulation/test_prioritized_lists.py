"""KEP-4816, rollout: enabled, disabled in one component after the other, and enabled again, while Pods run."""

from __future__ import annotations

import pytest

from dray.api.document import Document
from dray.api.errors import InvalidError
from dray.api.gate_table import Release
from dray.client.resources import RESOURCE_CLAIMS, RESOURCE_QUOTAS
from tests.e2e.emulation.rollout import Rollout, exactly, first_available, gates, rollout, started_at

ON = gates(release=Release(1, 35))
QUOTAS = RESOURCE_QUOTAS.unstructured
OFF = gates("DRAPrioritizedList=false", Release(1, 35))


async def start(cluster: Rollout) -> None:
    """Everything on."""
    await cluster.serve(ON)
    await cluster.prepare()
    await cluster.control(ON)
    await cluster.schedule(ON)
    await cluster.start_node()


@pytest.mark.behaviour("EV-20", "PL-24", "PL-35")
def test_the_gate_is_switched_off_and_on_again_while_a_pod_runs() -> None:
    async def test(cluster: Rollout) -> None:
        await start(cluster)
        await cluster.claim("early", first_available(4, 1))
        await cluster.pod("early", "early")
        running = started_at(await cluster.running("early"))
        before = (await cluster.stored_claim("early"))["status"]

        await cluster.schedule(OFF)
        await cluster.claim("waits", first_available(1))
        await cluster.pod("waits", "waits")
        await cluster.pending("waits", "has subrequests, but the DRAPrioritizedList feature is disabled")

        await cluster.serve(OFF)
        with pytest.raises(InvalidError) as refused:
            await cluster.claim("late", first_available(1))
        assert "spec.devices.requests[0]" in str(refused.value)
        await cluster.schedule(ON)
        # What is stored is served, and can be used.
        assert (await cluster.stored_claim("waits"))["spec"]["devices"]["requests"] == [
            {
                "name": "gpu",
                "firstAvailable": [
                    {"name": "a0", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
                ],
            }
        ]
        await cluster.running("waits")
        with pytest.raises(InvalidError):
            await cluster.claim("late", first_available(1))
        await cluster.claim("plain", exactly())

        await cluster.serve(ON)
        await cluster.delete("waits")
        await cluster.claim("late", first_available(4, 1))
        await cluster.pod("late", "late")
        await cluster.running("late")

        claim = await cluster.stored_claim("early")
        assert claim["status"] == before
        assert claim["status"]["allocation"]["devices"]["results"][0]["request"] == "gpu/a1"
        assert started_at(await cluster.stored_pod("early")) == running

    rollout(test)


@pytest.mark.behaviour("EV-20")
def test_no_claims_are_created_from_templates_while_the_server_has_the_gate_off() -> None:
    async def test(cluster: Rollout) -> None:
        await start(cluster)
        await cluster.template("either", first_available(4, 1))
        await cluster.serve(OFF)
        await cluster.pod("late", template="either")
        found = await cluster.eventually(lambda: cluster.events("FailedResourceClaimCreation"), bool)
        assert "spec.devices.requests[0]" in found[0]
        assert (await cluster.client.list(RESOURCE_CLAIMS.unstructured, "default")).items == []
        await cluster.serve(ON)
        await cluster.running("late")

    rollout(test)


SKIPS = gates("DRASkipUnknownClasses=true")


def portable(*counts: int) -> Document:
    """A list that begins with a class that this cluster does not have."""
    request = first_available(*counts)
    request["firstAvailable"].insert(0, {"name": "elsewhere", "deviceClassName": "other-vendor"})
    return request


@pytest.mark.behaviour("PL-36", "PL-37")
def test_an_alternative_whose_class_does_not_exist_can_be_skipped() -> None:
    async def test(cluster: Rollout) -> None:
        await cluster.serve(gates())
        await cluster.prepare()
        await cluster.control(gates())
        await cluster.schedule(gates())
        await cluster.start_node()
        await cluster.claim("a", portable(1))
        await cluster.pod("a", "a")
        await cluster.pending("a", "request gpu/elsewhere: device class other-vendor does not exist")
        await cluster.schedule(SKIPS)
        await cluster.running("a")
        results = (await cluster.stored_claim("a"))["status"]["allocation"]["devices"]["results"]
        assert [item["request"] for item in results] == ["gpu/a0"]
        labels = {"class": "gpu", "request": "gpu", "rank": "fallback"}
        assert cluster.metrics.value("dray_prioritized_list_choices_total", labels) == 1
        events = await cluster.eventually(lambda: cluster.events("LowerChoiceAllocated"), bool)
        assert events == ["claim default/a got a lower choice: gpu/a0 (2 of 2) of class gpu"]
        # What is missing is said while nothing else fits, and if nothing else is listed.
        await cluster.claim("b", portable(2))
        await cluster.pod("b", "b")
        await cluster.pending("b", "request gpu/elsewhere skipped: device class other-vendor does not exist")
        await cluster.claim("c", portable())
        await cluster.pod("c", "c")
        await cluster.pending("c", "request gpu/elsewhere: device class other-vendor does not exist")

    rollout(test)


@pytest.mark.behaviour("PL-33", "PL-38")
@pytest.mark.parametrize(("text", "left"), [("", "2"), ("QuotaFollowsAllocation=true", "1")])
def test_a_quota_can_follow_the_choice(text: str, left: str) -> None:
    async def test(cluster: Rollout) -> None:
        await cluster.serve(gates())
        await cluster.prepare()
        await cluster.control(gates(text))
        await cluster.schedule(gates())
        await cluster.start_node()
        name = "gpu.deviceclass.resource.k8s.io/devices"
        quota = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": {name: "4"}}}
        await cluster.client.create(QUOTAS, quota)

        async def used() -> str:
            status = (await cluster.client.get(QUOTAS, "q", "default")).get("status") or {}
            return str((status.get("used") or {}).get(name))

        await cluster.eventually(used, lambda found: found == "0")
        # More than there is, and one.
        await cluster.claim("busy", exactly())
        await cluster.pod("busy", "busy")
        await cluster.running("busy")
        await cluster.claim("a", first_available(2, 1))
        await cluster.eventually(used, lambda found: found == "3")
        await cluster.pod("a", "a")
        await cluster.running("a")
        await cluster.clock.sleep(20)
        assert await used() == str(int(left) + 1)
        await cluster.delete("a")

    rollout(test)
