"""CPU, memory and huge pages of the node that devices use, from Filter to Unreserve (N-39 to N-45)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dray.api.document import Document
from dray.api.types.core_v1 import Pod
from dray.client.resources import NODES, PODS
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.status import Code
from tests.conformance.scheduler.dynamic_resources.bench import (
    TEAM,
    Attempt,
    Bench,
    bench,
    claim,
    device_class,
    node,
    pod,
    request,
    resource_slice,
)

GATE = "DRANodeAllocatableResources=true"
FEATURES = {"declaredFeatures": ["DRANodeAllocatableResources"]}


def worker(name: str = "worker", **amounts: str) -> Document:
    made = node(name)
    for kind in ("allocatable", "capacity"):
        made["status"][kind] = {**made["status"][kind], **amounts}
    made["status"] |= FEATURES
    return made


def using(name: str, resources: Document, **fields: Any) -> Document:
    """A device that uses resources of its node."""
    return {"name": name, "nodeAllocatableResources": resources, **fields}


def cpus(count: str) -> Document:
    return {"cpu": {"mapping": {"deviceMultiplier": count}}}


def core(name: str = "core", multiplier: str = "1") -> Document:
    """CPUs that are given out by capacity."""
    mapping = {"capacityKey": "cpus", "capacityMultiplier": multiplier}
    return using(name, {"cpu": {"mapping": mapping}}, allowMultipleAllocations=True, capacity={"cpus": {"value": "16"}})


def container(name: str = "c", *entries: str, requests: Document | None = None, **limits: str) -> Document:
    resources: Document = {"claims": [{"name": entry} for entry in entries]}
    if requests or limits:
        resources |= {"requests": requests or {}, "limits": limits}
    return {"name": name, "image": "i", "resources": resources}


async def start(cluster: Bench, *documents: Document, user: Document) -> Attempt:
    await cluster.create(device_class(), *documents)
    return await cluster.start(user)


async def status_on(cluster: Bench, attempt: Attempt, name: str = "worker") -> tuple[Code, str]:
    status = cluster.filter(attempt).get(name)
    assert status is not None
    return status.code, status.message


def recorded(attempt: Attempt, name: str = "worker") -> Any:
    return msgspec.to_builtins(attempt.state.pod_on(name).pod.status.node_allocatable_resource_claim_statuses)


@pytest.mark.behaviour("N-39", "N-42")
async def test_amounts_of_devices_are_summed_by_claim() -> None:
    both = {
        "cpu": {"mapping": {"deviceMultiplier": "2"}, "overhead": {"perPod": "100m"}},
        "memory": {"overhead": {"perPod": "64Mi", "perContainer": "16Mi"}},
    }
    async with bench(GATE, GATE) as cluster:
        attempt = await start(
            cluster,
            worker(),
            resource_slice("worker", using("a", both), using("b", both), using("c", cpus("500m"))),
            claim("two", request(count=2)),
            claim("one"),
            user=pod("pod", "two", "one", containers=[container("c", "entry-0"), container("d", "entry-0")]),
        )
        assert await status_on(cluster, attempt) == (Code.SUCCESS, "")
        assert recorded(attempt) == (
            {"resourceClaimName": "one", "mapping": ({"name": "cpu", "quantity": "500m"},)},
            {
                "resourceClaimName": "two",
                "containers": ("c", "d"),
                "mapping": ({"name": "cpu", "quantity": "4"},),
                "overhead": (
                    {"name": "cpu", "perPod": "200m"},
                    {"name": "memory", "perPod": "128Mi", "perContainer": "32Mi"},
                ),
            },
        )
        requests = attempt.state.pod_on("worker").requests
        assert (requests.milli_cpu, requests.memory) == (4700, (128 + 2 * 32) * 2**20)


@pytest.mark.behaviour("N-39")
async def test_consumed_capacity_is_multiplied() -> None:
    async with bench(GATE, GATE) as cluster:
        wanted = request(capacity={"requests": {"cpus": "3"}})
        attempt = await start(
            cluster,
            worker(),
            resource_slice("worker", core(multiplier="500m")),
            claim("claim", wanted),
            user=pod("pod", "claim"),
        )
        assert await status_on(cluster, attempt) == (Code.SUCCESS, "")
        assert recorded(attempt) == (
            {"resourceClaimName": "claim", "mapping": ({"name": "cpu", "quantity": "1500m"},)},
        )


@pytest.mark.behaviour("N-39")
async def test_a_device_without_consumed_capacity_is_an_error() -> None:
    async with bench(GATE, GATE) as cluster:
        alone = core()
        del alone["allowMultipleAllocations"]
        attempt = await start(cluster, worker(), resource_slice("worker", alone), claim(), user=pod("pod", "claim"))
        code, message = await status_on(cluster, attempt)
        assert code is Code.ERROR
        assert message.startswith("claim team/claim: device gpu.example.com/worker/core has no consumed capacity")


@pytest.mark.behaviour("N-41")
@pytest.mark.parametrize(
    ("amount", "own", "expected"),
    [
        ("6", "2", (Code.SUCCESS, "")),
        ("6", "2001m", (Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "Insufficient cpu")),
        ("9", "0", (Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "Insufficient cpu")),
    ],
)
async def test_requests_and_amounts_must_fit(amount: str, own: str, expected: tuple[Code, str]) -> None:
    async with bench(GATE, GATE) as cluster:
        attempt = await start(
            cluster,
            worker(),
            resource_slice("worker", using("a", cpus(amount))),
            claim(),
            user=pod("pod", "claim", containers=[container(requests={"cpu": own}, cpu=own)]),
        )
        assert await status_on(cluster, attempt) == expected


@pytest.mark.behaviour("N-41")
async def test_huge_pages_must_fit() -> None:
    async with bench(GATE, GATE) as cluster:
        pages = {"hugepages-2Mi": {"mapping": {"deviceMultiplier": "8Mi"}}}
        attempt = await start(
            cluster,
            worker(**{"hugepages-2Mi": "4Mi"}),
            resource_slice("worker", using("a", pages)),
            claim(),
            user=pod("pod", "claim"),
        )
        expected = Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "Insufficient hugepages-2Mi"
        assert await status_on(cluster, attempt) == expected


@pytest.mark.behaviour("N-41", "N-43")
async def test_a_pod_with_devices_leaves_less_to_others_and_preemption_can_help() -> None:
    async with bench(GATE, GATE) as cluster:
        first = await start(
            cluster,
            worker(),
            resource_slice("worker", using("a", cpus("5")), using("b", cpus("5"))),
            claim("one"),
            claim("two"),
            user=pod("first", "one"),
        )
        assert await status_on(cluster, first) == (Code.SUCCESS, "")
        assert cluster.plugin.reserve(first.state, first.pod, "worker").is_success
        before = cluster.handle.snapshot.get("worker")
        assert before is not None
        cluster.handle.snapshot.replace(before.with_pod(first.state.pod_on("worker")))
        second = await cluster.start(pod("second", "two"))
        assert await status_on(cluster, second) == (Code.UNSCHEDULABLE, "Insufficient cpu")


@pytest.mark.behaviour("N-41")
async def test_a_claim_that_was_allocated_before_counts() -> None:
    async with bench(GATE, GATE) as cluster:
        first = await start(
            cluster,
            worker(),
            resource_slice("worker", using("a", {"cpu": {"overhead": {"perPod": "5"}}})),
            claim(),
            user=pod("first", "claim"),
        )
        assert await status_on(cluster, first) == (Code.SUCCESS, "")
        assert (await cluster.take(first, "worker")).is_success
        second = await cluster.start(pod("second", "claim", containers=[container(requests={"cpu": "4"}, cpu="4")]))
        expected = Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "Insufficient cpu"
        assert await status_on(cluster, second) == expected


@pytest.mark.behaviour("N-42")
async def test_amounts_are_written_before_the_pod_is_bound_and_removed_if_it_is_not() -> None:
    async with bench(GATE, GATE) as cluster:
        attempt = await start(
            cluster, worker(), resource_slice("worker", using("a", cpus("2"))), claim(), user=pod("pod", "claim")
        )
        assert await status_on(cluster, attempt) == (Code.SUCCESS, "")
        assert (await cluster.take(attempt, "worker")).is_success
        live = await cluster.user.get(PODS, "pod", TEAM)
        written = live.status.node_allocatable_resource_claim_statuses
        assert msgspec.to_builtins(written) == (
            {"resourceClaimName": "claim", "mapping": ({"name": "cpu", "quantity": "2"},)},
        )
        # The Pod is bound only with these amounts.
        assert attempt.state.pod_version == live.metadata.resource_version
        await cluster.undo(attempt, "worker")
        live = await cluster.user.get(PODS, "pod", TEAM)
        assert live.status.node_allocatable_resource_claim_statuses == ()


@pytest.mark.behaviour("N-42")
async def test_amounts_of_a_pod_that_was_bound_after_all_are_kept() -> None:
    async with bench(GATE, GATE) as cluster:
        attempt = await start(
            cluster, worker(), resource_slice("worker", using("a", cpus("2"))), claim(), user=pod("pod", "claim")
        )
        assert await status_on(cluster, attempt) == (Code.SUCCESS, "")
        assert (await cluster.take(attempt, "worker")).is_success
        binding = {"metadata": {"name": "pod"}, "target": {"kind": "Node", "name": "worker"}}
        await cluster.user.create_subresource(PODS, "pod", TEAM, "binding", binding)
        await cluster.undo(attempt, "worker")
        live = await cluster.user.get(PODS, "pod", TEAM)
        assert len(live.status.node_allocatable_resource_claim_statuses) == 1


@pytest.mark.behaviour("N-43")
def test_a_running_pod_counts_with_its_amounts() -> None:
    status = {
        "nodeAllocatableResourceClaimStatuses": [
            {
                "resourceClaimName": "claim",
                "containers": ["c", "d"],
                "mapping": [{"name": "cpu", "quantity": "1500m"}, {"name": "hugepages-2Mi", "quantity": "4Mi"}],
                "overhead": [{"name": "memory", "perPod": "10Mi", "perContainer": "1Mi"}],
            }
        ]
    }
    spec = {"nodeName": "worker", "containers": [container(requests={"cpu": "1"})]}
    bound = msgspec.convert({"metadata": {"name": "p", "uid": "u"}, "spec": spec, "status": status}, Pod)
    info = NodeInfo(msgspec.convert(worker(**{"hugepages-2Mi": "8Mi"}), NODES.type)).with_pod(PodInfo(bound))
    assert (info.requested.milli_cpu, info.requested.memory) == (2500, 12 * 2**20)
    assert info.requested.scalars == {"hugepages-2Mi": 4 * 2**20}
    # Without a node they are left over from an earlier attempt.
    waiting = msgspec.structs.replace(bound, spec=msgspec.structs.replace(bound.spec, node_name=None))
    assert PodInfo(waiting).requests.milli_cpu == 1000


POD_LEVEL = [
    pytest.param({"requests": {"cpu": "3"}}, "", id="the request covers both"),
    pytest.param(
        {"requests": {"cpu": "2999m"}},
        "pod level request for cpu is insufficient to cover the aggregated container and node-allocatable DRA requests",
        id="the request does not cover the claims",
    ),
    pytest.param({"requests": {"cpu": "3"}, "limits": {"cpu": "3"}}, "", id="the limit covers the container"),
    pytest.param(
        {"requests": {"cpu": "3"}, "limits": {"cpu": "3"}},
        "pod level limit for cpu is insufficient to cover the limit and DRA overhead for container c",
        id="the limit does not cover the container",
    ),
]


@pytest.mark.behaviour("N-44")
@pytest.mark.parametrize(("resources", "expected"), POD_LEVEL)
async def test_resources_of_the_pod_as_a_whole_cover_its_claims(resources: Document, expected: str) -> None:
    limit = "2" if "limit" in expected else "1"
    async with bench(GATE, GATE) as cluster:
        attempt = await start(
            cluster,
            worker(),
            resource_slice("worker", using("a", cpus("2"))),
            claim(),
            user=pod(
                "pod",
                "claim",
                containers=[container("c", "entry-0", requests={"cpu": "1"}, cpu=limit)],
                resources=resources,
            ),
        )
        code = Code.UNSCHEDULABLE_AND_UNRESOLVABLE if expected else Code.SUCCESS
        assert await status_on(cluster, attempt) == (code, expected)
        if not expected:
            # The Pod's own request includes what its claims use.
            assert attempt.state.pod_on("worker").requests.milli_cpu == 3000


@pytest.mark.behaviour("N-45")
@pytest.mark.parametrize("kind", ["mapping", "overhead"])
async def test_a_claim_with_a_mapped_device_cannot_be_shared(kind: str) -> None:
    resources = cpus("1") if kind == "mapping" else {"cpu": {"overhead": {"perPod": "1"}}}
    async with bench(GATE, GATE) as cluster:
        first = await start(
            cluster, worker(), resource_slice("worker", using("a", resources)), claim(), user=pod("first", "claim")
        )
        assert await status_on(cluster, first) == (Code.SUCCESS, "")
        assert (await cluster.take(first, "worker")).is_success
        second = await cluster.start(pod("second", "claim"))
        code, message = await status_on(cluster, second)
        if kind == "overhead":
            assert (code, message) == (Code.SUCCESS, "")
            return
        assert code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
        assert message == ("node allocatable resource claim claim has a mapped device and cannot be shared across pods")


@pytest.mark.behaviour("N-41")
async def test_without_the_gate_nothing_is_counted() -> None:
    async with bench("", GATE) as cluster:
        attempt = await start(
            cluster, worker(), resource_slice("worker", using("a", cpus("99"))), claim(), user=pod("pod", "claim")
        )
        assert await status_on(cluster, attempt) == (Code.SUCCESS, "")
        assert recorded(attempt) == ()
