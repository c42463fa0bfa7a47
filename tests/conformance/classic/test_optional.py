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
    cluster,
    inline,
    named,
)

Story = Callable[[Cluster], Coroutine[Any, Any, None]]


def tell(story: Story) -> None:
    async def told() -> None:
        async with cluster() as world:
            await world.furnish(("n1", "n2", "n3"))
            await story(world)

    run_virtually(told())


async def _users(world: Cluster, name: str, resource: Any = CLAIMS) -> list[str]:
    claim = await world.user.get(resource, name, TEAM)
    return [user["name"] for user in (claim.get("status") or {}).get("reservedFor") or ()]


# --- Classic. ---


def test_a_node_with_the_resource_is_preferred() -> None:
    async def story(world: Cluster) -> None:
        driver = Boards({"n2": 1})
        world.start_driver(driver)
        await world.pod("p", inline(optional=True))
        assert await world.node_of("p") == "n2"
        assert await _users(world, "p-gpu") == ["p"]

    tell(story)


def test_without_room_the_pod_runs_without() -> None:
    async def story(world: Cluster) -> None:
        driver = Boards({"n2": 1})
        world.start_driver(driver)
        await world.pod("first", inline())
        await world.node_of("first")
        await world.pod("p", inline(optional=True))
        await world.node_of("p")
        assert await _users(world, "p-gpu") == []
        assert await world.events("p", "ResourceClaimNotAvailable") == [
            "Placed without optional resource claim team/p-gpu."
        ]
        await asyncio.sleep(100)
        assert (await world.get_claim("p-gpu"))["status"]["phase"] == "Pending"
        assert len(driver.held) == 1

    tell(story)


def test_a_driver_that_says_nothing_is_not_waited_for_for_long() -> None:
    async def story(world: Cluster) -> None:
        started = asyncio.get_running_loop().time()
        await world.pod("p", inline(optional=True))
        await world.node_of("p")
        assert 9 < asyncio.get_running_loop().time() - started < 13
        claim = await world.get_claim("p-gpu")
        assert "selectedNode" not in claim["status"]["scheduling"]["scheduler"]

    tell(story)


def test_an_immediate_claim_is_waited_for_a_moment() -> None:
    async def story(world: Cluster) -> None:
        await world.claim("c", "Immediate")
        await world.pod("p", named("c", optional=True))
        await asyncio.sleep(3)
        world.start_driver(Boards({"n2": 1}))
        assert await world.node_of("p") == "n2"
        assert await _users(world, "c") == ["p"]

    tell(story)


def test_a_claim_that_is_not_there_is_not_missed() -> None:
    async def story(world: Cluster) -> None:
        await world.pod("p", named("nowhere", optional=True))
        await world.node_of("p")

    tell(story)


def test_a_claim_that_others_use_is_done_without() -> None:
    async def story(world: Cluster) -> None:
        world.start_driver(Boards({"n2": 1}))
        await world.claim("c")
        await world.pod("first", named("c"))
        await world.node_of("first")
        await world.pod("second", named("c", optional=True))
        await world.node_of("second")
        assert await _users(world, "c") == ["first"]

    tell(story)


def test_what_is_needed_decides_and_what_is_optional_follows() -> None:
    async def story(world: Cluster) -> None:
        driver = Boards({"n2": 1, "n3": 2})
        world.start_driver(driver)
        await world.pod("p", inline("must"), inline("nice", optional=True))
        node = await world.node_of("p")
        assert await _users(world, "p-must") == ["p"]
        assert (await world.get_claim("p-must"))["status"]["attributes"]["node"] == node
        assert await _users(world, "p-nice") in (["p"], [])

    tell(story)


# --- Of resource.k8s.io. ---


async def _devices(world: Cluster, *nodes: str, driver: str = "dev") -> None:
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}.example.com"'}}]}
    await world.user.create(DEVICE_CLASSES, {"metadata": {"name": driver}, "spec": spec})
    for node in nodes:
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        content = {"driver": f"{driver}.example.com", "nodeName": node, "pool": pool, "devices": [{"name": "d0"}]}
        await world.user.create(SLICES, {"metadata": {"name": f"{driver}-{node}"}, "spec": content})


async def _structured(world: Cluster, name: str, device_class: str = "dev") -> None:
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": device_class}}]}}
    await world.user.create(STRUCTURED_CLAIMS, {"metadata": {"name": name, "namespace": TEAM}, "spec": spec})


async def _allocation(world: Cluster, name: str) -> Document | None:
    claim = await world.user.get(STRUCTURED_CLAIMS, name, TEAM)
    found: Document | None = (claim.get("status") or {}).get("allocation")
    return found


def test_a_node_with_the_devices_is_preferred() -> None:
    async def story(world: Cluster) -> None:
        await _devices(world, "n3")
        await _structured(world, "c")
        await world.pod("p", named("c", optional=True))
        assert await world.node_of("p") == "n3"
        assert await _users(world, "c", STRUCTURED_CLAIMS) == ["p"]

    tell(story)


@pytest.mark.parametrize("why", ["no devices", "no class", "not there"])
def test_without_devices_the_pod_runs_without(why: str) -> None:
    async def story(world: Cluster) -> None:
        if why == "no devices":
            await _devices(world)
        if why != "not there":
            await _structured(world, "c")
        await world.pod("p", named("c", optional=True))
        await world.node_of("p")
        await asyncio.sleep(100)
        if why != "not there":
            assert await _allocation(world, "c") is None
            assert await _users(world, "c", STRUCTURED_CLAIMS) == []

    tell(story)


def test_a_claim_that_is_elsewhere_is_done_without() -> None:
    async def story(world: Cluster) -> None:
        await _devices(world, "n3")
        await _structured(world, "c")
        await world.pod("first", named("c"))
        assert await world.node_of("first") == "n3"
        await world.user.patch(NODES, "n3", "", Patch(PatchType.MERGE, {"spec": {"unschedulable": True}}))
        await world.pod("second", named("c", optional=True))
        assert await world.node_of("second") != "n3"
        await asyncio.sleep(100)
        assert await _users(world, "c", STRUCTURED_CLAIMS) == ["first"]

    tell(story)


def test_as_many_as_possible_of_several() -> None:
    async def story(world: Cluster) -> None:
        await _devices(world, "n1", driver="one")
        await _devices(world, "n2", "n1", driver="two")
        await _devices(world, driver="three")
        for name in ("one", "two", "three"):
            await _structured(world, name, name)
        await world.pod("p", *(named(name, name, optional=True) for name in ("three", "one", "two")))
        assert await world.node_of("p") == "n1"
        users = [await _users(world, name, STRUCTURED_CLAIMS) for name in ("one", "two", "three")]
        assert users == [["p"], ["p"], []]

    tell(story)


def test_needed_and_optional_claims_of_both_groups() -> None:
    async def story(world: Cluster) -> None:
        driver = Boards({"n1": 1, "n2": 1})
        world.start_driver(driver)
        await _devices(world, "n2", "n3")
        await _structured(world, "c")
        await world.pod("p", inline("board", optional=True), named("c", "dev"))
        assert await world.node_of("p") == "n2"
        assert await _users(world, "p-board") == ["p"]
        assert (await world.get_claim("p-board"))["status"]["driverName"] == DRIVER

    tell(story)
