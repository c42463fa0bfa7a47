"""Extended resources that devices serve, extension point by extension point; upstream's row names where they fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from dray.api.document import Document
from dray.api.errors import APIError, BadRequestError, ConflictError, ServiceUnavailableError
from dray.api.pod_claims import EXTENDED_RESOURCE_ANNOTATION, FINALIZER
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim, ResourceClaimConsumerReference
from dray.client.interface import DeleteOptions
from dray.client.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dray.client.rest import Call
from dray.framework.events import Action, ClusterEvent, Hint
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.status import Code
from dray.scheduler.plugins.balanced_allocation import BalancedAllocation
from dray.scheduler.plugins.dynamic_resources.extended_claim_writer import NOT_THE_PODS
from dray.scheduler.plugins.dynamic_resources.extended_resources import claim_name, is_extended_resource_claim_of
from dray.scheduler.plugins.node_resources_fit import NodeResourcesFit
from tests.conformance.scheduler.dynamic_resources.bench import (
    TEAM,
    Attempt,
    Bench,
    bench,
    claim,
    device_class,
    node,
    resource_slice,
    until,
)

GPU = "example.com/gpu"
IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"
UNRESOLVABLE = Code.UNSCHEDULABLE_AND_UNRESOLVABLE
NO_FIT = "cannot allocate all claims"
CANNOT_SCHEDULE = "cannot schedule extended resource claim"


def named_class(name: str = "gpu", resource: str | None = GPU) -> Document:
    made = device_class(name)
    if resource is not None:
        made["spec"]["extendedResourceName"] = resource
    return made


def node_with(name: str, **amounts: int) -> Document:
    """A node with extended resources of its own."""
    made = node(name)
    extra = {f"example.com/{key}": str(value) for key, value in amounts.items()}
    for listed in ("allocatable", "capacity"):
        made["status"][listed] = made["status"][listed] | extra
    return made


def asking(name: str = "pod", *claims: str, **resources: int) -> Document:
    names = {"gpu": GPU, "implicit": IMPLICIT}
    limits = {names.get(key, f"example.com/{key}"): str(value) for key, value in resources.items()}
    container = {"name": "c", "image": "i", "resources": {"limits": limits, "requests": limits}}
    entries = [{"name": f"entry-{number}", "resourceClaimName": item} for number, item in enumerate(claims)]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {"containers": [container], "resourceClaims": entries},
    }


WORKER = (named_class(), node("worker"), resource_slice("worker", "gpu-0", "gpu-1"))


# --- PreFilter and Filter: one row each. ---


@dataclass
class Case:
    """What there is, the Pod, and the answers of PreFilter and of each node."""

    given: tuple[Document, ...]
    pod: Document
    pre_filter: tuple[Code, str] = (Code.SUCCESS, "")
    nodes: dict[str, str] = field(default_factory=dict)
    gates: str = ""


CASES: dict[str, tuple[Case, tuple[str, ...]]] = {
    "empty-with-extended-resources-enabled": (
        Case(WORKER, asking(), pre_filter=(Code.SKIP, "")),
        ("XR-14",),
    ),
    "zero-is-none": (Case(WORKER, asking(gpu=0), pre_filter=(Code.SKIP, "")), ("XR-10",)),
    "extended-resource-name-no-class": (
        Case((node_with("worker", gpu=2),), asking(gpu=1), pre_filter=(Code.SKIP, "")),
        ("XR-14",),
    ),
    "extended-resource-name-with-resources": (Case(WORKER, asking(gpu=2), nodes={"worker": ""}), ("XR-11", "XR-14")),
    "extended-resource-name-no-resource": (
        Case((named_class(), node("worker")), asking(gpu=1), nodes={"worker": NO_FIT}),
        ("XR-11",),
    ),
    "implicit-extended-resource-name-with-resources": (
        Case(
            (named_class(resource=None), node("worker"), resource_slice("worker", "gpu-0")),
            asking(implicit=1),
            nodes={"worker": ""},
        ),
        ("XR-02",),
    ),
    "implicit-and-explicit-name-of-one-class": (
        Case(WORKER, asking(gpu=1, implicit=1), nodes={"worker": ""}),
        ("XR-24",),
    ),
    "implicit-and-explicit-name-want-more-than-there-is": (
        Case(WORKER, asking(gpu=1, implicit=2), nodes={"worker": NO_FIT}),
        ("XR-24",),
    ),
    "extended-resource-one-device-plugin-one-dra": (
        Case((*WORKER, node_with("plugin", gpu=2), node("bare")), asking(gpu=1), nodes={"worker": "", "plugin": "",
             "bare": NO_FIT}),
        ("XR-11", "XR-18", "XR-40"),
    ),
    "extended-resource-name-with-zero-allocatable": (
        Case((named_class(), node_with("worker", gpu=0), resource_slice("worker", "gpu-0")), asking(gpu=1),
             nodes={"worker": ""}),
        ("XR-11",),
    ),
    "extended-resource-name-with-node-resource": (
        Case((named_class(), node_with("worker", gpu=1)), asking(gpu=1), nodes={"worker": ""}),
        ("XR-18",),
    ),
    "a-plugin-before-devices": (
        Case((named_class(), node_with("worker", gpu=2), resource_slice("worker", "gpu-0")), asking(gpu=2),
             nodes={"worker": ""}),
        ("XR-11",),
    ),
    "one-from-a-plugin-one-from-devices": (
        Case((named_class(), node_with("worker", foo=1), resource_slice("worker", "gpu-0")), asking(gpu=1, foo=1),
             nodes={"worker": ""}),
        ("XR-11",),
    ),
    "neither-the-node-nor-a-class": (
        Case(WORKER, asking(gpu=1, foo=1), nodes={"worker": "cannot fit resource"}),
        ("XR-17",),
    ),
    "more-than-a-claim-can-hold": (
        Case(WORKER, asking(gpu=33), nodes={"worker": "number of requested devices 33 exceeds the claim limit of 32"}),
        ("XR-25",),
    ),
    "with-a-claim": (Case((*WORKER, claim()), asking("pod", "claim", gpu=1), nodes={"worker": ""}), ("XR-23",)),
    "with-a-claim-more-than-there-is": (
        Case((*WORKER, claim()), asking("pod", "claim", gpu=2), nodes={"worker": NO_FIT}),
        ("XR-23",),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=name, marks=pytest.mark.behaviour(*ids)) for name, (case, ids) in CASES.items()]
)
async def test_finding_nodes(case: Case) -> None:
    async with bench(case.gates) as cluster:
        await cluster.create(*case.given)
        attempt = await cluster.start(case.pod)
        assert cluster.plugin.pre_enqueue(attempt.pod).is_success
        statuses = cluster.filter(attempt)
        first = statuses.pop("", None)
        assert (first.code if first else Code.SUCCESS, first.message if first else "") == case.pre_filter
        assert statuses.keys() == case.nodes.keys()
        for name, status in statuses.items():
            assert case.nodes[name] in status.message
            assert status.code is (UNRESOLVABLE if case.nodes[name] else Code.SUCCESS)


# --- NodeResourcesFit. ---


def insufficient(cluster: Bench, attempt: Attempt, name: str) -> str:
    fit = NodeResourcesFit({}, cluster.handle)
    fit.pre_filter(attempt.state, attempt.pod)
    found = cluster.handle.snapshot.get(name)
    assert found is not None
    return fit.filter(attempt.state, attempt.pod, found).message


@pytest.mark.behaviour("XR-12")
async def test_what_devices_serve_is_left_out_of_the_nodes_own() -> None:
    nodes = {"worker": "", "plugin": "", "small": f"Insufficient {GPU}"}
    async with bench() as cluster:
        await cluster.create(*WORKER, node_with("plugin", gpu=2), node_with("small", gpu=1))
        attempt = await cluster.start(asking(gpu=2))
        assert {name: insufficient(cluster, attempt, name) for name in nodes} == nodes
        other = await cluster.start(asking("other", foo=1))
        assert insufficient(cluster, other, "worker") == "Insufficient example.com/foo"


@pytest.mark.behaviour("XR-12")
async def test_an_implicit_name_is_left_out_too() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER)
        assert insufficient(cluster, await cluster.start(asking(implicit=1)), "worker") == ""


def on_node(cluster: Bench, name: str, *pods: Pod) -> NodeInfo:
    """The node with Pods on it, known to the snapshot."""
    info = cluster.handle.snapshot.get(name)
    assert info is not None
    for pod in pods:
        spec = msgspec.structs.replace(pod.spec, node_name=name)
        info = info.with_pod(PodInfo(msgspec.structs.replace(pod, spec=spec)))
    cluster.handle.snapshot.replace(info)
    return info


async def served(cluster: Bench, name: str, node_name: str = "worker", **resources: int) -> Pod:
    """A Pod whose devices were written, as it is then."""
    attempt = await cluster.start(asking(name, **(resources or {"gpu": 1})))
    assert node_name in cluster.feasible(attempt)
    assert (await cluster.take(attempt, node_name)).is_success
    return await cluster.user.get(PODS, name, TEAM)


@pytest.mark.behaviour("XR-12", "XR-38")
async def test_a_pod_with_devices_takes_nothing_of_a_device_plugin_beside_them() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER)
        pod = await served(cluster, "one")
        assert on_node(cluster, "worker", pod).requested.scalars == {}
        await cluster.user.delete(NODES, "worker", "")
        await until(lambda: cluster.handle.informers.informer(NODES).lister.get("worker") is None)
        await cluster.create(node_with("worker", gpu=1))
        on_node(cluster, "worker", pod)
        # Both offer it: each counts its own.
        assert insufficient(cluster, await cluster.start(asking("two", gpu=1)), "worker") == ""
        await cluster.user.delete(RESOURCE_SLICES, "worker-gpu.example.com", "")
        await until(lambda: not cluster.handle.informers.informer(RESOURCE_SLICES).lister.list())
        # The driver is gone, and the plugin's device may be the one that is still in use.
        assert insufficient(cluster, await cluster.start(asking("three", gpu=1)), "worker") == f"Insufficient {GPU}"


@pytest.mark.behaviour("XR-38", "XR-39")
async def test_devices_of_a_plugin_that_is_gone_are_held_back() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, claim("mine"))
        old = await cluster.start(asking("old", gpu=1))
        on_node(cluster, "worker", old.pod)
        assert cluster.filter(await cluster.start(asking("two", gpu=2)))["worker"].message == NO_FIT
        attempt = await cluster.start(asking("one", gpu=1))
        assert cluster.feasible(attempt) == ["worker"]
        assert (await cluster.take(attempt, "worker")).is_success
        [extended_claim] = await extended_claims(cluster)
        assert len(devices(extended_claim)) == 1
        # Claims are kept from it like extended resources.
        assert cluster.filter(await cluster.start(asking("claims", "mine")))["worker"].message == NO_FIT
        info = cluster.handle.snapshot.get("worker")
        assert info is not None
        cluster.handle.snapshot.replace(info.without_pod(old.pod.metadata.uid or ""))
        assert cluster.feasible(await cluster.start(asking("later", "mine"))) == ["worker"]


@pytest.mark.behaviour("XR-39")
async def test_a_pod_is_woken_when_devices_of_a_plugin_are_freed() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER)
        waiting = (await cluster.start(asking("waiting", gpu=1))).pod
        with_devices = await served(cluster, "one")
        spec = msgspec.structs.replace(with_devices.spec, node_name="worker")
        with_devices = msgspec.structs.replace(with_devices, spec=spec)
        [(hint, keys)] = [
            (item.hint, item.keys)
            for item in cluster.plugin.events_to_register()
            if item.event.resource == "AssignedPod" and item.event.action is Action.DELETE
        ]
        assert hint is not None
        assert keys is not None
        assert (hint(waiting, waiting, None), keys.of_change(waiting, None)) == (Hint.QUEUE, None)
        assert (hint(waiting, with_devices, None), keys.of_change(with_devices, None)) == (Hint.SKIP, ())


# --- Scores. ---


@pytest.mark.behaviour("XR-31")
@pytest.mark.parametrize(("strategy", "best"), [("LeastAllocated", "free"), ("MostAllocated", "busy")])
async def test_devices_count_as_capacity_in_scores(strategy: str, best: str) -> None:
    async with bench() as cluster:
        await cluster.create(named_class())
        for name in ("free", "busy"):
            await cluster.create(node(name), resource_slice(name, "gpu-0", "gpu-1", "gpu-2"))
        await served(cluster, "one", "busy")
        arguments = {"scoringStrategy": {"type": strategy, "resources": [{"name": GPU}]}}
        fit = NodeResourcesFit(arguments, cluster.handle)
        attempt = await cluster.start(asking("two", gpu=1))
        nodes = [info for info in cluster.handle.snapshot if info is not None]
        scores = dict(zip([info.name for info in nodes], fit.score_all(attempt.state, attempt.pod, nodes), strict=True))
        least = {"free": 66, "busy": 33}
        assert scores == (least if strategy == "LeastAllocated" else {"free": 33, "busy": 66})
        assert max(scores, key=lambda name: scores[name]) == best
        balanced = BalancedAllocation({"resources": [{"name": GPU}, {"name": "cpu"}]}, cluster.handle)
        assert balanced.score_all(attempt.state, attempt.pod, nodes) != []
        # Devices come into use without a change of the node.
        assert (fit.score_cache_key(attempt.state), balanced.score_cache_key(attempt.state)) == (None, None)


# --- Reserve and PreBind. ---


async def extended_claims(cluster: Bench) -> list[ResourceClaim]:
    found = await cluster.user.list(RESOURCE_CLAIMS, TEAM)
    return [item for item in found.items if EXTENDED_RESOURCE_ANNOTATION in item.metadata.annotations]


def devices(extended_claim: ResourceClaim) -> list[str]:
    allocation = extended_claim.status.allocation
    return [] if allocation is None else [result.device for result in allocation.devices.results]


@pytest.mark.behaviour("XR-05", "XR-06", "XR-07", "XR-26", "XR-27", "XR-30")
async def test_the_claim_is_made_and_named_before_the_pod_is_bound() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER)
        attempt = await cluster.start(asking(gpu=2))
        assert cluster.feasible(attempt) == ["worker"]
        assert cluster.plugin.reserve(attempt.state, attempt.pod, "worker").is_success
        assert cluster.writes() == []
        assert cluster.filter(await cluster.start(asking("other", gpu=1)))["worker"].message == NO_FIT
        assert (await cluster.plugin.pre_bind(attempt.state, attempt.pod, "worker")).is_success
        [extended_claim] = await extended_claims(cluster)
        name = extended_claim.metadata.name or ""
        assert cluster.writes() == ["create ", f"update {name}/status", "patch pod/status"]
        assert name.startswith("pod-extended-resources-")
        assert extended_claim.metadata.annotations == {EXTENDED_RESOURCE_ANNOTATION: "true"}
        assert extended_claim.metadata.finalizers == (FINALIZER,)
        [owner] = extended_claim.metadata.owner_references
        assert (owner.uid, owner.controller) == (attempt.pod.metadata.uid, True)
        assert sorted(devices(extended_claim)) == ["gpu-0", "gpu-1"]
        assert [user.uid for user in extended_claim.status.reserved_for] == [attempt.pod.metadata.uid]
        live = await cluster.user.get(PODS, "pod", TEAM)
        assert msgspec.to_builtins(live.status.extended_resource_claim_status) == {
            "resourceClaimName": name,
            "requestMappings": ({"containerName": "c", "resourceName": GPU, "requestName": "container-0-request-0"},),
        }
        assert attempt.state.pod_version == live.metadata.resource_version
        assert creates(cluster) == {"success": 1.0}


def creates(cluster: Bench) -> dict[str, float]:
    text = cluster.handle.metrics.exposition().decode()
    prefix = "dynamic_resource_allocation_resourceclaim_creates_total"
    shared = [line for line in text.splitlines() if line.startswith(f"{prefix}{{")]
    assert all('admin_access="false",owner_api_group="",owner_api_kind="Pod"' in line for line in shared)
    lines = [line for line in text.splitlines() if line.startswith("scheduler_resourceclaim_creates_total{")]
    return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines}


@pytest.mark.behaviour("XR-18", "XR-40")
async def test_a_pod_on_a_node_with_a_device_plugin_has_no_claim() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, node_with("plugin", gpu=1))
        attempt = await cluster.start(asking(gpu=1))
        assert sorted(cluster.feasible(attempt)) == ["plugin", "worker"]
        assert attempt.state.device_resources is not None
        assert attempt.state.device_resources("plugin") == frozenset()
        assert attempt.state.device_resources("worker") == {GPU}
        assert (await cluster.take(attempt, "plugin")).is_success
        assert cluster.writes() == []


@pytest.mark.behaviour("XR-23")
async def test_claims_and_extended_resources_are_written_together() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, claim())
        attempt = await cluster.start(asking("pod", "claim", gpu=1))
        assert cluster.feasible(attempt) == ["worker"]
        assert (await cluster.take(attempt, "worker")).is_success
        [extended_claim] = await extended_claims(cluster)
        mine = await cluster.claim()
        assert sorted(devices(extended_claim) + devices(mine)) == ["gpu-0", "gpu-1"]


# --- What goes wrong. ---


def failing(verb: str, plural: str, subresource: str = "", error: APIError | None = None) -> Callable[[Call], Any]:
    def fail(call: Call) -> Exception | None:
        same = call.resource is not None and (call.verb, call.resource.plural, call.subresource) == (
            verb, plural, subresource,
        )  # fmt: skip
        return (error or BadRequestError("no")) if same else None

    return fail


@pytest.mark.behaviour("XR-28", "XR-30")
@pytest.mark.parametrize(
    ("fail", "created"),
    [
        pytest.param(failing("create", "resourceclaims"), False, id="extended-resource-name-claim-creation-failure"),
        pytest.param(
            failing("create", "resourceclaims", error=ServiceUnavailableError("?")), False, id="creation-unanswered"
        ),
        pytest.param(failing("update", "resourceclaims", "status"), True, id="claim-status-failure"),
        pytest.param(
            failing("update", "resourceclaims", "status", ServiceUnavailableError("?")), True, id="status-unanswered"
        ),
        pytest.param(failing("patch", "pods", "status"), True, id="extended-resource-name-fail-patch"),
    ],
)
async def test_every_failing_write_is_undone(fail: Callable[[Call], Any], created: bool) -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER)
        attempt = await cluster.start(asking(gpu=2))
        assert cluster.feasible(attempt) == ["worker"]
        cluster.transport.fail = fail
        status = await cluster.take(attempt, "worker")
        assert status.code is Code.ERROR
        assert len(await extended_claims(cluster)) == created
        cluster.transport.fail = lambda _: None
        await cluster.undo(attempt, "worker")
        assert await extended_claims(cluster) == []
        assert creates(cluster) == {"success" if created else "failure": 1.0}
        live = await cluster.user.get(PODS, "pod", TEAM)
        assert live.status.extended_resource_claim_status is None
        await freed(cluster)
        # Undoing twice is undoing once.
        await cluster.undo(attempt, "worker")
        again = cluster.attempt(live)
        assert cluster.feasible(again) == ["worker"]
        assert (await cluster.take(again, "worker")).is_success


async def freed(cluster: Bench) -> None:
    """Until no device counts as used."""
    allocations = cluster.plugin._tracker.allocations
    await until(lambda: not allocations.keys_in_use("gpu.example.com/worker"))


@pytest.mark.behaviour("XR-26", "XR-28")
async def test_a_claim_that_was_never_written_is_forgotten() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER)
        attempt = await cluster.start(asking(gpu=2))
        assert cluster.feasible(attempt) == ["worker"]
        cluster.plugin.reserve(attempt.state, attempt.pod, "worker")
        cluster.notified.clear()
        await cluster.undo(attempt, "worker")
        assert cluster.writes() == []
        assert [event.label for event, _old, _new in cluster.notified] == ["ResourceClaimAllocationAbandoned"]
        assert cluster.feasible(await cluster.start(asking("other", gpu=2))) == ["worker"]


@pytest.mark.behaviour("XR-28")
async def test_bind_failure() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER)
        attempt = await cluster.start(asking(gpu=2))
        cluster.feasible(attempt)
        assert (await cluster.take(attempt, "worker")).is_success
        await cluster.undo(attempt, "worker")
        assert await extended_claims(cluster) == []
        assert (await cluster.user.get(PODS, "pod", TEAM)).status.extended_resource_claim_status is None
        # A binding that is still on its way finds another version of the Pod.
        binding = {
            "metadata": {"name": "pod", "resourceVersion": attempt.state.pod_version},
            "target": {"kind": "Node", "name": "worker"},
        }
        with pytest.raises(ConflictError, match="Precondition failed: ResourceVersion"):
            await cluster.user.create_subresource(PODS, "pod", TEAM, "binding", binding)


@pytest.mark.behaviour("XR-28")
@pytest.mark.parametrize("named", [True, False])
async def test_a_pod_that_got_its_node_after_all_keeps_the_claim_it_names(named: bool) -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER)
        attempt = await cluster.start(asking(gpu=1))
        cluster.feasible(attempt)
        if not named:
            cluster.transport.fail = failing("patch", "pods", "status")
        assert (await cluster.take(attempt, "worker")).is_success is named
        cluster.transport.fail = lambda _: None
        binding = {"metadata": {"name": "pod"}, "target": {"kind": "Node", "name": "worker"}}
        await cluster.user.create_subresource(PODS, "pod", TEAM, "binding", binding)
        await cluster.undo(attempt, "worker")
        assert len(await extended_claims(cluster)) == named


@pytest.mark.behaviour("XR-06", "XR-28")
async def test_a_claim_whose_creation_was_not_observed_is_used() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER)
        attempt = await cluster.start(asking(gpu=1))
        cluster.feasible(attempt)
        lost: list[str] = []

        async def lose(call: Call) -> Document:
            answer = await send(call)
            if call.verb == "create" and not lost:
                lost.append(answer["metadata"]["name"])
                raise ServiceUnavailableError("lost")
            return answer

        send = cluster.transport.inner.send
        cluster.transport.inner.send = lose  # type: ignore[method-assign]
        assert (await cluster.take(attempt, "worker")).is_success
        assert [extended_claim.metadata.name for extended_claim in await extended_claims(cluster)] == lost


@pytest.mark.behaviour("XR-05")
async def test_a_name_that_is_somebody_elses_is_not_taken() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER)
        attempt = await cluster.start(asking(gpu=1))
        await cluster.create(claim(claim_name(attempt.pod)))
        cluster.feasible(attempt)
        assert (await cluster.take(attempt, "worker")).is_success
        [extended_claim] = await extended_claims(cluster)
        assert extended_claim.metadata.name == claim_name(attempt.pod, 1)


# --- A claim of an earlier attempt. ---


async def abandoned(cluster: Bench, **resources: int) -> Pod:
    """A Pod whose scheduler ended between PreBind and Bind."""
    attempt = await cluster.start(asking("pod", **(resources or {"gpu": 1})))
    cluster.feasible(attempt)
    assert (await cluster.take(attempt, "worker")).is_success
    cluster.transport.calls.clear()
    return await cluster.user.get(PODS, "pod", TEAM)


async def _plugin_installed(cluster: Bench) -> None:
    current = await cluster.user.get(NODES, "worker", "")
    status = msgspec.structs.replace(current.status, allocatable={**current.status.allocatable, GPU: "2"})
    changed = await cluster.user.update_status(NODES, msgspec.structs.replace(current, status=status))
    await cluster.seen(NODES, changed)


async def _class_gone(cluster: Bench) -> None:
    await cluster.user.delete(DEVICE_CLASSES, "gpu", "")
    await until(lambda: not cluster.handle.informers.informer(DEVICE_CLASSES).lister.list())


async def _claim_going(cluster: Bench) -> None:
    [extended_claim] = await extended_claims(cluster)
    await cluster.user.delete(RESOURCE_CLAIMS, extended_claim.metadata.name or "", TEAM)
    await cluster.seen(RESOURCE_CLAIMS, (await extended_claims(cluster))[0])


async def _device_tainted(cluster: Bench) -> None:
    await cluster.create(
        {
            "apiVersion": "resource.k8s.io/v1beta2",
            "kind": "DeviceTaintRule",
            "metadata": {"name": "broken"},
            "spec": {
                "deviceSelector": {"driver": "test.example.com"},
                "taint": {"key": "broken", "effect": "NoSchedule"},
            },
        }
    )


async def _second_claim(cluster: Bench) -> None:
    [first] = await extended_claims(cluster)
    metadata = msgspec.structs.replace(first.metadata, name="second", uid=None, resource_version=None)
    second = msgspec.structs.replace(first, metadata=metadata, status=type(first.status)())
    await cluster.seen(RESOURCE_CLAIMS, await cluster.user.create(RESOURCE_CLAIMS, second))


async def _nothing(cluster: Bench) -> None:
    pass


LEFTOVERS: Mapping[str, Callable[[Bench], Any]] = {
    "nothing has changed": _nothing,
    "its device has a taint": _device_tainted,
    "a device plugin was installed": _plugin_installed,
    "the class is gone": _class_gone,
    "the claim is being deleted": _claim_going,
    "there is a second one": _second_claim,
}


@pytest.mark.behaviour("XR-15", "XR-16", "XR-29", "PE-76")
@pytest.mark.parametrize("change", LEFTOVERS.values(), ids=LEFTOVERS)
async def test_what_an_interrupted_attempt_has_left_is_deleted_and_the_pod_decided_anew(
    change: Callable[[Bench], Any],
) -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER)
        pod = await abandoned(cluster)
        await change(cluster)
        attempt = cluster.attempt(pod)
        statuses = cluster.filter(attempt)
        assert {name: status.message for name, status in statuses.items()} == {"": CANNOT_SCHEDULE}
        _, status = await cluster.plugin.post_filter(attempt.state, attempt.pod, statuses)
        assert (status.code, status.message) == (UNRESOLVABLE, "deletion of ResourceClaim completed")
        assert await extended_claims(cluster) == []
        live = await cluster.user.get(PODS, "pod", TEAM)
        assert live.status.extended_resource_claim_status is None
        await freed(cluster)


@pytest.mark.behaviour("XR-16")
async def test_a_claim_that_somebody_else_uses_is_not_deleted() -> None:
    """Its annotation and owner may be forged."""
    async with bench() as cluster:
        await cluster.create(*WORKER)
        pod = await abandoned(cluster)
        [extended_claim] = await extended_claims(cluster)
        other = ResourceClaimConsumerReference(resource="pods", name="other", uid="uid-of-other")
        status = msgspec.structs.replace(extended_claim.status, reserved_for=(other,))
        used = await cluster.user.update_status(RESOURCE_CLAIMS, msgspec.structs.replace(extended_claim, status=status))
        await cluster.seen(RESOURCE_CLAIMS, used)
        attempt = cluster.attempt(pod)
        statuses = cluster.filter(attempt)
        _, rejection = await cluster.plugin.post_filter(attempt.state, attempt.pod, statuses)
        text = f"claim {TEAM}/{used.metadata.name} is annotated as the pod's, and others use it"
        assert (rejection.code, rejection.message) == (UNRESOLVABLE, text)
        told = f"annotated as the claim of pod {TEAM}/pod, which does not use it; it is not deleted, since others do"
        assert cluster.recorded.claim_events == [(used.metadata.name, NOT_THE_PODS, told)]
        [after] = await extended_claims(cluster)
        assert (after.metadata.finalizers, after.status) == (used.metadata.finalizers, used.status)


@pytest.mark.behaviour("XR-16")
@pytest.mark.parametrize(
    "fail",
    [failing("patch", "pods", "status"), failing("update", "resourceclaims"), failing("delete", "resourceclaims")],
    ids=["pod status", "finalizer", "deletion"],
)
async def test_a_deletion_that_fails_is_an_error(fail: Callable[[Call], Any]) -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER)
        pod = await abandoned(cluster)
        await _plugin_installed(cluster)
        attempt = cluster.attempt(pod)
        statuses = cluster.filter(attempt)
        cluster.transport.fail = fail
        _, status = await cluster.plugin.post_filter(attempt.state, attempt.pod, statuses)
        assert status.code is Code.ERROR
        cluster.transport.fail = lambda _: None
        _, status = await cluster.plugin.post_filter(attempt.state, attempt.pod, statuses)
        assert status.message == "deletion of ResourceClaim completed"


@pytest.mark.behaviour("XR-16")
async def test_a_status_that_was_left_behind_is_reset_before_the_pod_is_bound() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER)
        pod = await abandoned(cluster)
        [extended_claim] = await extended_claims(cluster)
        cleared = msgspec.structs.replace(
            extended_claim, metadata=msgspec.structs.replace(extended_claim.metadata, finalizers=())
        )
        await cluster.user.update(RESOURCE_CLAIMS, cleared)
        await cluster.user.delete(RESOURCE_CLAIMS, extended_claim.metadata.name or "", TEAM, DeleteOptions())
        await freed(cluster)
        await _class_gone(cluster)
        await _plugin_installed(cluster)
        attempt = cluster.attempt(pod)
        assert cluster.filter(attempt)[""].code is Code.SKIP
        assert (await cluster.take(attempt, "worker")).is_success
        live = await cluster.user.get(PODS, "pod", TEAM)
        assert live.status.extended_resource_claim_status is None
        assert attempt.state.pod_version == live.metadata.resource_version


# --- Waking, and telling. ---


def as_class(document: Document) -> DeviceClass:
    return msgspec.convert(document, DeviceClass)


@pytest.mark.behaviour("XR-13")
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(None, named_class(), Hint.QUEUE, id="a class with the name"),
        pytest.param(None, named_class("other", "example.com/other"), Hint.SKIP, id="another name"),
        pytest.param(named_class("gpu", None), named_class(), Hint.QUEUE, id="a class gets the name"),
        pytest.param(named_class("late"), None, Hint.QUEUE, id="the winner goes, another class has the name"),
    ],
)
async def test_which_classes_wake_a_pod(old: Document | None, new: Document | None, expected: Hint) -> None:
    async with bench() as cluster:
        await cluster.create(named_class())
        pod = (await cluster.start(asking(gpu=1))).pod
        change = (as_class(old) if old else None, as_class(new) if new else None)
        fit = NodeResourcesFit({}, cluster.handle)
        for plugin in (cluster.plugin, fit):
            [hint] = [i.hint for i in plugin.events_to_register() if i.event.resource == "DeviceClass"]
            assert hint is not None
            assert hint(pod, *change) is expected, plugin.name


@pytest.mark.behaviour("XR-13")
async def test_a_class_without_devices_requeues_no_pod_rejected_by_fit() -> None:
    async with bench() as cluster:
        pod = (await cluster.start(asking(gpu=1))).pod
        fit = NodeResourcesFit({}, cluster.handle)
        [hint] = [item.hint for item in fit.events_to_register() if item.event.resource == "DeviceClass"]
        assert hint is not None
        assert hint(pod, as_class(named_class()), None) is Hint.SKIP


@pytest.mark.behaviour("XR-39")
async def test_a_plugin_that_goes_wakes_a_pod_that_devices_can_serve() -> None:
    async with bench() as cluster:
        await cluster.create(named_class())
        pod = (await cluster.start(asking(gpu=1))).pod
        fit = NodeResourcesFit({}, cluster.handle)
        [hint] = [item.hint for item in fit.events_to_register() if item.event.resource == "Node"]
        assert hint is not None
        full, gone = (msgspec.convert(node_with("worker", gpu=count), Node) for count in (2, 0))
        assert hint(pod, full, gone) is Hint.QUEUE
        assert hint(pod, gone, gone) is Hint.SKIP


@pytest.mark.behaviour("XR-11")
async def test_a_node_that_offers_a_resource_twice_is_reported_once() -> None:
    async with bench() as cluster:
        events = cluster.node_events
        await cluster.create(named_class(), node_with("worker", gpu=4), node_with("other", gpu=1))
        assert events == []
        await cluster.create(resource_slice("worker", "gpu-0", "gpu-1"))
        message = (
            f"{GPU} is offered by a device plugin (4) and by devices of class gpu (2); Pods get the device plugin's"
        )
        assert events == [("worker", "ExtendedResourceOfferedTwice", message)]
        await _plugin_changed(cluster, 4)
        assert len(events) == 1
        await _plugin_changed(cluster, 0)
        await _plugin_changed(cluster, 3)
        assert len(events) == 2
        attempt = await cluster.start(asking(gpu=1))
        assert "worker" in cluster.feasible(attempt)
        assert (await cluster.take(attempt, "worker")).is_success
        assert cluster.writes() == []


async def _plugin_changed(cluster: Bench, count: int) -> None:
    current = await cluster.user.get(NODES, "worker", "")
    status = msgspec.structs.replace(current.status, allocatable={**current.status.allocatable, GPU: str(count)})
    await cluster.seen(NODES, await cluster.user.update_status(NODES, msgspec.structs.replace(current, status=status)))


@pytest.mark.behaviour("XR-16")
async def test_a_pod_is_woken_when_its_unusable_claim_is_gone() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER)
        pod = await abandoned(cluster)
        [extended_claim] = await extended_claims(cluster)
        empty = msgspec.structs.replace(extended_claim, status=type(extended_claim.status)())
        deleted = ClusterEvent("ResourceClaim", Action.DELETE)
        [item] = [each for each in cluster.plugin.events_to_register() if each.event.covers(deleted)]
        assert item.hint is not None
        assert item.keys is not None
        assert item.hint(pod, empty, None) is Hint.QUEUE
        assert set(item.keys.of_pod(pod)) & set(item.keys.of_change(empty, None) or ())
        other = (await cluster.start(asking("other", gpu=1))).pod
        assert item.hint(other, empty, None) is Hint.SKIP


@pytest.mark.behaviour("N-147")
async def test_a_claim_that_is_gone_already_is_no_failure() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER)
        pod = await abandoned(cluster)
        [extended_claim] = await extended_claims(cluster)
        removed = cluster.plugin._devices.extended_claims.remove
        assert await removed(extended_claim, pod)
        assert await extended_claims(cluster) == []
        assert await removed(extended_claim, pod)


@pytest.mark.behaviour("N-147")
async def test_an_owner_that_is_not_the_controller_has_no_extended_resource_claim() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER)
        pod = await abandoned(cluster)
        [extended_claim] = await extended_claims(cluster)
        assert is_extended_resource_claim_of(extended_claim, pod)
        [owner] = extended_claim.metadata.owner_references
        other = msgspec.structs.replace(
            extended_claim.metadata, owner_references=(msgspec.structs.replace(owner, controller=None),)
        )
        assert not is_extended_resource_claim_of(msgspec.structs.replace(extended_claim, metadata=other), pod)
