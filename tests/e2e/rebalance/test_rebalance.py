"""`dray rebalance` on a real cluster: applied, interrupted and repeated, and on a cluster that changes."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from dray.api.features import FeatureGates
from dray.cli.rebalance_apply import KINDS, RebalanceExecutor, StoppedError
from dray.client.interface import DeleteOptions
from dray.client.resources import NODES, POD_GROUPS, PODS, RESOURCE_QUOTAS
from dray.scheduler.config import ProfileConfig
from dray.sim.cluster_reader import read_cluster
from dray.sim.rebalance.planner import RebalanceOptions, RebalancePlanner, pending_targets
from dray.sim.usable_nodes import HOLD_TAINT
from tests.e2e.rebalance.fragmented import (
    NAMESPACE,
    NODE_NAMES,
    Fragmented,
    big_pod,
    fragmented,
    gang,
    is_on_every_node,
    is_unschedulable,
)

OPTIONS = RebalanceOptions(ProfileConfig(), FeatureGates())
QUOTA = {"metadata": {"name": "no-pods", "namespace": NAMESPACE}, "spec": {"hard": {"pods": "0"}}}


async def test_a_plan_that_is_applied_lets_the_pod_fit(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as cluster:
        planned = await asyncio.to_thread(cluster.dray, "rebalance", "plan", "-o", "json")
        (plan,) = json.loads(planned.stdout)["items"]
        assert [len(step["moves"]) for step in plan["steps"]] == [1], planned
        (move,) = plan["steps"][0]["moves"]
        dry = await asyncio.to_thread(cluster.dray, "rebalance", "plan", "--apply", "--dry-run")
        assert dry.returncode == 0, dry
        assert len(await cluster.pods()) == len(NODE_NAMES) + 1
        assert await cluster.node_of(move["name"]) == move["fromNode"]
        applied = await asyncio.to_thread(cluster.dray, "rebalance", "plan", "--apply", "--for", "big")
        assert applied.returncode == 0, applied
        assert applied.stdout.startswith("1 move lets 1 of 1 pending Pod fit\n")
        assert "evicted pod default/web-" in applied.stdout
        assert applied.stdout.endswith("done\n")
        assert await cluster.node_of("big") == plan["steps"][0]["node"]
        pods = [pod for pod in await cluster.pods() if not pod["metadata"].get("deletionTimestamp")]
        assert sum(bool(pod["spec"].get("nodeName")) for pod in pods) == len(NODE_NAMES) + 1
        assert await cluster.held() == []
        again = await asyncio.to_thread(cluster.dray, "rebalance", "plan", "--apply")
        assert again.returncode == 0, again
        assert again.stdout.startswith("No move is needed")


async def test_room_is_made_for_a_whole_gang(tmp_path: Path) -> None:
    async with fragmented(tmp_path, "--feature-gates=GenericWorkload=true") as cluster:
        await cluster.client.delete(PODS, "big", NAMESPACE, DeleteOptions(grace_period_seconds=0))
        group, *pods = gang()
        await cluster.client.create(POD_GROUPS.unstructured, group)
        for pod in pods:
            await cluster.client.create(PODS.unstructured, pod)
        await cluster.wait(PODS, is_unschedulable("train-0"))
        # The node is held until there is room for the other Pod too.
        applied = await asyncio.to_thread(cluster.dray, "rebalance", "plan", "--apply", "--for", "train-0")
        assert applied.returncode == 0, applied
        assert applied.stdout.startswith("1 move lets 2 of 2 pending Pods fit\n")
        assert await cluster.node_of("train-1")
        assert await cluster.node_of("train-0")
        assert await cluster.held() == []


async def test_a_pod_that_is_deleted_meanwhile_ends_the_wait(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as cluster:
        planner = RebalancePlanner(await read_cluster(cluster.client, KINDS), OPTIONS)
        plan = planner.plan_for(pending_targets(planner.cluster))
        executor = RebalanceExecutor(cluster.client, OPTIONS, lambda _text: None)
        waiting = asyncio.ensure_future(executor._wait_for_target(plan.steps[0]))
        await cluster.client.delete(PODS, "big", NAMESPACE, DeleteOptions(grace_period_seconds=0))
        with pytest.raises(StoppedError, match="does not exist any more"):
            await asyncio.wait_for(waiting, 60.0)


async def test_a_node_that_is_cordoned_meanwhile_ends_the_wait(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as cluster:
        planner = RebalancePlanner(await read_cluster(cluster.client, KINDS), OPTIONS)
        plan = planner.plan_for(pending_targets(planner.cluster))
        await _cordon(cluster, plan.steps[0].node)
        executor = RebalanceExecutor(cluster.client, OPTIONS, lambda _text: None)
        with pytest.raises(StoppedError, match="pod default/big would still be pending: 0 of 3 nodes fit"):
            await asyncio.wait_for(executor._wait_for_target(plan.steps[0]), 60.0)


async def test_an_interrupted_run_can_be_repeated(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as cluster:
        # No replacement can be created, so that the command waits.
        await cluster.client.create(RESOURCE_QUOTAS.unstructured, QUOTA)
        stopped = await _start_and_end(cluster, signal.SIGTERM)
        assert (stopped[0], "interrupted; no node is held any more" in stopped[1]) == (1, True), stopped
        assert await cluster.held() == []
        # Without a chance to clean up, the node stays held until somebody releases it.
        await _create_web_pod(cluster)
        await cluster.client.create(RESOURCE_QUOTAS.unstructured, QUOTA)
        await _start_and_end(cluster, signal.SIGKILL)
        assert len(await cluster.held()) == 1
        released = await asyncio.to_thread(cluster.dray, "rebalance", "release")
        assert released.stdout.startswith("released node sim-"), released
        assert await cluster.held() == []
        await _create_web_pod(cluster)
        applied = await asyncio.to_thread(cluster.dray, "rebalance", "plan", "--apply")
        assert applied.returncode == 0, applied
        assert await cluster.node_of("big")
        assert await cluster.held() == []


async def _start_and_end(cluster: Fragmented, number: signal.Signals) -> tuple[int, str]:
    """Start the command, end it by a signal after its first eviction, and return its exit code and errors."""
    process = cluster.start("rebalance", "plan", "--apply")
    assert process.stdout is not None
    while True:
        line = await asyncio.to_thread(process.stdout.readline)
        assert line, await asyncio.to_thread(process.communicate)
        if line.startswith("evicted"):
            break
    process.send_signal(number)
    _, errors = await asyncio.to_thread(process.communicate)
    return process.returncode, errors


async def _create_web_pod(cluster: Fragmented) -> None:
    """Let the ReplicaSet create its missing Pod again, on a node where it makes no room for `big`."""
    await cluster.client.delete(PODS, "big", NAMESPACE, DeleteOptions(grace_period_seconds=0))
    await cluster.client.delete(RESOURCE_QUOTAS, "no-pods", NAMESPACE)
    await cluster.wait(PODS, is_on_every_node)
    await cluster.client.create(PODS.unstructured, big_pod())
    await cluster.wait(PODS, is_unschedulable("big"))


async def test_a_cluster_that_differs_from_the_plan_is_left_alone(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as cluster:
        planner = RebalancePlanner(await read_cluster(cluster.client, KINDS), OPTIONS)
        plan = planner.plan_for(pending_targets(planner.cluster))
        (move,) = plan.steps[0].moves
        reports: list[str] = []
        executor = RebalanceExecutor(cluster.client, OPTIONS, reports.append)
        await cluster.client.delete(PODS, move.name, move.namespace, DeleteOptions(grace_period_seconds=0))
        # Which of the two is noticed depends on how fast the scheduler is.
        with pytest.raises(StoppedError, match=f"pod {move.pod} does not exist any more|is on node .* already"):
            await executor.apply(plan)
        assert reports == []
        assert await cluster.held() == []


async def test_a_replacement_elsewhere_is_accepted_if_the_plan_still_holds(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as cluster:
        planner = RebalancePlanner(await read_cluster(cluster.client, KINDS), OPTIONS)
        plan = planner.plan_for(pending_targets(planner.cluster))
        (move,) = plan.steps[0].moves
        await _cordon(cluster, move.to_node)
        reports: list[str] = []
        await RebalanceExecutor(cluster.client, OPTIONS, reports.append).apply(plan)
        assert f"  the plan said {move.to_node}: checking the rest of the plan again" in reports
        assert await cluster.node_of("big") == plan.steps[0].node
        node = await cluster.client.get(NODES, plan.steps[0].node)
        assert all(taint.key != HOLD_TAINT for taint in node.spec.taints)


async def _cordon(cluster: Fragmented, name: str) -> None:
    node = await cluster.client.get(NODES.unstructured, name)
    await cluster.client.update(NODES.unstructured, {**node, "spec": {**node.get("spec", {}), "unschedulable": True}})
