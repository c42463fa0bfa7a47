"""One claim for very many Pods, on the whole stack in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest

from dray.api.document import Document
from dray.client.in_process import InProcessTransport
from dray.client.interface import DeleteOptions
from dray.client.rest import RestClient
from dray.sim.replica.virtual_time import LoopClock, run_virtually
from tests.in_process_server import in_process_server
from tests.simulation.cluster_simulation import CLAIMS, ClusterSimulation
from tests.simulation.processes import SchedulerProgram, controller_program
from tests.simulation.scheduling_simulation import PODS, TEAM

USERS = 256


def _pod(number: int) -> Document:
    entry = {"name": "gpu", "resourceClaimName": "shared"}
    spec = {"containers": [{"name": "c", "image": "i"}], "resourceClaims": [entry]}
    return {"metadata": {"name": f"pod-{number}", "namespace": TEAM}, "spec": spec}


async def _share() -> None:
    async with in_process_server(LoopClock(), random.Random(1), TEAM) as server:
        user = RestClient(InProcessTransport(server, user="u", groups=("system:masters",), user_agent="u"))
        simulation = ClusterSimulation(1, schedulers=1)
        simulation.user = user
        await simulation.create_objects(pods_per_node=USERS + 10)
        tasks = [
            asyncio.ensure_future(part)
            for program in (SchedulerProgram("default-scheduler"), controller_program)
            for part in program(user, random.Random(1), LoopClock())
        ]
        try:
            await _fill_and_make_room(user)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _fill_and_make_room(user: RestClient) -> None:
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
    await user.create(CLAIMS, {"metadata": {"name": "shared", "namespace": TEAM}, "spec": spec})
    for number in range(USERS):
        await user.create(PODS, _pod(number))
    await asyncio.sleep(60)
    await user.create(PODS, _pod(USERS))
    await asyncio.sleep(30)
    pods = {pod["metadata"]["name"]: pod for pod in (await user.list(PODS, TEAM)).items}
    late = pods.pop(f"pod-{USERS}")
    assert all(pod["spec"].get("nodeName") for pod in pods.values())
    assert len({pod["spec"]["nodeName"] for pod in pods.values()}) == 1
    [condition] = [item for item in late["status"]["conditions"] if item["type"] == "PodScheduled"]
    assert (condition["status"], condition["reason"]) == ("False", "SchedulerError")
    assert "Too many: 257: must have at most 256 items" in condition["message"]
    await user.delete(PODS, "pod-0", TEAM, DeleteOptions(grace_period_seconds=0))
    await asyncio.sleep(30)
    assert (await user.get(PODS, f"pod-{USERS}", TEAM))["spec"].get("nodeName")
    assert len((await user.get(CLAIMS, "shared", TEAM))["status"]["reservedFor"]) == USERS


@pytest.mark.behaviour("SP-108")
def test_256_pods_share_a_claim_and_one_more_waits_for_room() -> None:
    run_virtually(_share())
