"""A driver that fails, or has no room, is tried again with backoff, and everybody is told why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from dray.api.document import Document
from dray.client.interface import Patch, PatchType
from dray.driver.classic import Allocation, Claim, ClassicController, NoRoomError
from dray.sim.replica.virtual_time import run_virtually
from tests.conformance.classic.cluster import (
    CLAIMS,
    CLASS,
    CLASSES,
    DRIVER,
    EVENTS,
    NOW,
    PODS,
    TEAM,
    Boards,
    Cluster,
    inline,
    named,
    running_cluster,
)

Scenario = Callable[[Cluster], Coroutine[Any, Any, None]]
A_WHILE = 400.0


def run_scenario(scenario: Scenario) -> None:
    async def run() -> None:
        async with running_cluster() as cluster:
            await cluster.furnish()
            await scenario(cluster)

    run_virtually(run())


class Broken(Boards):
    """A driver whose calls fail until it is repaired."""

    def __init__(self) -> None:
        super().__init__({"n1": 1, "n2": 1})
        self.repaired = False
        self.times: list[float] = []

    async def allocate(self, claim: Claim, *rest: Any) -> Allocation:
        self.times.append(asyncio.get_running_loop().time())
        if not self.repaired:
            raise ValueError("memory: banana")
        return await super().allocate(claim, *rest)


class Full(ClassicController):
    """A driver without room that does not say so before it is asked to allocate."""

    name = DRIVER

    def __init__(self) -> None:
        self.asked: list[tuple[float, str]] = []
        self.room = False

    async def allocate(
        self, claim: Claim, class_parameters: Mapping[str, Any], claim_parameters: Mapping[str, Any], node: str | None
    ) -> Allocation:
        self.asked.append((asyncio.get_running_loop().time(), node or ""))
        if not self.room:
            raise NoRoomError("all boards are taken")
        return Allocation(nodes=[node] if node else None)

    async def deallocate(self, claim: Claim) -> None:
        pass


async def _event_objects(cluster: Cluster, name: str, reason: str) -> list[Document]:
    items = (await cluster.user.list(EVENTS, TEAM)).items
    return [item for item in items if item["involvedObject"]["name"] == name and item["reason"] == reason]


def _gaps(times: Sequence[float]) -> list[float]:
    return [round(later - earlier) for earlier, later in pairwise(times)]


@pytest.mark.behaviour("CL-52")
@pytest.mark.parametrize("mode", ["Immediate", "Delayed"])
def test_a_failed_allocation_is_repeated_with_backoff(mode: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Broken()
        cluster.start_driver(driver)
        await cluster.claim("c", mode)
        await cluster.pod("p", named("c"))
        text = await cluster.message("p", "driver failed: ValueError: memory: banana")
        assert "team/c" in text
        await asyncio.sleep(A_WHILE)
        assert _gaps(driver.times)[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
        # The finalizer, the driver's name and the reason, and then two writes for each attempt.
        writes = cluster.transports["driver"].writes()
        assert len(writes) <= 2 * len(driver.times) + 2
        assert len(driver.times) < 15
        claim = await cluster.get_claim("c")
        condition = claim["status"]["conditions"][0]
        assert (condition["type"], condition["status"], condition["reason"], condition["message"]) == (
            "Allocated",
            "False",
            "DriverFailed",
            "ValueError: memory: banana",
        )
        assert len(await _event_objects(cluster, "c", "FailedAllocation")) == 1
        # The scheduler has nothing to do meanwhile.
        assert len(cluster.transports["scheduler"].writes()) <= 1

    run_scenario(scenario)


@pytest.mark.behaviour("CL-52")
def test_a_repaired_driver_allocates_and_the_reason_goes() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Broken()
        cluster.start_driver(driver)
        await cluster.pod("p", inline())
        await cluster.message("p", "driver failed")
        driver.repaired = True
        await cluster.node_of("p")
        claim = await cluster.get_claim("p-gpu")
        assert "conditions" not in claim["status"]

    run_scenario(scenario)


@pytest.mark.behaviour("CL-52")
def test_a_changed_class_is_tried_at_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Broken()
        cluster.start_driver(driver)
        await cluster.claim("c", "Immediate")
        await asyncio.sleep(A_WHILE)
        driver.repaired = True
        before = asyncio.get_running_loop().time()
        await cluster.user.patch(CLASSES, CLASS, "", Patch(PatchType.MERGE, {"parameters": {"fixed": True}}))
        await cluster.phase("c", "Allocated")
        assert asyncio.get_running_loop().time() - before < 1

    run_scenario(scenario)


@pytest.mark.behaviour("CL-52")
def test_a_driver_that_cannot_check_nodes_says_so() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n1": 2})
        driver.fail = {"unsuitable_nodes": [OSError("cable")] * 100}
        cluster.start_driver(driver)
        await cluster.pod("p", inline("a"), inline("b"))
        await cluster.message("p", "driver failed: OSError: cable")
        await asyncio.sleep(A_WHILE)
        assert len(driver.called("unsuitable_nodes")) < 2 * 15

    run_scenario(scenario)


@pytest.mark.behaviour("CL-52", "CL-30")
def test_a_failed_deallocation_is_repeated_with_backoff() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n1": 1})
        cluster.start_driver(driver)
        await cluster.claim("c", "Immediate")
        await cluster.phase("c", "Allocated")
        driver.fail = {"deallocate": [OSError("cable")] * 1000}
        await cluster.user.delete(CLAIMS, "c", TEAM)
        await asyncio.sleep(A_WHILE)
        assert 10 < len(driver.called("deallocate")) < 15
        assert len(await _event_objects(cluster, "c", "FailedDeallocation")) == 1

    run_scenario(scenario)


@pytest.mark.behaviour("CL-53")
def test_a_driver_without_room_is_not_asked_again_and_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Full()
        cluster.start_driver(driver)
        await cluster.pod("p", inline())
        text = await cluster.message("p", "no room: all boards are taken")
        assert "0/2 nodes are available: 2 resourceclaim cannot be allocated for the node (unsuitable)" in text
        await asyncio.sleep(A_WHILE)
        # Each node once, then both after 1 s, 2 s, and so on.
        assert [node for _, node in driver.asked[:4]] == ["n1", "n2"] * 2 or driver.asked[0][1] != driver.asked[1][1]
        assert len(driver.asked) < 2 * 15
        writes = [
            *cluster.transports["driver"].writes(),
            *cluster.transports["scheduler"].writes(),
        ]
        assert len(writes) < 6 * len(driver.asked)
        claim = await cluster.get_claim("p-gpu")
        assert claim["status"]["conditions"][0]["reason"] == "NoRoom"
        driver.room = True
        before = asyncio.get_running_loop().time()
        await cluster.node_of("p")
        assert asyncio.get_running_loop().time() - before <= 61

    run_scenario(scenario)


@pytest.mark.behaviour("CL-53")
def test_the_pod_is_placed_where_there_is_room_without_waiting() -> None:
    class OneNode(Full):
        async def allocate(self, claim: Claim, *rest: Any) -> Allocation:
            self.room = rest[-1] == "n2"
            return await super().allocate(claim, *rest)

    async def scenario(cluster: Cluster) -> None:
        cluster.start_driver(OneNode())
        before = asyncio.get_running_loop().time()
        await cluster.pod("p", inline())
        assert await cluster.node_of("p") == "n2"
        assert asyncio.get_running_loop().time() - before < 1

    run_scenario(scenario)


@pytest.mark.behaviour("CL-53", "CL-27")
def test_freed_room_is_used_at_once() -> None:
    class Hidden(Boards):
        async def unsuitable_nodes(self, claims: Sequence[Claim], nodes: Sequence[str]) -> Sequence[str]:
            return ()

    async def scenario(cluster: Cluster) -> None:
        cluster.start_driver(Hidden({"n1": 1}))
        await cluster.pod("p", inline())
        await cluster.node_of("p")
        await cluster.pod("q", inline())
        await cluster.message("q", "no room: no board on n")
        await asyncio.sleep(A_WHILE)
        before = asyncio.get_running_loop().time()
        await cluster.user.delete(PODS, "p", TEAM, NOW)
        assert await cluster.node_of("q") == "n1"
        assert asyncio.get_running_loop().time() - before < 5

    run_scenario(scenario)


@pytest.mark.behaviour("CL-53")
def test_an_immediate_claim_without_room_waits_with_backoff() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Full()
        cluster.start_driver(driver)
        await cluster.claim("c", "Immediate")
        await cluster.pod("p", named("c"))
        await cluster.message("p", "unallocated immediate resourceclaim (resourceclaim team/c")
        await cluster.message("p", "no room: all boards are taken")
        await asyncio.sleep(A_WHILE)
        assert _gaps([when for when, _ in driver.asked])[:8] == [1, 2, 4, 8, 16, 32, 60, 60]

    run_scenario(scenario)
