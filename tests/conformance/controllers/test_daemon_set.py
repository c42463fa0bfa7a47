"""DaemonSets on the API server, with the scheduler and simulated nodes, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dray.api.document import Document
from dray.client.interface import DeleteOptions, Patch, PatchType
from dray.controllers.daemon_set.placement import HASH_LABEL
from dray.controllers.daemon_set.reconciler import DaemonSetController
from dray.sim.replica.virtual_time import run_virtually
from tests.conformance.controllers.cluster import (
    DAEMON_SETS,
    NODES,
    PODS,
    REVISIONS,
    TEAM,
    Cluster,
    add_node,
    running_cluster,
    template,
)

LABELS = {"app": "agent"}
NODE_COUNT = 4


def spec(image: str = "image:1", pod: Document | None = None, **more: Any) -> Document:
    return {
        "selector": {"matchLabels": LABELS},
        "template": template(LABELS, **{"containers": [{"name": "c", "image": image}], **(pod or {})}),
        **more,
    }


def rolling(surge: int | str, unavailable: int | str) -> Document:
    settings = {"maxSurge": surge, "maxUnavailable": unavailable}
    return {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": settings}}


def run_scenario(scenario: Callable[[Cluster], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with running_cluster(DaemonSetController, **{"nodes": NODE_COUNT, **options}) as cluster:
            await scenario(cluster)

    run_virtually(run())


async def change_node(cluster: Cluster, name: str, body: Document) -> None:
    await cluster.user.patch(NODES, name, "", Patch(PatchType.MERGE, body))


async def set_image(cluster: Cluster, image: str) -> None:
    change = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}}
    await cluster.patch(DAEMON_SETS, "agent", change)


async def all_ready(cluster: Cluster, count: int = NODE_COUNT) -> Document:
    return await cluster.until_status(DAEMON_SETS, "agent", desiredNumberScheduled=count, numberAvailable=count)


def nodes_of(pods: list[Document]) -> Counter[str]:
    return Counter(pod["spec"].get("nodeName", "") for pod in pods)


def test_one_pod_on_every_node() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(DAEMON_SETS, "agent", spec())
        status = await all_ready(cluster)
        assert status == {
            "desiredNumberScheduled": 4,
            "currentNumberScheduled": 4,
            "numberMisscheduled": 0,
            "numberReady": 4,
            "numberAvailable": 4,
            "updatedNumberScheduled": 4,
            "observedGeneration": 1,
        }
        pods = await cluster.pods()
        assert nodes_of(pods) == {f"sim-{number}": 1 for number in range(4)}
        (revision,) = await cluster.list(REVISIONS)
        assert all(pod["metadata"]["labels"][HASH_LABEL] == revision["metadata"]["labels"][HASH_LABEL] for pod in pods)
        assert revision["data"]["spec"]["template"]["$patch"] == "replace"
        # Kubernetes' Match compares the bytes with those of the served template, keys sorted.
        (stored,) = await cluster.list(DAEMON_SETS)
        expected = {"spec": {"template": {**stored["spec"]["template"], "$patch": "replace"}}}
        assert json.dumps(revision["data"]) == json.dumps(expected, sort_keys=True)
        terms = pods[0]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert terms == {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [pods[0]["spec"]["nodeName"]]}]}
            ]
        }
        tolerated = {(item.get("key"), item.get("effect")) for item in pods[0]["spec"]["tolerations"]}
        assert {
            ("node.kubernetes.io/not-ready", "NoExecute"),
            ("node.kubernetes.io/unreachable", "NoExecute"),
            ("node.kubernetes.io/disk-pressure", "NoSchedule"),
            ("node.kubernetes.io/memory-pressure", "NoSchedule"),
            ("node.kubernetes.io/pid-pressure", "NoSchedule"),
            ("node.kubernetes.io/unschedulable", "NoSchedule"),
        } <= tolerated
        assert [event[:2] for event in await cluster.events("agent")] == [("Normal", "SuccessfulCreate")] * 4
        # A deleted one comes back on its node.
        name, node = pods[0]["metadata"]["name"], pods[0]["spec"]["nodeName"]
        await cluster.user.delete(PODS, name, TEAM)
        await cluster.settle()
        assert nodes_of(await cluster.pods())[node] == 1

    run_scenario(scenario)


def test_nodes_come_go_and_change() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(DAEMON_SETS, "agent", spec(pod={"nodeSelector": {"gpu": "yes"}}))
        await cluster.until_status(DAEMON_SETS, "agent", observedGeneration=1, desiredNumberScheduled=0)
        assert await cluster.pods() == []
        for name in ("sim-1", "sim-2"):
            await change_node(cluster, name, {"metadata": {"labels": {"gpu": "yes"}}})
        await all_ready(cluster, 2)
        # What evicts goes; what only keeps others out lets those stay that are there.
        hard = {"key": "k", "value": "v", "effect": "NoExecute"}
        await change_node(cluster, "sim-1", {"spec": {"taints": [hard]}})
        await change_node(cluster, "sim-2", {"spec": {"taints": [{**hard, "effect": "NoSchedule"}]}})
        await cluster.until_status(DAEMON_SETS, "agent", desiredNumberScheduled=0, numberMisscheduled=1)
        await cluster.settle()
        assert nodes_of(await cluster.pods()) == {"sim-2": 1}
        await change_node(cluster, "sim-2", {"metadata": {"labels": {"gpu": None}}})
        await cluster.settle()
        assert await cluster.pods() == []
        await change_node(cluster, "sim-1", {"spec": {"taints": None}})
        await all_ready(cluster, 1)

    run_scenario(scenario)


def test_cordoned_nodes_keep_and_get_daemons() -> None:
    async def cordon(cluster: Cluster) -> None:
        taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        await add_node(cluster, "cordoned", unschedulable=True, taints=[taint])

    async def scenario(cluster: Cluster) -> None:
        await cluster.create(DAEMON_SETS, "agent", spec())

        async def bound() -> bool:
            return nodes_of(await cluster.pods())["cordoned"] == 1

        await cluster.until(bound)

    run_scenario(scenario, prepare=cordon, nodes=0)


def test_a_node_that_is_gone_takes_its_waiting_pod_along() -> None:
    async def node(cluster: Cluster) -> None:
        await add_node(cluster, "small", pods=0)

    async def scenario(cluster: Cluster) -> None:
        await cluster.create(DAEMON_SETS, "agent", spec())
        await cluster.until_status(DAEMON_SETS, "agent", currentNumberScheduled=1)
        await cluster.user.delete(NODES, "small")
        await cluster.settle()
        assert await cluster.pods() == []

    run_scenario(scenario, prepare=node, nodes=0)


@pytest.mark.parametrize(
    ("strategy", "most", "least"),
    [
        (rolling(0, 1), 4, 3),
        (rolling(0, "50%"), 4, 2),
        (rolling(1, 0), 5, 4),
        (rolling("50%", 0), 6, 4),
    ],
)
def test_a_rolling_update_stays_within_its_bounds(strategy: Document, most: int, least: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(DAEMON_SETS, "agent", spec(**strategy))
        await all_ready(cluster)
        await set_image(cluster, "image:2")
        counts: list[tuple[int, int]] = []

        async def done() -> bool:
            pods = await cluster.pods()
            ready = [pod for pod in pods if is_ready(pod)]
            counts.append((len(pods), len({pod["spec"]["nodeName"] for pod in ready})))
            status = await cluster.status(DAEMON_SETS, "agent")
            return status["observedGeneration"] == 2 and status.get("updatedNumberScheduled") == 4

        await cluster.until(done)
        await cluster.settle()
        assert max(count for count, _ in counts) <= most
        assert min(count for _, count in counts) >= least
        pods = await cluster.pods()
        assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"image:2"}
        assert max(nodes_of(pods).values()) == 1

    run_scenario(scenario)


def is_ready(pod: Document) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"].get("conditions") or ())


def test_on_delete_waits_for_the_user() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(DAEMON_SETS, "agent", spec(updateStrategy={"type": "OnDelete"}))
        await all_ready(cluster)
        await set_image(cluster, "image:2")
        await cluster.until_status(DAEMON_SETS, "agent", observedGeneration=2)
        await cluster.settle(60)
        pods = await cluster.pods()
        assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"image:1"}
        assert not (await cluster.status(DAEMON_SETS, "agent")).get("updatedNumberScheduled")
        await cluster.user.delete(PODS, pods[0]["metadata"]["name"], TEAM)
        await cluster.until_status(DAEMON_SETS, "agent", updatedNumberScheduled=1)

    run_scenario(scenario)


def test_history_is_numbered_and_cut() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(DAEMON_SETS, "agent", spec(revisionHistoryLimit=1))
        for number in (1, 2, 3, 2):
            await set_image(cluster, f"image:{number}")
            generation = (await cluster.get(DAEMON_SETS, "agent"))["metadata"]["generation"]
            await cluster.until_status(
                DAEMON_SETS, "agent", observedGeneration=generation, updatedNumberScheduled=4, numberAvailable=4
            )
            await cluster.settle()
        found = {
            item["revision"]: item["data"]["spec"]["template"]["spec"]["containers"][0]["image"]
            for item in await cluster.list(REVISIONS)
        }
        assert found == {3: "image:3", 4: "image:2"}

    run_scenario(scenario)


def test_failed_daemons_are_replaced_ever_more_slowly() -> None:
    async def node(cluster: Cluster) -> None:
        await add_node(cluster, "small")

    async def scenario(cluster: Cluster) -> None:
        """No kubelet here: the test plays it."""
        await cluster.create(DAEMON_SETS, "agent", spec())
        times: list[float] = []
        names: list[str] = []
        for _ in range(5):
            pod = await cluster.until(lambda: bound(cluster, names))
            names.append(pod["metadata"]["name"])
            await cluster.patch(PODS, names[-1], {"status": {"phase": "Failed"}}, "status")
            await cluster.until(lambda: removed(cluster, names[-1]))
            times.append(asyncio.get_running_loop().time())
        waits = [after - before for before, after in itertools.pairwise(times)]
        assert [round(wait) for wait in waits] == [1, 2, 4, 8]
        events = [event for event in await cluster.events("agent") if event[1] == "FailedDaemonPod"]
        assert events[0] == (
            "Warning",
            "FailedDaemonPod",
            f"Found failed daemon pod team/{names[0]} on node small, will try to kill it",
        )

    async def bound(cluster: Cluster, known: list[str]) -> Document | None:
        fresh = [pod for pod in await cluster.list(PODS) if pod["metadata"]["name"] not in known]
        return next((pod for pod in fresh if pod["spec"].get("nodeName")), None)

    async def removed(cluster: Cluster, name: str) -> bool:
        pods = {pod["metadata"]["name"]: pod for pod in await cluster.list(PODS)}
        if name in pods and pods[name]["metadata"].get("deletionTimestamp"):
            await cluster.user.delete(PODS, name, TEAM, DeleteOptions(grace_period_seconds=0))
            return True
        return name not in pods

    run_scenario(scenario, prepare=node, nodes=0)
