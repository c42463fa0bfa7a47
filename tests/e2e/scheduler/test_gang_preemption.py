"""Gangs that preempt, and gangs that are preempted, with a real API server, its controllers and a scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document, GroupVersion
from dray.client.interface import Patch, PatchType, unstructured
from dray.runtime.metrics import Metrics
from tests.e2e.scheduler.cluster import NODES, PODS, Cluster, pod
from tests.e2e.scheduler.test_gangs import (
    GATES,
    GPU,
    POD_GROUPS,
    allocated,
    condition,
    create_devices,
    create_gang,
    group,
    member,
    placed,
    pods_of,
    run,
)

PRIORITY_CLASSES = unstructured(
    GroupVersion("scheduling.k8s.io", "v1"), "priorityclasses", "PriorityClass", namespaced=False
)
HOLD = "example.com/hold"
FAILED = "FailedScheduling"


async def start(cluster: Cluster, nodes: int, devices: int) -> Metrics:
    for name, value in (("high", 1000), ("higher", 2000)):
        await cluster.client.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})
    await create_devices(cluster, nodes, devices)
    cluster.start_controllers()
    metrics = Metrics()
    cluster.start_scheduler(metrics=metrics)
    return metrics


def alone(name: str, *, finalizer: str = "", **spec: Any) -> Document:
    """A Pod with a device that belongs to no group."""
    document = pod(name, terminationGracePeriodSeconds=0, resourceClaims=[GPU], **spec)
    document["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    if finalizer:
        document["metadata"]["finalizers"] = [finalizer]
    return document


async def create_urgent_gang(cluster: Cluster, name: str, count: int, priority: str = "high", **spec: Any) -> None:
    await cluster.client.create(POD_GROUPS, group(name, min_count=count, priorityClassName=priority))
    for number in range(count):
        await cluster.client.create(PODS, member(f"{name}-{number}", name, GPU, priorityClassName=priority, **spec))


async def names(cluster: Cluster) -> set[str]:
    return {item["metadata"]["name"] for item in (await cluster.client.list(PODS, "default")).items}


@pytest.mark.behaviour("GW-51", "GW-52", "GW-53", "GW-56", "GW-59")
def test_a_gang_takes_the_devices_of_just_enough_pods(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        metrics = await start(cluster, 2, 2)
        for number in range(4):
            await cluster.create(alone(f"low-{number}"))
            await cluster.node_of(f"low-{number}")
        await create_urgent_gang(cluster, "urgent", 3)
        await placed(cluster, "urgent", 3)
        left = {name for name in await names(cluster) if name.startswith("low")}
        assert len(left) == 1
        gone = next(f"low-{number}" for number in range(4) if f"low-{number}" not in left)
        (note,) = await cluster.event_messages(gone, "Preempted")
        uid = (await cluster.client.get(POD_GROUPS, "urgent", "default"))["metadata"]["uid"]
        assert note == f"Preempted by podgroup {uid} on node cluster"
        assert len(await allocated(cluster)) == 4
        notes = [text for number in range(3) for text in await cluster.event_messages(f"urgent-{number}", FAILED)]
        found = "pod group preemption: found a placement for podgroup, preempting 3 victims"
        assert any(text.endswith(f", {found}") for text in notes)
        text = metrics.exposition().decode()
        assert 'scheduler_workload_preemption_attempts_total{result="success"} 1.0' in text
        assert "scheduler_workload_preemption_victims_sum 3.0" in text

    run(tmp_path, test)


@pytest.mark.behaviour("GW-72", "GW-60")
def test_a_gang_that_stays_in_one_rack_evicts_there_only(tmp_path: Path) -> None:
    """Rack a has two nodes and rack b one with fewer devices than the gang needs: only Pods of rack a go."""

    async def test(cluster: Cluster) -> None:
        await start(cluster, 3, 1)
        for number, rack in enumerate("aba"):
            patch = Patch(PatchType.MERGE, {"metadata": {"labels": {"rack": rack}}})
            await cluster.client.patch(NODES, f"n{number}", "", patch)
        for number in range(3):
            await cluster.create(alone(f"low-{number}"))
        on_b = [f"low-{number}" for number in range(3) if await cluster.node_of(f"low-{number}") == "n1"]
        constraints = {"topology": [{"key": "rack"}]}
        urgent = group("urgent", min_count=2, priorityClassName="high", schedulingConstraints=constraints)
        await cluster.client.create(POD_GROUPS, urgent)
        for number in range(2):
            await cluster.client.create(PODS, member(f"urgent-{number}", "urgent", GPU, priorityClassName="high"))
        found = await placed(cluster, "urgent", 2)
        assert {item["spec"]["nodeName"] for item in found} == {"n0", "n2"}
        assert [name for name in await names(cluster) if name.startswith("low")] == on_b

    run(tmp_path, test, gates=f"{GATES},TopologyAwareWorkloadScheduling=true")


@pytest.mark.behaviour("GW-53", "GW-54", "GW-57")
def test_while_victims_go_the_gang_waits_with_its_nodes_and_nobody_else_goes(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await start(cluster, 2, 2)
        for number in range(4):
            await cluster.create(alone(f"low-{number}", finalizer=HOLD))
            await cluster.node_of(f"low-{number}")
        await create_urgent_gang(cluster, "urgent", 2)
        ongoing = "pod group preemption: ongoing preemption on nominated nodes"
        await cluster.eventually(
            lambda: condition(cluster, "urgent", "Unschedulable"), lambda found: ongoing in found["message"]
        )
        nominated = [item["status"].get("nominatedNodeName") for item in await pods_of(cluster, "urgent")]
        assert all(nominated), nominated
        pods = (await cluster.client.list(PODS, "default")).items
        going = [item for item in pods if item["metadata"].get("deletionTimestamp")]
        assert len(going) == 2
        for item in going:
            (found,) = [one for one in item["status"]["conditions"] if one["type"] == "DisruptionTarget"]
            assert found["message"] == "default-scheduler: preempting to accommodate a higher priority podgroup"
            patch = Patch(PatchType.MERGE, {"metadata": {"finalizers": None}})
            await cluster.client.patch(PODS, item["metadata"]["name"], "default", patch)
        await placed(cluster, "urgent", 2)
        assert len([name for name in await names(cluster) if name.startswith("low")]) == 2

    run(tmp_path, test)


@pytest.mark.behaviour("GW-50")
@pytest.mark.parametrize(("mode", "left"), [("all", 0), ("single", 2)])
def test_a_group_is_evicted_as_a_whole_or_pod_by_pod(tmp_path: Path, mode: str, left: int) -> None:
    async def test(cluster: Cluster) -> None:
        await start(cluster, 3, 1)
        await create_gang(cluster, "old", 3, GPU, disruptionMode={mode: {}})
        await placed(cluster, "old", 3)
        await cluster.create(alone("urgent", priorityClassName="high"))
        await cluster.node_of("urgent")
        found = await cluster.eventually(lambda: pods_of(cluster, "old"), lambda items: len(items) <= left)
        assert len(found) == left

    run(tmp_path, test)


@pytest.mark.behaviour("GW-51", "GW-52")
@pytest.mark.parametrize(
    ("low", "spec", "text"),
    [
        ("high", {}, "pod group preemption: No preemption victims found for incoming preemptor"),
        ("", {"preemptionPolicy": "Never"}, "pod group preemption: not eligible due to preemptionPolicy=Never."),
        ("", {"nodeSelector": {"disk": "ssd"}}, "pod group preemption: minCount (2) cannot be satisfied"),
    ],
)
def test_a_gang_that_cannot_preempt_says_why_and_nobody_goes(
    tmp_path: Path, low: str, spec: dict[str, Any], text: str
) -> None:
    async def test(cluster: Cluster) -> None:
        await start(cluster, 1, 2)
        never = {"metadata": {"name": "never"}, "value": 1000, "preemptionPolicy": "Never"}
        await cluster.client.create(PRIORITY_CLASSES, never)
        for number in range(2):
            await cluster.create(alone(f"low-{number}", **({"priorityClassName": low} if low else {})))
            await cluster.node_of(f"low-{number}")
        own = {key: value for key, value in spec.items() if key != "preemptionPolicy"}
        await create_urgent_gang(cluster, "urgent", 2, "never" if "preemptionPolicy" in spec else "high", **own)
        await cluster.eventually(
            lambda: condition(cluster, "urgent", "Unschedulable"), lambda found: text in found["message"]
        )
        pods = (await cluster.client.list(PODS, "default")).items
        assert not [item for item in pods if item["metadata"].get("deletionTimestamp")]
        assert {"low-0", "low-1"} <= {item["metadata"]["name"] for item in pods}

    run(tmp_path, test)
