"""KEP-4816, rollout: enabled, disabled in one component after the other, and enabled again, while Pods run."""

from __future__ import annotations

import pytest

from dray.api.errors import InvalidError
from dray.api.gate_table import Release
from tests.e2e.emulation.rollout import Rollout, exactly, first_available, gates, rollout, started_at

ON = gates(release=Release(1, 35))
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
