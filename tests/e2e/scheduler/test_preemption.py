"""Preemption with a real API server in this process: evictions, nominations, events, and what stops halfway."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document, GroupVersion
from dray.client.in_process import in_process_client
from dray.client.interface import (
    DeleteOptions,
    LocalRequest,
    LocalServer,
    Patch,
    PatchType,
    WriteOptions,
    unstructured,
)
from tests.e2e.scheduler.cluster import EVENTS, NODES, PODS, Cluster, node, pod, started

NOW = DeleteOptions(grace_period_seconds=0)
PRIORITY_CLASSES = unstructured(
    GroupVersion("scheduling.k8s.io", "v1"), "priorityclasses", "PriorityClass", namespaced=False
)
BUDGETS = unstructured(GroupVersion("policy", "v1"), "poddisruptionbudgets", "PodDisruptionBudget")


def run(folder: Path, test: Callable[[Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        async with started(folder) as cluster:
            for name, value, policy in (("high", 1000, None), ("middle", 500, None), ("shy", 1000, "Never")):
                document: Document = {"metadata": {"name": name}, "value": value}
                await cluster.client.create(
                    PRIORITY_CLASSES, document | ({"preemptionPolicy": policy} if policy else {})
                )
            await test(cluster)

    asyncio.run(main())


async def gone(cluster: Cluster, name: str) -> None:
    async def names() -> list[str]:
        return [item["metadata"]["name"] for item in (await cluster.client.list(PODS, "default")).items]

    await cluster.eventually(names, lambda found: name not in found)


async def terminating(cluster: Cluster, name: str) -> Document:
    return await cluster.eventually(lambda: cluster.pod(name), lambda item: "deletionTimestamp" in item["metadata"])


async def fill(cluster: Cluster, *names: str, **more: Any) -> None:
    """Pods that take a whole node each, and are deleted at once."""
    for name in names:
        await cluster.create(pod(name, cpu="4", **({"terminationGracePeriodSeconds": 0} | more)))
    for name in names:
        await cluster.node_of(name)


@pytest.mark.behaviour("PE-12", "PE-34", "PE-35", "PE-40", "PE-45")
def test_a_pod_of_higher_priority_takes_the_place_of_another(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.start_scheduler()
        await cluster.create(node("n"))
        await fill(cluster, "low", terminationGracePeriodSeconds=30)
        await cluster.create(pod("urgent", cpu="4", priorityClassName="high"))
        victim = await terminating(cluster, "low")
        assert victim["metadata"]["deletionGracePeriodSeconds"] == 30
        condition = next(item for item in victim["status"]["conditions"] if item["type"] == "DisruptionTarget")
        assert condition["status"] == "True"
        assert condition["reason"] == "PreemptionByScheduler"
        assert condition["message"] == "default-scheduler: preempting to accommodate a higher priority pod"
        waiting = await cluster.eventually(
            lambda: cluster.pod("urgent"), lambda item: item["status"].get("nominatedNodeName") == "n"
        )
        scheduled = next(item for item in waiting["status"]["conditions"] if item["type"] == "PodScheduled")
        assert scheduled["message"] == (
            "0/1 nodes are available: 1 Insufficient cpu. "
            "preemption: found a potential placement for pod on node n, preempting 1 victims"
        )
        uid = waiting["metadata"]["uid"]
        assert await cluster.event_messages("low", "Preempted") == [f"Preempted by pod {uid} on node n"]
        (event,) = [
            item for item in (await cluster.client.list(EVENTS, "default")).items if item["reason"] == "Preempted"
        ]
        assert (event["action"], event["type"], event["related"]["name"]) == ("Preempting", "Normal", "urgent")
        # The replacement of the victim does not take the room.
        await cluster.create(pod("replacement", cpu="4"))
        await cluster.client.delete(PODS, "low", "default", NOW)
        assert await cluster.node_of("urgent") == "n"
        assert "nominatedNodeName" not in (await cluster.pod("urgent"))["status"]
        message = (await cluster.condition("replacement", "Unschedulable", "No preemption victims"))["message"]
        assert message == (
            "0/1 nodes are available: 1 Insufficient cpu. preemption: "
            "0/1 nodes are available: 1 No preemption victims found for incoming pod."
        )

    run(tmp_path, test)


async def retry(cluster: Cluster, node_name: str, number: int) -> None:
    """Change the node, so that rejected Pods are tried again."""
    amounts = {"cpu": "4", "memory": "8Gi", "pods": f"{110 + number}"}
    body: Document = {"status": {"allocatable": amounts}}
    await cluster.client.patch(NODES, node_name, "", Patch(PatchType.MERGE, body), WriteOptions(subresource="status"))


@pytest.mark.behaviour("PE-13", "PE-43", "PE-44", "SC-14")
def test_who_may_not_preempt(tmp_path: Path) -> None:
    """Policy Never; and a Pod whose victim does not go, because of its finalizer: nobody else has to."""

    async def test(cluster: Cluster) -> None:
        cluster.start_scheduler()
        await cluster.create(node("n"))
        await fill(cluster, "low")
        await cluster.create(pod("shy", cpu="4", priorityClassName="shy"))
        condition = await cluster.condition("shy", "Unschedulable", "preemption: ")
        assert condition["message"].endswith("preemption: not eligible due to preemptionPolicy=Never.")
        await cluster.client.delete(PODS, "shy", "default", NOW)
        await cluster.client.patch(
            PODS, "low", "default", Patch(PatchType.MERGE, {"metadata": {"finalizers": ["example.com/stuck"]}})
        )
        await cluster.create(pod("urgent", cpu="4", priorityClassName="high"))
        await terminating(cluster, "low")
        await cluster.eventually(
            lambda: cluster.pod("urgent"), lambda item: item["status"].get("nominatedNodeName") == "n"
        )
        # Something better is free: nothing binds the Pod to its nomination.
        await cluster.create(node("m"))
        assert await cluster.node_of("urgent") == "m"
        await cluster.create(pod("second", cpu="4", priorityClassName="high"))
        await cluster.eventually(
            lambda: cluster.pod("second"), lambda item: item["status"].get("nominatedNodeName") == "n"
        )
        await retry(cluster, "n", 1)
        condition = await cluster.condition("second", "Unschedulable", "terminating pod")
        assert condition["message"].endswith("not eligible due to a terminating pod on the nominated node.")
        await cluster.client.patch(PODS, "low", "default", Patch(PatchType.MERGE, {"metadata": {"finalizers": None}}))
        assert await cluster.node_of("second") == "n"

    run(tmp_path, test)


class Broken:
    """A server that does not answer deletions; a scheduler with it is about to be killed."""

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self.watch = server.watch
        self.reached = asyncio.Event()

    async def handle(self, request: LocalRequest) -> Document:
        if request.verb == "delete":
            self.reached.set()
            await asyncio.Event().wait()
        return await self._server.handle(request)


@pytest.mark.behaviour("PE-11", "PE-39")
def test_a_scheduler_that_is_killed_between_nomination_and_eviction(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        broken = Broken(cluster.running.local)
        client = in_process_client(broken, user="system:kube-scheduler")
        _, stop = cluster.start_scheduler(client=client)
        await cluster.create(node("n"))
        await fill(cluster, "low")
        await cluster.create(pod("urgent", cpu="4", priorityClassName="high"))
        await broken.reached.wait()
        await cluster.eventually(
            lambda: cluster.pod("urgent"), lambda item: item["status"].get("nominatedNodeName") == "n"
        )
        await stop()
        assert "deletionTimestamp" not in (await cluster.pod("low"))["metadata"]
        cluster.start_scheduler()
        assert await cluster.node_of("urgent") == "n"
        await gone(cluster, "low")

    run(tmp_path, test)


@pytest.mark.behaviour("PE-21", "PE-25")
def test_a_budget_turns_the_choice_to_another_node(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.start_scheduler()
        await cluster.create(node("n"))
        await fill(cluster, "guarded", labels={"app": "web"})
        await cluster.create(node("m"))
        await fill(cluster, "middle", priorityClassName="middle")
        budget = {"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}}
        await cluster.client.create(BUDGETS, budget | {"metadata": {"name": "web", "namespace": "default"}})
        await cluster.create(pod("urgent", cpu="4", priorityClassName="high"))
        assert await cluster.node_of("urgent") == "m"
        await gone(cluster, "middle")
        # A budget is best effort: where nothing else helps, it is violated.
        await cluster.create(pod("more", cpu="4", priorityClassName="high"))
        assert await cluster.node_of("more") == "n"

    run(tmp_path, test)
