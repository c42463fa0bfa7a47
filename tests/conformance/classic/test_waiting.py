"""A Pod that waits for its claims says what for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dray.api.document import Document
from dray.client.interface import Patch, PatchType
from dray.sim.replica.virtual_time import run_virtually
from tests.conformance.classic.cluster import (
    CLAIMS,
    CLASSES,
    DRIVER,
    STRUCTURED_CLAIMS,
    TEAM,
    Boards,
    Cluster,
    inline,
    named,
    running_cluster,
)

Scenario = Callable[[Cluster], Coroutine[Any, Any, None]]
KEPT = Patch(PatchType.MERGE, {"metadata": {"finalizers": ["example.com/kept"]}})


def run_scenario(scenario: Scenario) -> None:
    async def run() -> None:
        async with running_cluster() as cluster:
            await cluster.furnish()
            await scenario(cluster)

    run_virtually(run())


async def _condition(cluster: Cluster, name: str) -> tuple[str, str]:
    conditions = (await cluster.get_pod(name)).get("status", {}).get("conditions") or ()
    found: list[Document] = [item for item in conditions if item["type"] == "PodScheduled"]
    return (found[0]["reason"], found[0]["message"]) if found else ("", "")


@pytest.mark.behaviour("CL-56")
def test_a_pod_without_its_claim_says_so_after_a_while() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start_driver(Boards({"n1": 1}))
        await cluster.pod("p", named("c"))
        await asyncio.sleep(4)
        # Claims often come a moment later.
        assert await _condition(cluster, "p") == ("", "")
        await cluster.message("p", 'could not find claim "team/c"')
        assert (await _condition(cluster, "p"))[0] == "NotReadyForScheduling"
        assert await cluster.events("p", "NotReadyForScheduling") == ['could not find claim "team/c"']
        await cluster.claim("c")
        assert await cluster.node_of("p") == "n1"

    run_scenario(scenario)


@pytest.mark.behaviour("CL-56")
@pytest.mark.parametrize("claims", [CLAIMS, STRUCTURED_CLAIMS], ids=["classic", "structured"])
def test_a_pod_whose_claim_is_being_deleted_says_so(claims: Any) -> None:
    async def scenario(cluster: Cluster) -> None:
        if claims is CLAIMS:
            await cluster.claim("c")
        else:
            devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}
            await cluster.user.create(
                claims, {"metadata": {"name": "c", "namespace": TEAM}, "spec": {"devices": devices}}
            )
        await cluster.user.patch(claims, "c", TEAM, KEPT)
        await cluster.user.delete(claims, "c", TEAM)
        await cluster.pod("p", named("c"))
        await cluster.message("p", 'resourceclaim "c" is being deleted')
        assert (await _condition(cluster, "p"))[0] == "NotReadyForScheduling"
        await cluster.user.patch(claims, "c", TEAM, Patch(PatchType.MERGE, {"metadata": {"finalizers": None}}))
        await cluster.message("p", 'could not find claim "team/c"')

    run_scenario(scenario)


@pytest.mark.behaviour("CL-56")
def test_a_waiting_pod_does_not_say_in_use_when_the_claim_is_gone() -> None:
    async def scenario(cluster: Cluster) -> None:
        claim = await cluster.claim("c", "Immediate")
        user = {"apiVersion": "v1", "kind": "Pod", "name": "other", "uid": "other"}
        status = {"phase": "Allocated", "driverName": DRIVER, "reservedFor": [user]}
        # The claim controller would remove a Pod that does not exist.
        user["apiVersion"] = "example.com/v1"
        claim = await cluster.user.update_status(CLAIMS, {**claim, "status": status})
        await cluster.user.patch(CLAIMS, "c", TEAM, KEPT)
        await cluster.pod("p", named("c"))
        await cluster.message("p", "resourceclaim in use (team/c)")
        await cluster.user.delete(CLAIMS, "c", TEAM)
        await cluster.message("p", 'resourceclaim "c" is being deleted')
        await cluster.user.patch(CLAIMS, "c", TEAM, Patch(PatchType.MERGE, {"metadata": {"finalizers": None}}))
        await cluster.message("p", 'could not find claim "team/c"')

    run_scenario(scenario)


@pytest.mark.behaviour("CL-56", "CL-20")
def test_a_pod_whose_claim_belongs_to_another_says_so() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.claim("p-gpu")
        await cluster.pod("p", inline())
        await cluster.message("p", "ResourceClaim team/p-gpu was not created for pod team/p (pod is not owner)")

    run_scenario(scenario)


@pytest.mark.behaviour("CL-56", "CL-33", "CL-04")
@pytest.mark.parametrize("mode", ["Immediate", "Delayed"])
def test_a_claim_without_its_class_names_the_class(mode: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start_driver(Boards({"n1": 1}))
        await cluster.claim("c", mode, class_name="later")
        await cluster.pod("p", named("c"))
        await cluster.message("p", "resourceclaim team/c: resource class later does not exist")
        await cluster.user.create(CLASSES, {"metadata": {"name": "later"}, "driverName": DRIVER})
        assert await cluster.node_of("p") == "n1"

    run_scenario(scenario)
