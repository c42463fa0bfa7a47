"""Nodes that stop sending heartbeats, at Kubernetes' own periods."""

from __future__ import annotations

import asyncio
from typing import Any

from dray.client.interface import Patch, PatchType
from dray.controllers.node_lifecycle.zones import Rates
from tests.conformance.evictions.cluster import NODES, Cluster, virtually

GRACE = 50.0
PERIOD = 5.0
UNREACHABLE = ["unreachable:NoExecute", "unreachable:NoSchedule"]
FAST = Rates(primary=1.0)


def test_a_dead_node_is_unknown_and_tainted() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.node("alive")
        await cluster.node("dead")
        await cluster.pod("p", "dead", ready=True, tolerations=[{"operator": "Exists"}])
        await asyncio.sleep(120)
        assert await cluster.taints("dead") == []
        cluster.living.discard("dead")

        async def tainted() -> bool:
            return await cluster.taints("dead") == UNREACHABLE

        took = await cluster.until(tainted)
        assert GRACE - 10.0 <= took <= GRACE + PERIOD + 1.0
        assert await cluster.conditions("dead") == dict.fromkeys(
            ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure"), ("Unknown", "NodeStatusUnknown")
        )
        node = await cluster.user.get(NODES, "dead")
        assert {item["message"] for item in node["status"]["conditions"]} == {"Kubelet stopped posting node status."}
        assert all("timeAdded" in item for item in node["spec"]["taints"])
        await cluster.until(lambda: cluster.events("NodeNotReady"))

        async def not_ready() -> bool:
            return bool((await cluster.condition("p", "Ready"))["status"] == "False")

        await cluster.until(not_ready)

        async def both_reported() -> bool:
            return len(await cluster.events("NodeNotReady")) == 2

        await cluster.until(both_reported)
        assert sorted(await cluster.events("NodeNotReady")) == [
            ("dead", "Normal", "Node dead status is now: NodeNotReady"),
            ("p", "Warning", "Node is not ready"),
        ]
        assert await cluster.taints("alive") == []
        assert cluster.metrics.value("node_collector_evictions_total", {"zone": ""}) == 1
        assert cluster.metrics.value("node_collector_unhealthy_nodes_in_zone", {"zone": ""}) == 1
        assert cluster.metrics.value("node_collector_zone_size", {"zone": ""}) == 2
        assert cluster.metrics.value("node_collector_zone_health", {"zone": ""}) == 50

    virtually(scenario)


def test_it_comes_back() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.node("alive")
        await cluster.node("n", alive=False)

        async def tainted() -> bool:
            return await cluster.taints("n") == UNREACHABLE

        await cluster.until(tainted)
        await cluster.revive("n")

        async def clean() -> bool:
            return await cluster.taints("n") == []

        # By the event, not by a period.
        assert await cluster.until(clean) < 1.0

    virtually(scenario)


def test_the_taint_of_a_new_node_goes_as_soon_as_it_is_ready() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.user.create(NODES, {"metadata": {"name": "n"}})
        await cluster.report("n", Ready="False")

        async def kept_off() -> bool:
            return "not-ready:NoSchedule" in await cluster.taints("n")

        await cluster.until(kept_off)
        await cluster.report("n", Ready="True")

        async def clean() -> bool:
            return await cluster.taints("n") == []

        assert await cluster.until(clean) < 1.0

    virtually(scenario)


def test_a_node_that_never_speaks() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.node("other")
        await cluster.user.create(NODES, {"metadata": {"name": "n"}})

        async def unknown() -> bool:
            return await cluster.taints("n") == UNREACHABLE

        took = await cluster.until(unknown)
        assert 60.0 <= took <= 60.0 + PERIOD + 1.0
        assert set((await cluster.conditions("n")).values()) == {("Unknown", "NodeStatusNeverUpdated")}

    virtually(scenario)


def test_events_of_coming_and_going() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.node("n")
        await cluster.until(lambda: cluster.events("RegisteredNode"))
        assert await cluster.events("RegisteredNode") == [
            ("n", "Normal", "Node n event: Registered Node n in Controller")
        ]
        await cluster.user.delete(NODES, "n")
        await cluster.until(lambda: cluster.events("RemovingNode"))
        assert await cluster.events("RemovingNode") == [
            ("n", "Normal", "Node n event: Removing Node n from Controller")
        ]

    virtually(scenario)


def test_conditions_and_cordon_are_taints() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.node("n")
        await cluster.report("n", MemoryPressure="True", NetworkUnavailable="True")
        await cluster.user.patch(NODES, "n", "", Patch(PatchType.MERGE, {"spec": {"unschedulable": True}}))
        wanted = ["memory-pressure:NoSchedule", "network-unavailable:NoSchedule", "unschedulable:NoSchedule"]

        async def tainted() -> bool:
            return await cluster.taints("n") == wanted

        await cluster.until(tainted)
        await cluster.report("n", NetworkUnavailable="False")
        await cluster.user.patch(NODES, "n", "", Patch(PatchType.MERGE, {"spec": {"unschedulable": False}}))

        async def clean() -> bool:
            return await cluster.taints("n") == []

        await cluster.until(clean)

    virtually(scenario)


def test_nodes_are_emptied_one_after_the_other() -> None:
    async def scenario(cluster: Cluster) -> None:
        for number in range(6):
            await cluster.node(f"n{number}")
        await asyncio.sleep(60)
        for name in ("n0", "n1", "n2"):
            cluster.living.discard(name)

        async def count() -> int:
            return sum([await cluster.taints(f"n{number}") == UNREACHABLE for number in range(3)])

        async def at_least(wanted: int) -> bool:
            return await count() >= wanted

        await cluster.until(lambda: at_least(1))
        assert 9.0 <= await cluster.until(lambda: at_least(2)) <= 11.0
        assert 9.0 <= await cluster.until(lambda: at_least(3)) <= 11.0

    virtually(scenario)


def test_nothing_is_emptied_when_nothing_is_well() -> None:
    async def scenario(cluster: Cluster) -> None:
        for name in ("a", "b"):
            await cluster.node(name)
            await cluster.pod(f"on-{name}", name)
        await asyncio.sleep(60)
        cluster.living.clear()

        async def unknown() -> bool:
            return [await cluster.taints(name) for name in ("a", "b")] == [["unreachable:NoSchedule"]] * 2

        await cluster.until(unknown)
        await asyncio.sleep(300)
        assert await unknown()
        assert not await cluster.terminating("on-a")
        assert not await cluster.terminating("on-b")
        # One of them was there all the time; the other is dead indeed.
        await cluster.revive("a")

        async def resumed() -> bool:
            return [await cluster.taints(name) for name in ("a", "b")] == [[], UNREACHABLE]

        await cluster.until(resumed)
        await cluster.until(lambda: cluster.terminating("on-b"))
        assert not await cluster.terminating("on-a")

    virtually(scenario)


def test_taints_that_empty_are_taken_back_when_the_last_node_falls() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.node("a")
        await cluster.node("b", alive=False)

        async def emptied() -> bool:
            return await cluster.taints("b") == UNREACHABLE

        await cluster.until(emptied)
        cluster.living.discard("a")

        async def taken_back() -> bool:
            return [await cluster.taints(name) for name in ("a", "b")] == [["unreachable:NoSchedule"]] * 2

        await cluster.until(taken_back)

    virtually(scenario)


def test_a_small_zone_that_is_mostly_down_keeps_its_pods() -> None:
    async def scenario(cluster: Cluster) -> None:
        zone: dict[str, Any] = {"topology.kubernetes.io/zone": "z"}
        for number in range(5):
            await cluster.node(f"n{number}", **zone)
        await cluster.node("elsewhere")
        await asyncio.sleep(60)
        for number in range(3):
            cluster.living.discard(f"n{number}")

        async def unknown() -> bool:
            found = [await cluster.taints(f"n{number}") for number in range(3)]
            return all("unreachable:NoSchedule" in taints for taints in found)

        await cluster.until(unknown)
        await asyncio.sleep(200)
        assert [await cluster.taints(f"n{number}") for number in range(3)] == [["unreachable:NoSchedule"]] * 3
        assert cluster.metrics.value("node_collector_unhealthy_nodes_in_zone", {"zone": ":\x00:z"}) == 3

    virtually(scenario)


def test_a_deleted_node_is_forgotten() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.node("other")
        await cluster.node("n", alive=False)
        await asyncio.sleep(30)
        await cluster.user.delete(NODES, "n")
        await cluster.node("n")
        await asyncio.sleep(100)
        assert await cluster.taints("n") == []

    virtually(scenario, rates=FAST)
