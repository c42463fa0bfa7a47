"""Pods leave tainted nodes when their time there is over."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.conformance.evictions.cluster import PODS, TEAM, Cluster, virtually

FOR_30 = [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}]
FOR_EVER = [{"key": "k", "operator": "Exists", "effect": "NoExecute"}]


async def furnish(cluster: Cluster, **pods: Any) -> None:
    """A node and Pods on it, by their tolerations."""
    await cluster.node("n")
    for name, tolerations in pods.items():
        await cluster.pod(name, "n", tolerations=tolerations)


def test_who_does_not_tolerate_goes_at_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        await furnish(cluster, goes=[], stays=FOR_EVER, later=FOR_30)
        cluster.living.clear()
        await cluster.taint("n", "k:NoExecute")
        assert await cluster.until(lambda: cluster.terminating("goes")) < 1.0
        condition = await cluster.condition("goes", "DisruptionTarget")
        assert {name: condition[name] for name in ("status", "reason", "message")} == {
            "status": "True",
            "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint",
        }
        assert 29.0 < await cluster.until(lambda: cluster.terminating("later")) < 31.0
        assert not await cluster.terminating("stays")
        await asyncio.sleep(1)
        assert sorted(await cluster.events("TaintManagerEviction")) == [
            ("goes", "Normal", "Marking for deletion Pod team/goes"),
            ("later", "Normal", "Marking for deletion Pod team/later"),
        ]
        assert cluster.metrics.value("taint_eviction_controller_pod_deletions_total") == 2
        assert cluster.metrics.value("taint_eviction_controller_pod_deletion_duration_seconds_count") == 2

    virtually(scenario)


def test_cancelled_when_the_taint_goes() -> None:
    async def scenario(cluster: Cluster) -> None:
        await furnish(cluster, later=FOR_30)
        await cluster.taint("n", "k:NoExecute")
        await asyncio.sleep(20)
        await cluster.taint("n")
        await cluster.until(lambda: cluster.events("TaintManagerEviction"))
        assert await cluster.events("TaintManagerEviction") == [
            ("later", "Normal", "Cancelling deletion of Pod team/later")
        ]
        await asyncio.sleep(60)
        assert not await cluster.terminating("later")
        # The next time is counted anew.
        await cluster.taint("n", "k:NoExecute")
        assert 29.0 < await cluster.until(lambda: cluster.gone("later")) < 32.0

    virtually(scenario)


def test_a_pod_that_comes_to_a_tainted_node() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.node("n")
        await cluster.taint("n", "k:NoExecute")
        await asyncio.sleep(5)
        await cluster.pod("late", "n", tolerations=FOR_30)
        assert 29.0 < await cluster.until(lambda: cluster.gone("late")) < 32.0

    virtually(scenario)


def test_other_effects_evict_no_pod() -> None:
    async def scenario(cluster: Cluster) -> None:
        await furnish(cluster, p=[])
        await cluster.taint("n", "k:NoSchedule", "l:PreferNoSchedule")
        await asyncio.sleep(100)
        assert not await cluster.terminating("p")

    virtually(scenario)


def test_a_second_taint_that_is_not_tolerated() -> None:
    async def scenario(cluster: Cluster) -> None:
        await furnish(cluster, p=FOR_30)
        await cluster.taint("n", "k:NoExecute")
        await asyncio.sleep(10)
        await cluster.taint("n", "k:NoExecute", "l:NoExecute")
        assert await cluster.until(lambda: cluster.gone("p")) < 2.0

    virtually(scenario)


def test_a_namesake_is_another_pod() -> None:
    async def scenario(cluster: Cluster) -> None:
        await furnish(cluster, p=FOR_30)
        await cluster.node("m")
        await cluster.taint("n", "k:NoExecute")
        await asyncio.sleep(20)
        await cluster.user.delete(PODS, "p", TEAM)
        await cluster.until(lambda: cluster.gone("p"))
        await cluster.pod("p", "m")
        await asyncio.sleep(60)
        assert not await cluster.terminating("p")

    virtually(scenario)


def test_the_pods_of_a_dead_node_have_their_time() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.node("other")
        await cluster.node("n", alive=False)
        wait = [
            {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 100}
            for key in ("not-ready", "unreachable")
        ]
        await cluster.pod("p", "n", tolerations=wait)
        took = await cluster.until(lambda: cluster.terminating("p"))
        assert 150.0 <= took <= 157.0

    virtually(scenario)
