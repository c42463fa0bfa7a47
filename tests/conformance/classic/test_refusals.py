"""Drivers that refuse a node by taking `selectedNode` back, as the KEP allows. They are written to the API alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress

import pytest

from dray.api.document import Document
from dray.api.errors import ConflictError
from tests.conformance.classic.cluster import CLAIMS, TEAM, Cluster, inline
from tests.conformance.classic.test_scheduling import allocate, run_scenario, scheduling

# How long a driver takes for an answer.
ANSWER_SECONDS = 0.05


@asynccontextmanager
async def driver(cluster: Cluster, name: str, accepts: Collection[str]) -> AsyncIterator[Counter[str]]:
    """A driver of one claim, which tells nobody which nodes are unsuitable; counts the refusals by node."""
    refused: Counter[str] = Counter()

    async def serve() -> None:
        while True:
            await asyncio.sleep(ANSWER_SECONDS)
            claim = next((item for item in await claims(cluster) if item["metadata"]["name"] == name), None)
            node = scheduling(claim, "scheduler").get("selectedNode") if claim and claim.get("status") else None
            if claim is None or "status" not in claim:
                continue
            parts = claim["status"].get("scheduling") or {}
            with suppress(ConflictError):
                if claim["status"].get("phase") == "Reallocate":
                    await cluster.user.update_status(CLAIMS, {**claim, "status": {"phase": "Pending"}})
                    continue
                if claim["status"].get("phase") == "Allocated":
                    continue
                if not node:
                    if parts and "driver" not in parts:
                        # Without it, several drivers would be waited for.
                        status = {**claim["status"], "scheduling": {**parts, "driver": {}}}
                        await cluster.user.update_status(CLAIMS, {**claim, "status": status})
                elif node in accepts:
                    await allocate(cluster, name, node)
                else:
                    own = {key: value for key, value in parts["scheduler"].items() if key != "selectedNode"}
                    status = {**claim["status"], "scheduling": {**parts, "scheduler": own, "driver": {}}}
                    await cluster.user.update_status(CLAIMS, {**claim, "status": status})
                    refused[node] += 1

    task = asyncio.create_task(serve())
    try:
        yield refused
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def claims(cluster: Cluster) -> list[Document]:
    return list((await cluster.user.list(CLAIMS, TEAM)).items)


async def prefer_n1(cluster: Cluster) -> None:
    await cluster.pod("filler", cpu="4", nodeName="n2")


def writes(cluster: Cluster) -> int:
    return len(cluster.transports["scheduler"].writes())


@pytest.mark.behaviour("CL-60")
def test_another_node_is_tried_when_the_driver_refuses_the_preferred_one() -> None:
    async def scenario(cluster: Cluster) -> None:
        await prefer_n1(cluster)
        async with driver(cluster, "p-gpu", {"n2"}) as refused:
            await cluster.pod("p", inline())
            assert await cluster.node_of("p") == "n2"
            assert refused == {"n1": 1}
        assert writes(cluster) < 10

    run_scenario(scenario)


@pytest.mark.behaviour("CL-60", "CL-61")
def test_a_driver_that_refuses_every_node_is_asked_less_and_less() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with driver(cluster, "p-gpu", ()) as refused:
            await cluster.pod("p", inline())
            await asyncio.sleep(60)
            first, written = refused.copy(), writes(cluster)
            assert set(first) == {"n1", "n2"}
            assert 6 <= first.total() <= 16
            # Selecting a node, and the Pod's condition.
            assert written <= 4 * first.total()
            await asyncio.sleep(240)
            assert refused.total() - first.total() <= 12
            assert writes(cluster) - written <= 60
            message = await cluster.message("p", "has refused node")
            assert message.count("resourceclaim") == 1
            assert "driver" in message
            assert f"n1 {refused['n1']} times" in message or f"n2 {refused['n2']} times" in message

    run_scenario(scenario)


@pytest.mark.behaviour("CL-60")
def test_a_node_that_was_refused_is_tried_again_when_there_may_be_room() -> None:
    async def scenario(cluster: Cluster) -> None:
        accepts: set[str] = set()
        async with driver(cluster, "p-gpu", accepts):
            await cluster.pod("p", inline())
            await asyncio.sleep(10)
            accepts.add("n1")
            # No event tells that there is room now.
            assert await cluster.node_of("p") == "n1"

    run_scenario(scenario)


@pytest.mark.behaviour("CL-60", "CL-61")
def test_two_drivers_that_refuse_each_others_choice() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with driver(cluster, "p-one", {"n1"}) as one, driver(cluster, "p-two", {"n2"}) as two:
            await cluster.pod("p", inline("one"), inline("two"))
            await asyncio.sleep(60)
            assert one.total()
            assert two.total()
            written, refused = writes(cluster), one.total() + two.total()
            assert written < 120
            assert refused < 40
            await asyncio.sleep(60)
            assert writes(cluster) - written < 60
            assert await cluster.message("p", "has refused node")

    run_scenario(scenario)
