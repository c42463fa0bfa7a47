"""Drivers whose nodes allocate for themselves: who does what, refusals, and crashes between any two writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from dray.api.document import UID, Document
from dray.api.errors import NotFoundError, ServiceUnavailableError
from dray.client.rest import Call
from dray.driver.classic import Allocation, Claim, ClassicController, NoRoomError, Options, serve
from dray.sim.replica.virtual_time import LoopClock, run_virtually
from tests.conformance.classic.cluster import CLAIMS, DRIVER, NOW, PODS, TEAM, Cluster, cluster, inline, named

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


def start_node(world: Cluster, part: OnNode) -> Callable[[], Awaitable[None]]:
    client = world._watched(part.node)
    return world._spawn(serve(part, client, LoopClock(), None, Options(node_name=part.node)))


def tell(story: Callable[[Cluster], Awaitable[None]]) -> None:
    async def told() -> None:
        async with cluster() as world:
            await world.furnish()
            await story(world)

    run_virtually(told())


async def _gone(world: Cluster, name: str) -> bool:
    try:
        await world.get_claim(name)
    except NotFoundError:
        return True
    return False


@pytest.mark.behaviour("CL-31", "CL-24", "CL-28", "CL-30")
def test_the_selected_node_allocates_and_frees() -> None:
    async def story(world: Cluster) -> None:
        hardware: Hardware = {}
        for node in ("n1", "n2"):
            start_node(world, OnNode(node, hardware))
        world.start_driver(Centre(hardware))
        for name in ("a", "b"):
            await world.pod(name, inline())
        nodes = {name: await world.node_of(name) for name in ("a", "b")}
        assert sorted(nodes.values()) == ["n1", "n2"]
        for name, node in nodes.items():
            claim = await world.get_claim(f"{name}-gpu")
            assert claim["metadata"]["finalizers"] == [f"{DRIVER}/{node}"]
            assert hardware[node] == {claim["metadata"]["uid"]}
        await world.pod("c", inline())
        await world.message("c", "0/2 nodes are available")
        await world.user.delete(PODS, "a", TEAM, NOW)
        # The controller sees it at once and asks no more than once a second; the rest is the scheduler's backoff.
        async with asyncio.timeout(5):
            assert await world.node_of("c") == nodes["a"]

    tell(story)


@pytest.mark.behaviour("CL-31", "CL-25")
def test_what_a_node_frees_is_offered_to_immediate_claims_at_once() -> None:
    async def story(world: Cluster) -> None:
        hardware: Hardware = {}
        start_node(world, OnNode("n1", hardware))
        world.start_driver(Centre(hardware))
        await world.claim("a", "Immediate")
        await world.phase("a", "Allocated")
        await world.claim("b", "Immediate")
        # Long enough for it to be tried but once a minute.
        await asyncio.sleep(630)
        await world.user.delete(CLAIMS, "a", TEAM)
        async with asyncio.timeout(5):
            await world.phase("b", "Allocated")

    tell(story)


@pytest.mark.behaviour("CL-31", "CL-28")
def test_a_node_that_knows_better_refuses_and_another_is_tried() -> None:
    async def story(world: Cluster) -> None:
        hardware: Hardware = {}
        start_node(world, OnNode("n1", hardware, room=0))
        start_node(world, OnNode("n2", hardware, room=9))
        world.start_driver(Centre(hardware, belief=9))
        for number in range(3):
            await world.pod(f"p{number}", inline())
        assert {await world.node_of(f"p{number}") for number in range(3)} == {"n2"}
        assert hardware["n1"] == set()

    tell(story)


@pytest.mark.behaviour("CL-31", "CL-25")
def test_for_immediate_claims_the_controller_selects_the_node() -> None:
    async def story(world: Cluster) -> None:
        hardware: Hardware = {}
        parts = [OnNode("n1", hardware, room=0), OnNode("n2", hardware, room=0)]
        for part in parts:
            start_node(world, part)
        centre = Centre(hardware)
        world.start_driver(centre)
        await world.claim("c", "Immediate")
        await asyncio.sleep(10)
        # All have refused: they are asked anew, and not all the time.
        assert centre.asked[:4] == [(), ("n1",), ("n1", "n2"), ()]
        assert len(centre.asked) < 20
        parts[1].room = 1
        claim = await world.phase("c", "Allocated")
        assert claim["status"]["attributes"] == {"node": "n2"}
        assert [len(hardware[node]) for node in ("n1", "n2")] == [0, 1]
        await world.user.delete(CLAIMS, "c", TEAM)
        await world.eventually(lambda: _gone(world, "c"), bool)
        assert hardware == {"n1": set(), "n2": set()}

    tell(story)


@pytest.mark.behaviour("CL-31", "CL-29")
def test_a_claim_in_the_way_is_freed_by_its_node() -> None:
    async def story(world: Cluster) -> None:
        hardware: Hardware = {}
        for node in ("n1", "n2"):
            start_node(world, OnNode(node, hardware))
        world.start_driver(Centre(hardware))
        await world.claim("c")
        await world.pod("p", named("c"))
        first = await world.node_of("p")
        await world.user.delete(PODS, "p", TEAM, NOW)
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
        await world.pod("q", named("c"), affinity=affinity)
        assert await world.node_of("q") == other
        uid = (await world.get_claim("c"))["metadata"]["uid"]
        assert hardware == {first: set(), other: {uid}}

    tell(story)


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
    async def story(world: Cluster) -> None:
        hardware: Hardware = {}
        stop = start_node(world, OnNode("n1", hardware))
        world.start_driver(Centre(hardware))
        _cut(world, "n1", step, when)
        await world.pod("p", inline())
        await asyncio.sleep(20)
        await world.user.delete(PODS, "p", TEAM, NOW)
        await asyncio.sleep(20)
        await stop()
        start_node(world, OnNode("n1", hardware))
        await world.eventually(lambda: _gone(world, "p-gpu"), bool)
        assert hardware == {"n1": set()}
        await world.pod("q", inline())
        assert await world.node_of("q") == "n1"

    tell(story)


def _cut(world: Cluster, name: str, step: int, when: str) -> None:
    """End the connection for good around the write of that number."""
    transport = world.transports[name]
    inner, writes = transport.inner.send, 0

    async def send(call: Call) -> Document:
        nonlocal writes
        if call.resource is None or call.resource.plural != "resourceclaims":
            return await inner(call)
        if writes > step:
            raise ServiceUnavailableError("cut off")
        if call.verb in ("get", "list", "watch"):
            return await inner(call)
        writes += 1
        if writes <= step:
            return await inner(call)
        if when == "after":
            await inner(call)
        raise ServiceUnavailableError("cut off")

    transport.inner.send = send  # type: ignore[method-assign]
