"""Drivers whose nodes allocate for themselves: who does what, refusals, and crashes between any two writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from dray.api.document import UID
from dray.api.errors import NotFoundError
from dray.driver.classic import Allocation, Claim, ClassicController, NoRoomError, Options, serve
from dray.sim.replica.virtual_time import LoopClock, run_virtually
from tests.conformance.classic.cluster import CLAIMS, DRIVER, NOW, PODS, TEAM, Cluster, inline, named, running_cluster

# What is in use on each node, by claim; it outlives every process.
Hardware = dict[str, set[UID]]


class Centre(ClassicController):
    """Believes that every node has room for `belief` claims."""

    name = DRIVER
    node_local = True

    def __init__(self, hardware: Hardware, belief: int = 1) -> None:
        self.hardware, self.belief = hardware, belief
        self.asked: list[tuple[str, ...]] = []

    async def unsuitable_nodes(self, claims: Sequence[Claim], nodes: Sequence[str]) -> Iterable[str]:
        return [node for node in nodes if len(self.hardware.get(node, ())) + len(claims) > self.belief]

    async def choose_node(self, claim: Claim, refused: Sequence[str]) -> str:
        self.asked.append(tuple(refused))
        return next((node for node in sorted(self.hardware) if node not in refused), "")

    async def allocate(self, *_: Any) -> Allocation:
        raise AssertionError("this is for nodes to do")

    async def deallocate(self, claim: Claim) -> None:
        raise AssertionError("this is for nodes to do")


class OnNode(ClassicController):
    """Allocates on one node, which really has room for `room` claims."""

    name = DRIVER

    def __init__(self, node: str, hardware: Hardware, room: int = 1) -> None:
        self.node, self.used, self.room = node, hardware.setdefault(node, set()), room

    async def allocate(
        self, claim: Claim, class_parameters: Mapping[str, Any], claim_parameters: Mapping[str, Any], node: str | None
    ) -> Allocation:
        assert node == self.node
        if len(self.used) >= self.room:
            raise NoRoomError(f"{node} is full")
        self.used.add(claim.uid)
        return Allocation({"node": self.node}, nodes=[self.node])

    async def deallocate(self, claim: Claim) -> None:
        self.used.discard(claim.uid)


def start_node(cluster: Cluster, part: OnNode) -> Callable[[], Awaitable[None]]:
    client = cluster._watched(part.node)
    return cluster._spawn(serve(part, client, LoopClock(), None, Options(node_name=part.node)))


def run_scenario(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        async with running_cluster() as cluster:
            await cluster.furnish()
            await scenario(cluster)

    run_virtually(run())


async def _gone(cluster: Cluster, name: str) -> bool:
    try:
        await cluster.get_claim(name)
    except NotFoundError:
        return True
    return False


@pytest.mark.behaviour("CL-31", "CL-24", "CL-28", "CL-30")
def test_the_selected_node_allocates_and_frees() -> None:
    async def scenario(cluster: Cluster) -> None:
        hardware: Hardware = {}
        for node in ("n1", "n2"):
            start_node(cluster, OnNode(node, hardware))
        cluster.start_driver(Centre(hardware))
        for name in ("a", "b"):
            await cluster.pod(name, inline())
        nodes = {name: await cluster.node_of(name) for name in ("a", "b")}
        assert sorted(nodes.values()) == ["n1", "n2"]
        for name, node in nodes.items():
            claim = await cluster.get_claim(f"{name}-gpu")
            assert claim["metadata"]["finalizers"] == [f"{DRIVER}/{node}"]
            assert hardware[node] == {claim["metadata"]["uid"]}
        await cluster.pod("c", inline())
        await cluster.message("c", "0/2 nodes are available")
        await cluster.user.delete(PODS, "a", TEAM, NOW)
        # The controller sees it at once and asks no more than once a second; the rest is the scheduler's backoff.
        async with asyncio.timeout(5):
            assert await cluster.node_of("c") == nodes["a"]

    run_scenario(scenario)


@pytest.mark.behaviour("CL-31", "CL-25")
def test_what_a_node_frees_is_offered_to_immediate_claims_at_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        hardware: Hardware = {}
        start_node(cluster, OnNode("n1", hardware))
        cluster.start_driver(Centre(hardware))
        await cluster.claim("a", "Immediate")
        await cluster.phase("a", "Allocated")
        await cluster.claim("b", "Immediate")
        # Long enough for it to be tried but once a minute.
        await asyncio.sleep(630)
        await cluster.user.delete(CLAIMS, "a", TEAM)
        async with asyncio.timeout(5):
            await cluster.phase("b", "Allocated")

    run_scenario(scenario)


@pytest.mark.behaviour("CL-31", "CL-28")
def test_a_node_that_knows_better_refuses_and_another_is_tried() -> None:
    async def scenario(cluster: Cluster) -> None:
        hardware: Hardware = {}
        start_node(cluster, OnNode("n1", hardware, room=0))
        start_node(cluster, OnNode("n2", hardware, room=9))
        cluster.start_driver(Centre(hardware, belief=9))
        for number in range(3):
            await cluster.pod(f"p{number}", inline())
        assert {await cluster.node_of(f"p{number}") for number in range(3)} == {"n2"}
        assert hardware["n1"] == set()

    run_scenario(scenario)


@pytest.mark.behaviour("CL-31", "CL-25")
def test_for_immediate_claims_the_controller_selects_the_node() -> None:
    async def scenario(cluster: Cluster) -> None:
        hardware: Hardware = {}
        parts = [OnNode("n1", hardware, room=0), OnNode("n2", hardware, room=0)]
        for part in parts:
            start_node(cluster, part)
        centre = Centre(hardware)
        cluster.start_driver(centre)
        await cluster.claim("c", "Immediate")
        await asyncio.sleep(10)
        # All have refused: they are asked anew, and not all the time.
        assert centre.asked[:4] == [(), ("n1",), ("n1", "n2"), ()]
        assert len(centre.asked) < 20
        parts[1].room = 1
        claim = await cluster.phase("c", "Allocated")
        assert claim["status"]["attributes"] == {"node": "n2"}
        assert [len(hardware[node]) for node in ("n1", "n2")] == [0, 1]
        await cluster.user.delete(CLAIMS, "c", TEAM)
        await cluster.eventually(lambda: _gone(cluster, "c"), bool)
        assert hardware == {"n1": set(), "n2": set()}

    run_scenario(scenario)


@pytest.mark.behaviour("CL-31", "CL-29")
def test_a_claim_in_the_way_is_freed_by_its_node() -> None:
    async def scenario(cluster: Cluster) -> None:
        hardware: Hardware = {}
        for node in ("n1", "n2"):
            start_node(cluster, OnNode(node, hardware))
        cluster.start_driver(Centre(hardware))
        await cluster.claim("c")
        await cluster.pod("p", named("c"))
        first = await cluster.node_of("p")
        await cluster.user.delete(PODS, "p", TEAM, NOW)
        other = "n2" if first == "n1" else "n1"
        affinity = {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [other]}]}
                    ]
                }
            }
        }
        await cluster.pod("q", named("c"), affinity=affinity)
        assert await cluster.node_of("q") == other
        uid = (await cluster.get_claim("c"))["metadata"]["uid"]
        assert hardware == {first: set(), other: {uid}}

    run_scenario(scenario)


def _steps() -> list[Any]:
    names = ["finalizer", "driver name", "allocated", "finalizer removed"]
    return [
        pytest.param(number, when, id=f"{when} {name}")
        for number, name in enumerate(names)
        for when in ("before", "after")
    ]


@pytest.mark.behaviour("CL-31", "CL-24", "CL-32")
@pytest.mark.parametrize(("step", "when"), _steps())
def test_a_node_killed_at_any_write_leaks_nothing(step: int, when: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        hardware: Hardware = {}
        stop = start_node(cluster, OnNode("n1", hardware))
        cluster.start_driver(Centre(hardware))
        cluster.transports["n1"].cut_off(step, when)
        await cluster.pod("p", inline())
        await asyncio.sleep(20)
        await cluster.user.delete(PODS, "p", TEAM, NOW)
        await asyncio.sleep(20)
        await stop()
        start_node(cluster, OnNode("n1", hardware))
        await cluster.eventually(lambda: _gone(cluster, "p-gpu"), bool)
        assert hardware == {"n1": set()}
        await cluster.pod("q", inline())
        assert await cluster.node_of("q") == "n1"

    run_scenario(scenario)


@pytest.mark.behaviour("CL-53", "CL-31")
def test_full_nodes_of_a_hopeful_centre_are_not_asked_again_and_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        hardware: Hardware = {}
        cluster.start_driver(Centre(hardware, belief=100))
        for node in ("n1", "n2"):
            start_node(cluster, OnNode(node, hardware, room=0))
        await cluster.pod("p", inline())
        await cluster.message("p", "no room: n")
        await asyncio.sleep(400)
        writes = sum(len(cluster.transports[name].writes()) for name in ("n1", "n2", "driver", "scheduler"))
        # About a dozen rounds, with five writes for each of two nodes.
        assert writes < 150

    run_scenario(scenario)


@pytest.mark.behaviour("CL-53", "CL-31")
def test_a_centre_that_chooses_a_full_node_for_an_immediate_claim_waits() -> None:
    class Stubborn(Centre):
        async def choose_node(self, claim: Claim, refused: Sequence[str]) -> str:
            await super().choose_node(claim, refused)
            return "n1"

    async def scenario(cluster: Cluster) -> None:
        hardware: Hardware = {}
        centre = Stubborn(hardware)
        cluster.start_driver(centre)
        start_node(cluster, OnNode("n1", hardware, room=0))
        await cluster.claim("c", "Immediate")
        await asyncio.sleep(400)
        assert 10 < len(centre.asked) < 40

    run_scenario(scenario)
