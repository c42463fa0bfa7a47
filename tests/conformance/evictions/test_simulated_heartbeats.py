"""Simulated nodes, as `dray up --nodes` has them, under the eyes of the node lifecycle controller."""

from __future__ import annotations

import asyncio

from dray.api.timestamps import format_time
from dray.client.interface import Patch, PatchType
from dray.cmd.simulated_nodes import SimulatedNodes, Simulation
from tests.conformance.evictions.cluster import NODES, STATUS, Cluster, virtually

COUNT = 5


async def ready(cluster: Cluster) -> list[str]:
    nodes = (await cluster.user.list(NODES)).items
    return [
        node["metadata"]["name"]
        for node in nodes
        if not node["spec"].get("taints")
        and any(item["type"] == "Ready" and item["status"] == "True" for item in node["status"].get("conditions") or ())
    ]


def test_they_stay_ready_for_hours() -> None:
    async def scenario(cluster: Cluster) -> None:
        nodes = asyncio.ensure_future(SimulatedNodes(cluster.user, cluster.clock, Simulation(COUNT)).run())

        async def all_ready() -> bool:
            return len(await ready(cluster)) == COUNT

        await cluster.until(all_ready)
        for _ in range(60):
            await asyncio.sleep(60)
            assert await all_ready()
        assert await cluster.events("NodeNotReady") == []
        nodes.cancel()
        await asyncio.gather(nodes, return_exceptions=True)

    virtually(scenario)


def test_one_that_was_given_up_says_that_it_lives() -> None:
    async def scenario(cluster: Cluster) -> None:
        nodes = asyncio.ensure_future(SimulatedNodes(cluster.user, cluster.clock, Simulation(3)).run())

        async def all_ready() -> bool:
            return len(await ready(cluster)) == 3

        await cluster.until(all_ready)
        unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        unknown["lastTransitionTime"] = format_time(cluster.clock.now())
        patch = Patch(PatchType.STRATEGIC, {"status": {"conditions": [unknown]}})
        await cluster.user.patch(NODES, "sim-1", "", patch, STATUS)
        assert "sim-1" not in await ready(cluster)
        assert await cluster.until(all_ready) < 5.0
        nodes.cancel()
        await asyncio.gather(nodes, return_exceptions=True)

    virtually(scenario)
