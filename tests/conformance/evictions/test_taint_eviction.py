"""Pods leave tainted nodes when their time there is over."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.conformance.evictions.world import PODS, TEAM, World, virtually

FOR_30 = [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}]
FOR_EVER = [{"key": "k", "operator": "Exists", "effect": "NoExecute"}]


async def furnish(world: World, **pods: Any) -> None:
    """A node and Pods on it, by their tolerations."""
    await world.node("n")
    for name, tolerations in pods.items():
        await world.pod(name, "n", tolerations=tolerations)


def test_who_does_not_tolerate_goes_at_once() -> None:
    async def story(world: World) -> None:
        await furnish(world, goes=[], stays=FOR_EVER, later=FOR_30)
        world.living.clear()
        await world.taint("n", "k:NoExecute")
        assert await world.until(lambda: world.terminating("goes")) < 1.0
        condition = await world.condition("goes", "DisruptionTarget")
        assert {name: condition[name] for name in ("status", "reason", "message")} == {
            "status": "True",
            "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint",
        }
        assert 29.0 < await world.until(lambda: world.terminating("later")) < 31.0
        assert not await world.terminating("stays")
        await asyncio.sleep(1)
        assert sorted(await world.events("TaintManagerEviction")) == [
            ("goes", "Normal", "Marking for deletion Pod team/goes"),
            ("later", "Normal", "Marking for deletion Pod team/later"),
        ]
        assert world.metrics.value("taint_eviction_controller_pod_deletions_total") == 2
        assert world.metrics.value("taint_eviction_controller_pod_deletion_duration_seconds_count") == 2

    virtually(story)


def test_cancelled_when_the_taint_goes() -> None:
    async def story(world: World) -> None:
        await furnish(world, later=FOR_30)
        await world.taint("n", "k:NoExecute")
        await asyncio.sleep(20)
        await world.taint("n")
        await world.until(lambda: world.events("TaintManagerEviction"))
        assert await world.events("TaintManagerEviction") == [
            ("later", "Normal", "Cancelling deletion of Pod team/later")
        ]
        await asyncio.sleep(60)
        assert not await world.terminating("later")
        # The next time is counted anew.
        await world.taint("n", "k:NoExecute")
        assert 29.0 < await world.until(lambda: world.gone("later")) < 32.0

    virtually(story)


def test_a_pod_that_comes_to_a_tainted_node() -> None:
    async def story(world: World) -> None:
        await world.node("n")
        await world.taint("n", "k:NoExecute")
        await asyncio.sleep(5)
        await world.pod("late", "n", tolerations=FOR_30)
        assert 29.0 < await world.until(lambda: world.gone("late")) < 32.0

    virtually(story)


def test_other_effects_evict_nobody() -> None:
    async def story(world: World) -> None:
        await furnish(world, p=[])
        await world.taint("n", "k:NoSchedule", "l:PreferNoSchedule")
        await asyncio.sleep(100)
        assert not await world.terminating("p")

    virtually(story)


def test_a_second_taint_that_is_not_tolerated() -> None:
    async def story(world: World) -> None:
        await furnish(world, p=FOR_30)
        await world.taint("n", "k:NoExecute")
        await asyncio.sleep(10)
        await world.taint("n", "k:NoExecute", "l:NoExecute")
        assert await world.until(lambda: world.gone("p")) < 2.0

    virtually(story)


def test_a_namesake_is_another_pod() -> None:
    async def story(world: World) -> None:
        await furnish(world, p=FOR_30)
        await world.node("m")
        await world.taint("n", "k:NoExecute")
        await asyncio.sleep(20)
        await world.user.delete(PODS, "p", TEAM)
        await world.until(lambda: world.gone("p"))
        await world.pod("p", "m")
        await asyncio.sleep(60)
        assert not await world.terminating("p")

    virtually(story)


def test_the_pods_of_a_dead_node_have_their_time() -> None:
    async def story(world: World) -> None:
        await world.node("other")
        await world.node("n", alive=False)
        wait = [
            {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 100}
            for key in ("not-ready", "unreachable")
        ]
        await world.pod("p", "n", tolerations=wait)
        took = await world.until(lambda: world.terminating("p"))
        assert 150.0 <= took <= 157.0

    virtually(story)
