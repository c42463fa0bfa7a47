"""Claims that a Pod can do without, of both groups."""

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
    DEVICE_CLASSES,
    DRIVER,
    NODES,
    SLICES,
    STRUCTURED_CLAIMS,
    TEAM,
    Boards,
    Cluster,
    inline,
    named,
    running_cluster,
)

Scenario = Callable[[Cluster], Coroutine[Any, Any, None]]


def run_scenario(scenario: Scenario) -> None:
    async def run() -> None:
        async with running_cluster() as cluster:
            await cluster.furnish(("n1", "n2", "n3"))
            await scenario(cluster)

    run_virtually(run())


async def _users(cluster: Cluster, name: str, resource: Any = CLAIMS) -> list[str]:
    claim = await cluster.user.get(resource, name, TEAM)
    return [user["name"] for user in (claim.get("status") or {}).get("reservedFor") or ()]


# --- Classic. ---


def test_a_node_with_the_resource_is_preferred() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n2": 1})
        cluster.start_driver(driver)
        await cluster.pod("p", inline(optional=True))
        assert await cluster.node_of("p") == "n2"
        assert await _users(cluster, "p-gpu") == ["p"]

    run_scenario(scenario)


def test_without_room_the_pod_runs_without() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n2": 1})
        cluster.start_driver(driver)
        await cluster.pod("first", inline())
        await cluster.node_of("first")
        await cluster.pod("p", inline(optional=True))
        await cluster.node_of("p")
        assert await _users(cluster, "p-gpu") == []
        assert await cluster.events("p", "ResourceClaimNotAvailable") == [
            "Placed without optional resource claim team/p-gpu."
        ]
        await asyncio.sleep(100)
        assert (await cluster.get_claim("p-gpu"))["status"]["phase"] == "Pending"
        assert len(driver.held) == 1

    run_scenario(scenario)


def test_a_driver_that_says_nothing_is_not_waited_for_for_long() -> None:
    async def scenario(cluster: Cluster) -> None:
        started = asyncio.get_running_loop().time()
        await cluster.pod("p", inline(optional=True))
        await cluster.node_of("p")
        assert 9 < asyncio.get_running_loop().time() - started < 13
        claim = await cluster.get_claim("p-gpu")
        assert "selectedNode" not in claim["status"]["scheduling"]["scheduler"]

    run_scenario(scenario)


def test_an_immediate_claim_is_waited_for_a_moment() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.claim("c", "Immediate")
        await cluster.pod("p", named("c", optional=True))
        await asyncio.sleep(3)
        cluster.start_driver(Boards({"n2": 1}))
        assert await cluster.node_of("p") == "n2"
        assert await _users(cluster, "c") == ["p"]

    run_scenario(scenario)


def test_a_claim_that_is_not_there_is_not_missed() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.pod("p", named("nowhere", optional=True))
        await cluster.node_of("p")

    run_scenario(scenario)


def test_a_claim_that_others_use_is_done_without() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start_driver(Boards({"n2": 1}))
        await cluster.claim("c")
        await cluster.pod("first", named("c"))
        await cluster.node_of("first")
        await cluster.pod("second", named("c", optional=True))
        await cluster.node_of("second")
        assert await _users(cluster, "c") == ["first"]

    run_scenario(scenario)


def test_what_is_needed_decides_and_what_is_optional_follows() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n2": 1, "n3": 2})
        cluster.start_driver(driver)
        await cluster.pod("p", inline("must"), inline("nice", optional=True))
        node = await cluster.node_of("p")
        assert await _users(cluster, "p-must") == ["p"]
        assert (await cluster.get_claim("p-must"))["status"]["attributes"]["node"] == node
        assert await _users(cluster, "p-nice") in (["p"], [])

    run_scenario(scenario)


# --- Of resource.k8s.io. ---


async def _devices(cluster: Cluster, *nodes: str, driver: str = "dev") -> None:
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}.example.com"'}}]}
    await cluster.user.create(DEVICE_CLASSES, {"metadata": {"name": driver}, "spec": spec})
    for node in nodes:
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        content = {"driver": f"{driver}.example.com", "nodeName": node, "pool": pool, "devices": [{"name": "d0"}]}
        await cluster.user.create(SLICES, {"metadata": {"name": f"{driver}-{node}"}, "spec": content})


async def _structured(cluster: Cluster, name: str, device_class: str = "dev") -> None:
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": device_class}}]}}
    await cluster.user.create(STRUCTURED_CLAIMS, {"metadata": {"name": name, "namespace": TEAM}, "spec": spec})


async def _allocation(cluster: Cluster, name: str) -> Document | None:
    claim = await cluster.user.get(STRUCTURED_CLAIMS, name, TEAM)
    found: Document | None = (claim.get("status") or {}).get("allocation")
    return found


def test_a_node_with_the_devices_is_preferred() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _devices(cluster, "n3")
        await _structured(cluster, "c")
        await cluster.pod("p", named("c", optional=True))
        assert await cluster.node_of("p") == "n3"
        assert await _users(cluster, "c", STRUCTURED_CLAIMS) == ["p"]

    run_scenario(scenario)


@pytest.mark.parametrize("why", ["no devices", "no class", "not there"])
def test_without_devices_the_pod_runs_without(why: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        if why == "no devices":
            await _devices(cluster)
        if why != "not there":
            await _structured(cluster, "c")
        await cluster.pod("p", named("c", optional=True))
        await cluster.node_of("p")
        await asyncio.sleep(100)
        if why != "not there":
            assert await _allocation(cluster, "c") is None
            assert await _users(cluster, "c", STRUCTURED_CLAIMS) == []

    run_scenario(scenario)


def test_a_claim_that_is_elsewhere_is_done_without() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _devices(cluster, "n3")
        await _structured(cluster, "c")
        await cluster.pod("first", named("c"))
        assert await cluster.node_of("first") == "n3"
        await cluster.user.patch(NODES, "n3", "", Patch(PatchType.MERGE, {"spec": {"unschedulable": True}}))
        await cluster.pod("second", named("c", optional=True))
        assert await cluster.node_of("second") != "n3"
        await asyncio.sleep(100)
        assert await _users(cluster, "c", STRUCTURED_CLAIMS) == ["first"]

    run_scenario(scenario)


def test_as_many_as_possible_of_several() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _devices(cluster, "n1", driver="one")
        await _devices(cluster, "n2", "n1", driver="two")
        await _devices(cluster, driver="three")
        for name in ("one", "two", "three"):
            await _structured(cluster, name, name)
        await cluster.pod("p", *(named(name, name, optional=True) for name in ("three", "one", "two")))
        assert await cluster.node_of("p") == "n1"
        users = [await _users(cluster, name, STRUCTURED_CLAIMS) for name in ("one", "two", "three")]
        assert users == [["p"], ["p"], []]

    run_scenario(scenario)


def test_needed_and_optional_claims_of_both_groups() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n1": 1, "n2": 1})
        cluster.start_driver(driver)
        await _devices(cluster, "n2", "n3")
        await _structured(cluster, "c")
        await cluster.pod("p", inline("board", optional=True), named("c", "dev"))
        assert await cluster.node_of("p") == "n2"
        assert await _users(cluster, "p-board") == ["p"]
        assert (await cluster.get_claim("p-board"))["status"]["driverName"] == DRIVER

    run_scenario(scenario)
