"""Simulated nodes, as `dray up --nodes` has them, under the eyes of the node lifecycle controller."""

from __future__ import annotations

import asyncio

from dray.api.timestamps import format_time
from dray.client.interface import Patch, PatchType
from dray.cmd.simulated_nodes import SimulatedNodes, Simulation
from tests.conformance.evictions.world import NODES, STATUS, World, virtually

COUNT = 20


async def ready(world: World) -> list[str]:
    nodes = (await world.user.list(NODES)).items
    return [
        node["metadata"]["name"]
        for node in nodes
        if not node["spec"].get("taints")
        and any(item["type"] == "Ready" and item["status"] == "True" for item in node["status"].get("conditions") or ())
    ]


def test_they_stay_ready_for_hours() -> None:
    async def story(world: World) -> None:
        nodes = asyncio.ensure_future(SimulatedNodes(world.user, world.clock, Simulation(COUNT)).run())

        async def all_ready() -> bool:
            return len(await ready(world)) == COUNT

        await world.until(all_ready)
        for _ in range(60):
            await asyncio.sleep(60)
            assert await all_ready()
        assert await world.events("NodeNotReady") == []
        nodes.cancel()
        await asyncio.gather(nodes, return_exceptions=True)

    virtually(story)


def test_one_that_was_given_up_says_that_it_lives() -> None:
    async def story(world: World) -> None:
        nodes = asyncio.ensure_future(SimulatedNodes(world.user, world.clock, Simulation(3)).run())

        async def all_ready() -> bool:
            return len(await ready(world)) == 3

        await world.until(all_ready)
        unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        unknown["lastTransitionTime"] = format_time(world.clock.now())
        patch = Patch(PatchType.STRATEGIC, {"status": {"conditions": [unknown]}})
        await world.user.patch(NODES, "sim-1", "", patch, STATUS)
        assert "sim-1" not in await ready(world)
        assert await world.until(all_ready) < 5.0
        nodes.cancel()
        await asyncio.gather(nodes, return_exceptions=True)

    virtually(story)
