"""Nodes that stop sending heartbeats, at Kubernetes' own periods."""

from __future__ import annotations

import asyncio
from typing import Any

from dray.client.interface import Patch, PatchType
from dray.controllers.node_lifecycle.zones import Rates
from tests.conformance.evictions.world import NODES, World, virtually

GRACE = 50.0
PERIOD = 5.0
UNREACHABLE = ["unreachable:NoExecute", "unreachable:NoSchedule"]
FAST = Rates(primary=1.0)


def test_a_dead_node_is_unknown_and_tainted() -> None:
    async def story(world: World) -> None:
        await world.node("alive")
        await world.node("dead")
        await world.pod("p", "dead", ready=True, tolerations=[{"operator": "Exists"}])
        await asyncio.sleep(120)
        assert await world.taints("dead") == []
        world.living.discard("dead")

        async def tainted() -> bool:
            return await world.taints("dead") == UNREACHABLE

        took = await world.until(tainted)
        assert GRACE - 10.0 <= took <= GRACE + PERIOD + 1.0
        assert await world.conditions("dead") == dict.fromkeys(
            ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure"), ("Unknown", "NodeStatusUnknown")
        )
        node = await world.user.get(NODES, "dead")
        assert {item["message"] for item in node["status"]["conditions"]} == {"Kubelet stopped posting node status."}
        assert all("timeAdded" in item for item in node["spec"]["taints"])
        await world.until(lambda: world.events("NodeNotReady"))

        async def not_ready() -> bool:
            return bool((await world.condition("p", "Ready"))["status"] == "False")

        await world.until(not_ready)

        async def told() -> bool:
            return len(await world.events("NodeNotReady")) == 2

        await world.until(told)
        assert sorted(await world.events("NodeNotReady")) == [
            ("dead", "Normal", "Node dead status is now: NodeNotReady"),
            ("p", "Warning", "Node is not ready"),
        ]
        assert await world.taints("alive") == []
        assert world.metrics.value("node_collector_evictions_total", {"zone": ""}) == 1
        assert world.metrics.value("node_collector_unhealthy_nodes_in_zone", {"zone": ""}) == 1
        assert world.metrics.value("node_collector_zone_size", {"zone": ""}) == 2
        assert world.metrics.value("node_collector_zone_health", {"zone": ""}) == 50

    virtually(story)


def test_it_comes_back() -> None:
    async def story(world: World) -> None:
        await world.node("alive")
        await world.node("n", alive=False)

        async def tainted() -> bool:
            return await world.taints("n") == UNREACHABLE

        await world.until(tainted)
        await world.revive("n")

        async def clean() -> bool:
            return await world.taints("n") == []

        # By the event, not by a period.
        assert await world.until(clean) < 1.0

    virtually(story)


def test_the_taint_of_a_new_node_goes_as_soon_as_it_is_ready() -> None:
    async def story(world: World) -> None:
        await world.user.create(NODES, {"metadata": {"name": "n"}})
        await world.report("n", Ready="False")

        async def kept_off() -> bool:
            return "not-ready:NoSchedule" in await world.taints("n")

        await world.until(kept_off)
        await world.report("n", Ready="True")

        async def clean() -> bool:
            return await world.taints("n") == []

        assert await world.until(clean) < 1.0

    virtually(story)


def test_a_node_that_never_speaks() -> None:
    async def story(world: World) -> None:
        await world.node("other")
        await world.user.create(NODES, {"metadata": {"name": "n"}})

        async def unknown() -> bool:
            return await world.taints("n") == UNREACHABLE

        took = await world.until(unknown)
        assert 60.0 <= took <= 60.0 + PERIOD + 1.0
        assert set((await world.conditions("n")).values()) == {("Unknown", "NodeStatusNeverUpdated")}

    virtually(story)


def test_events_of_coming_and_going() -> None:
    async def story(world: World) -> None:
        await world.node("n")
        await world.until(lambda: world.events("RegisteredNode"))
        assert await world.events("RegisteredNode") == [
            ("n", "Normal", "Node n event: Registered Node n in Controller")
        ]
        await world.user.delete(NODES, "n")
        await world.until(lambda: world.events("RemovingNode"))
        assert await world.events("RemovingNode") == [("n", "Normal", "Node n event: Removing Node n from Controller")]

    virtually(story)


def test_conditions_and_cordon_are_taints() -> None:
    async def story(world: World) -> None:
        await world.node("n")
        await world.report("n", MemoryPressure="True", NetworkUnavailable="True")
        await world.user.patch(NODES, "n", "", Patch(PatchType.MERGE, {"spec": {"unschedulable": True}}))
        wanted = ["memory-pressure:NoSchedule", "network-unavailable:NoSchedule", "unschedulable:NoSchedule"]

        async def tainted() -> bool:
            return await world.taints("n") == wanted

        await world.until(tainted)
        await world.report("n", NetworkUnavailable="False")
        await world.user.patch(NODES, "n", "", Patch(PatchType.MERGE, {"spec": {"unschedulable": False}}))

        async def clean() -> bool:
            return await world.taints("n") == []

        await world.until(clean)

    virtually(story)


def test_nodes_are_emptied_one_after_the_other() -> None:
    async def story(world: World) -> None:
        for number in range(6):
            await world.node(f"n{number}")
        await asyncio.sleep(60)
        for name in ("n0", "n1", "n2"):
            world.living.discard(name)

        async def count() -> int:
            return sum([await world.taints(f"n{number}") == UNREACHABLE for number in range(3)])

        async def at_least(wanted: int) -> bool:
            return await count() >= wanted

        await world.until(lambda: at_least(1))
        assert 9.0 <= await world.until(lambda: at_least(2)) <= 11.0
        assert 9.0 <= await world.until(lambda: at_least(3)) <= 11.0

    virtually(story)


def test_nothing_is_emptied_when_nothing_is_well() -> None:
    async def story(world: World) -> None:
        for name in ("a", "b"):
            await world.node(name)
            await world.pod(f"on-{name}", name)
        await asyncio.sleep(60)
        world.living.clear()

        async def unknown() -> bool:
            return [await world.taints(name) for name in ("a", "b")] == [["unreachable:NoSchedule"]] * 2

        await world.until(unknown)
        await asyncio.sleep(300)
        assert await unknown()
        assert not await world.terminating("on-a")
        assert not await world.terminating("on-b")
        # One of them was there all the time; the other is dead indeed.
        await world.revive("a")

        async def resumed() -> bool:
            return [await world.taints(name) for name in ("a", "b")] == [[], UNREACHABLE]

        await world.until(resumed)
        await world.until(lambda: world.terminating("on-b"))
        assert not await world.terminating("on-a")

    virtually(story)


def test_taints_that_empty_are_taken_back_when_the_last_node_falls() -> None:
    async def story(world: World) -> None:
        await world.node("a")
        await world.node("b", alive=False)

        async def emptied() -> bool:
            return await world.taints("b") == UNREACHABLE

        await world.until(emptied)
        world.living.discard("a")

        async def taken_back() -> bool:
            return [await world.taints(name) for name in ("a", "b")] == [["unreachable:NoSchedule"]] * 2

        await world.until(taken_back)

    virtually(story)


def test_a_small_zone_that_is_mostly_down_keeps_its_pods() -> None:
    async def story(world: World) -> None:
        zone: dict[str, Any] = {"topology.kubernetes.io/zone": "z"}
        for number in range(5):
            await world.node(f"n{number}", **zone)
        await world.node("elsewhere")
        await asyncio.sleep(60)
        for number in range(3):
            world.living.discard(f"n{number}")

        async def unknown() -> bool:
            found = [await world.taints(f"n{number}") for number in range(3)]
            return all("unreachable:NoSchedule" in taints for taints in found)

        await world.until(unknown)
        await asyncio.sleep(200)
        assert [await world.taints(f"n{number}") for number in range(3)] == [["unreachable:NoSchedule"]] * 3
        assert world.metrics.value("node_collector_unhealthy_nodes_in_zone", {"zone": ":\x00:z"}) == 3

    virtually(story)


def test_a_deleted_node_is_forgotten() -> None:
    async def story(world: World) -> None:
        await world.node("other")
        await world.node("n", alive=False)
        await asyncio.sleep(30)
        await world.user.delete(NODES, "n")
        await world.node("n")
        await asyncio.sleep(100)
        assert await world.taints("n") == []

    virtually(story, rates=FAST)
