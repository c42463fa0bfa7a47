"""The plugin's extension points; names of upstream's TestPlugin rows are kept where the case is the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec
import pytest

from dray.api.document import Document
from dray.api.errors import APIError, ConflictError, ServiceUnavailableError
from dray.api.pod_claims import FINALIZER
from dray.apiserver.device_ledger import DeviceLedger
from dray.client.resources import PODS, RESOURCE_CLAIMS
from dray.client.rest import Call
from dray.framework.status import Code
from dray.scheduler.plugins.dynamic_resources.device_filter import NAME
from dray.scheduler.plugins.dynamic_resources.group_claims import DEALLOCATED
from dray.scheduler.plugins.dynamic_resources.preemption_step import DELETED
from tests.conformance.scheduler.dynamic_resources.bench import (
    RULES,
    TEAM,
    Bench,
    allocated,
    alternatives,
    bench,
    claim,
    device,
    device_class,
    node,
    pod,
    request,
    resource_slice,
    until,
)

UNRESOLVABLE = Code.UNSCHEDULABLE_AND_UNRESOLVABLE
WORKER = (device_class(), node("worker"), resource_slice("worker", "gpu-0"))
TEMPLATE_ENTRY = {"name": "gpu", "resourceClaimTemplateName": "template"}


def why(reasons: tuple[str, ...]) -> str:
    [reason] = reasons
    return reason


# --- PreEnqueue, PreFilter and Filter: one row each. ---


@dataclass
class Case:
    """What there is, the Pod, and the answers: of PreEnqueue, of PreFilter, of each node."""

    given: tuple[Document, ...]
    pod: Document
    pre_enqueue: str = ""
    pre_filter: tuple[Code, str] = (Code.SUCCESS, "")
    nodes: dict[str, str] = field(default_factory=dict)
    post_filter: str = ""
    gates: str = ""


CASES: dict[str, tuple[Case, tuple[str, ...]]] = {
    "empty": (Case(WORKER, pod("pod"), pre_filter=(Code.SKIP, "")), ("SP-92",)),
    "with-resources": (Case((*WORKER, claim()), pod("pod", "claim"), nodes={"worker": ""}), ("SP-95",)),
    "missing-claim": (
        Case(WORKER, pod("pod", entries=[TEMPLATE_ENTRY]), pre_enqueue='pod "team/pod": ResourceClaim not created yet'),
        ("SP-89",),
    ),
    "missing-user-claim": (
        Case(WORKER, pod("pod", "absent"), pre_enqueue='could not find claim "team/absent"'),
        ("SP-89",),
    ),
    "no-resources": (
        Case(
            (device_class(), node("worker"), claim()),
            pod("pod", "claim"),
            nodes={"worker": "cannot allocate all claims"},
        ),
        ("SP-95", "SP-98", "N-117"),
    ),
    "exhausted-resources": (
        Case(
            (*WORKER, claim(), allocated("other", "worker", "gpu-0")),
            pod("pod", "claim"),
            nodes={"worker": "cannot allocate all claims"},
        ),
        ("SP-95", "SP-104"),
    ),
    "good-topology": (
        Case((*WORKER, allocated("claim", "worker", "gpu-0")), pod("pod", "claim"), nodes={"worker": ""}),
        ("SP-94",),
    ),
    "wrong-topology": (
        Case(
            (*WORKER, allocated("claim", "elsewhere", "gpu-0")),
            pod("pod", "claim"),
            nodes={"worker": "resourceclaim not available on the node"},
            post_filter="deallocation of ResourceClaim completed",
        ),
        ("SP-94", "SP-98"),
    ),
    # Devices are searched for before it counts where the other claim is.
    "wrong-topology-and-exhausted-resources": (
        Case(
            (*WORKER, claim(), allocated("claim-2", "elsewhere", "gpu-0"), allocated("other", "worker", "gpu-0")),
            pod("pod", "claim", "claim-2"),
            nodes={"worker": "cannot allocate all claims"},
        ),
        ("SP-94", "SP-95"),
    ),
    "missing-class": (
        Case(
            (*WORKER, claim("claim", request("one", "absent"))),
            pod("pod", "claim"),
            pre_filter=(UNRESOLVABLE, "request one: device class absent does not exist"),
        ),
        ("SP-93",),
    ),
    "claim-with-prioritized-list-unknown-device-class": (
        Case(
            (*WORKER, claim("claim", alternatives("gpu", "gpu", "absent"))),
            pod("pod", "claim"),
            pre_filter=(UNRESOLVABLE, "request gpu/sub-1: device class absent does not exist"),
        ),
        ("PL-20", "SP-93"),
    ),
    "claim-with-prioritized-list": (
        Case((*WORKER, claim("claim", alternatives("gpu", "gpu"))), pod("pod", "claim"), nodes={"worker": ""}),
        ("PL-20",),
    ),
    "two-entries-one-claim": (
        Case((*WORKER, claim()), pod("pod", "claim", "claim"), nodes={"worker": ""}),
        ("SP-95",),
    ),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=name, marks=pytest.mark.behaviour(*ids)) for name, (case, ids) in CASES.items()]
)
async def test_finding_nodes(case: Case) -> None:
    async with bench(case.gates) as cluster:
        await cluster.create(*case.given)
        attempt = await cluster.start(case.pod)
        status = cluster.plugin.pre_enqueue(attempt.pod)
        assert status.message == case.pre_enqueue
        if case.pre_enqueue:
            assert status.code is UNRESOLVABLE
            return
        statuses = cluster.filter(attempt)
        assert {name: status.message for name, status in statuses.items() if name} == case.nodes
        first = statuses.get("")
        assert (first.code if first else Code.SUCCESS, first.message if first else "") == case.pre_filter
        assert all(s.code is UNRESOLVABLE for name, s in statuses.items() if name and not s.is_success)
        if case.pre_filter[0] is not Code.SKIP and all(not status.is_success for status in statuses.values()):
            _, status = await cluster.plugin.post_filter(attempt.state, attempt.pod, statuses)
            # What was freed may suffice: the chain ends, and nothing is preempted.
            freed = case.post_filter in (DEALLOCATED, DELETED)
            code = Code.UNSCHEDULABLE_AND_UNRESOLVABLE if freed else Code.UNSCHEDULABLE
            assert (status.code, status.message) == (code, case.post_filter)


@pytest.mark.behaviour("SP-89")
async def test_claims_that_are_going_or_somebody_elses_keep_a_pod_out() -> None:
    async with bench() as cluster:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": "someone", "controller": True}
        await cluster.create(
            *WORKER, claim("going", finalizers=["example.com/hold"]), claim("other", ownerReferences=[owner])
        )
        await cluster.user.delete(RESOURCE_CLAIMS, "going", TEAM)
        await cluster.seen(RESOURCE_CLAIMS, await cluster.claim("going"))
        attempt = await cluster.start(pod("pod", "going"))
        assert cluster.plugin.pre_enqueue(attempt.pod).message == 'resourceclaim "going" is being deleted'
        attempt = await cluster.start(pod("generated", entries=[TEMPLATE_ENTRY]))
        status = msgspec.convert(
            {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "other"}]}, type(attempt.pod.status)
        )
        named = msgspec.structs.replace(attempt.pod, status=status)
        assert cluster.plugin.pre_enqueue(named).message == (
            "ResourceClaim team/other was not created for pod team/generated (pod is not owner)"
        )


@pytest.mark.behaviour("GW-18")
async def test_a_pod_without_its_group_waits_for_the_group_not_for_claims() -> None:
    gates = "GenericWorkload=true"
    async with bench(gates, gates) as cluster:
        given = pod("pod", entries=[TEMPLATE_ENTRY])
        given["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
        attempt = await cluster.start(given)
        # GangScheduling keeps it out.
        assert cluster.plugin.pre_enqueue(attempt.pod).is_success
        alone = await cluster.start(pod("alone", entries=[TEMPLATE_ENTRY]))
        assert cluster.plugin.pre_enqueue(alone.pod).message == 'pod "team/alone": ResourceClaim not created yet'


@pytest.mark.behaviour("SP-104")
async def test_structured_ignore_allocated_admin_access() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, claim())
        administrator = allocated("admin", "worker", "gpu-0", uid="admin-uid")
        administrator["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
        cluster.plugin._tracker.changed(None, msgspec.convert(administrator, RESOURCE_CLAIMS.type))
        assert cluster.feasible(await cluster.start(pod("pod", "claim"))) == ["worker"]


@pytest.mark.behaviour("SP-96")
async def test_a_selector_that_breaks_on_one_node_breaks_the_attempt() -> None:
    async with bench() as cluster:
        await cluster.create(
            device_class("gpu", 'device.attributes["gpu.example.com"].model == "a"'),
            node("good"),
            node("bad"),
            resource_slice("good", device("gpu-0", model="a")),
            resource_slice("bad", "gpu-0"),
            claim(),
        )
        statuses = cluster.filter(await cluster.start(pod("pod", "claim")))
        assert statuses["good"].is_success
        assert statuses["bad"].code is Code.ERROR
        assert statuses["bad"].message.startswith(
            "class gpu: selector #0 on device gpu.example.com/bad/gpu-0: CEL runtime error: "
        )


OPTIONAL = "DRAOptionalNodeOperations=true"


def network_attached(*devices: str) -> Document:
    made = resource_slice("fabric", *devices)
    del made["spec"]["nodeName"]
    made["spec"] |= {"allNodes": True, "skipNodeOperations": ["*"]}
    return made


def declaring(name: str) -> Document:
    made = node(name)
    made["status"]["declaredFeatures"] = ["DRAOptionalNodeOperations"]
    return made


@pytest.mark.behaviour("N-107", "N-106")
async def test_devices_that_skip_operations_need_a_node_that_declares_the_feature() -> None:
    async with bench(OPTIONAL, OPTIONAL) as cluster:
        await cluster.create(device_class(), declaring("new"), node("old"), network_attached("gpu-0"), claim())
        attempt = await cluster.start(pod("pod", "claim"))
        assert cluster.feasible(attempt) == ["new"]
        assert (await cluster.take(attempt, "new")).is_success
        allocation = (await cluster.claim()).status.allocation
        assert allocation is not None
        assert allocation.devices.results[0].skip_node_operations == ("*",)
        # The devices can be used from every node, the claim cannot.
        second = await cluster.start(pod("second", "claim"))
        statuses = cluster.filter(second)
        assert statuses["new"].is_success
        assert statuses["old"].message == "resourceclaim not available on the node"


@pytest.mark.behaviour("N-107")
async def test_a_claim_whose_nodes_lack_the_feature_is_deallocated() -> None:
    async with bench(OPTIONAL, OPTIONAL) as cluster:
        made = allocated("claim", "old", "gpu-0")
        made["status"]["allocation"]["devices"]["results"][0]["skipNodeOperations"] = ["*"]
        del made["status"]["allocation"]["nodeSelector"]
        await cluster.create(device_class(), node("old"), made)
        attempt = await cluster.start(pod("pod", "claim"))
        statuses = cluster.filter(attempt)
        assert statuses["old"].message == "resourceclaim not available on the node"
        _, status = await cluster.plugin.post_filter(attempt.state, attempt.pod, statuses)
        assert status.message == "deallocation of ResourceClaim completed"


@pytest.mark.behaviour("SP-97", "N-146")
@pytest.mark.parametrize(
    ("gates", "limit", "expected"),
    [
        pytest.param("", "1us", Code.ERROR, id="timeout"),
        pytest.param("DRASchedulerFilterTimeout=false", "1us", Code.SUCCESS, id="timeout_disabled"),
        pytest.param("", "0s", Code.SUCCESS, id="timeout_zero"),
    ],
)
async def test_a_search_may_take_only_so_long(gates: str, limit: str, expected: Code) -> None:
    async with bench(gates, filterTimeout=limit) as cluster:
        await cluster.create(*WORKER, claim())
        status = cluster.filter(await cluster.start(pod("pod", "claim")))["worker"]
        assert status.code is expected, status
        if expected is Code.ERROR:
            assert status.message.startswith("node worker: timed out trying to allocate devices: ")


# --- PostFilter. ---


@pytest.mark.behaviour("SP-98", "SP-106", "PE-76")
async def test_one_unused_claim_is_freed_at_a_time() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, allocated("one", "elsewhere", "gpu-0"), allocated("two", "elsewhere", "gpu-1"))
        attempt = await cluster.start(pod("pod", "one", "two"))
        statuses = cluster.filter(attempt)
        _, status = await cluster.plugin.post_filter(attempt.state, attempt.pod, statuses)
        assert status.message == "deallocation of ResourceClaim completed"
        # Ends PostFilter: nobody is preempted in this attempt.
        assert status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
        held = [name for name in ("one", "two") if (await cluster.claim(name)).status.allocation is not None]
        assert len(held) == 1
        assert len(cluster.writes()) == 1


@pytest.mark.behaviour("SP-98", "N-117")
@pytest.mark.parametrize("mine", [True, False])
async def test_a_claim_is_freed_only_if_no_other_pod_uses_it(mine: bool) -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, allocated("claim", "elsewhere", "gpu-0"))
        attempt = await cluster.start(pod("pod", "claim"))
        other = await cluster.start(pod("other", "claim"))
        await cluster.reserve_for("claim", attempt.pod if mine else other.pod)
        statuses = cluster.filter(attempt)
        _, status = await cluster.plugin.post_filter(attempt.state, attempt.pod, statuses)
        assert status.message == ("deallocation of ResourceClaim completed" if mine else "")
        current = await cluster.claim()
        assert (current.status.allocation is None) == mine
        assert bool(current.status.reserved_for) != mine


@pytest.mark.behaviour("SP-98")
async def test_a_claim_of_a_pod_that_got_its_node_after_all_is_not_freed() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, allocated("claim", "elsewhere", "gpu-0"))
        attempt = await cluster.start(pod("pod", "claim"))
        await cluster.reserve_for("claim", attempt.pod)
        statuses = cluster.filter(attempt)
        binding = {"metadata": {"name": "pod"}, "target": {"kind": "Node", "name": "elsewhere"}}
        await cluster.user.create_subresource(PODS, "pod", TEAM, "binding", binding)
        _, status = await cluster.plugin.post_filter(attempt.state, attempt.pod, statuses)
        assert status.message == ""
        assert (await cluster.claim()).status.allocation is not None


# --- Reserve, PreBind, Unreserve. ---


@pytest.mark.behaviour("SP-99", "SP-100", "SP-101")
async def test_a_claim_is_protected_then_allocated_and_reserved_in_one_write() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, claim())
        attempt = await cluster.start(pod("pod", "claim"))
        assert cluster.feasible(attempt) == ["worker"]
        assert cluster.plugin.reserve(attempt.state, attempt.pod, "worker").is_success
        assert cluster.writes() == []
        assert (await cluster.plugin.pre_bind(attempt.state, attempt.pod, "worker")).is_success
        assert cluster.writes() == ["update claim", "update claim/status"]
        current = await cluster.claim()
        assert current.metadata.finalizers == (FINALIZER,)
        assert current.status.allocation is not None
        [result] = current.status.allocation.devices.results
        assert (result.request, result.pool, result.device) == ("r", "worker", "gpu-0")
        assert msgspec.to_builtins(current.status.reserved_for) == (
            {"name": "pod", "resource": "pods", "uid": attempt.pod.metadata.uid},
        )


@pytest.mark.behaviour("SP-93", "SP-99", "SP-104")
async def test_what_is_in_flight_is_seen_by_others_at_once() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, claim("mine"), claim("theirs"))
        first = await cluster.start(pod("first", "mine"))
        assert cluster.feasible(first) == ["worker"]
        cluster.plugin.reserve(first.state, first.pod, "worker")
        sharing = await cluster.start(pod("sharing", "mine"))
        status = cluster.filter(sharing)[""]
        assert status.message == "resource claim team/mine is in the process of being allocated"
        other = await cluster.start(pod("other", "theirs"))
        assert cluster.filter(other)["worker"].message == "cannot allocate all claims"
        cluster.notified.clear()
        cluster.plugin.unreserve(first.state, first.pod, "worker")
        notified = [(event.label, old.status.allocation is None) for event, old, _new in cluster.notified]
        assert notified == [("ResourceClaimAllocationAbandoned", False)]
        assert cluster.feasible(cluster.attempt(other.pod)) == ["worker"]


@pytest.mark.behaviour("SP-100")
@pytest.mark.parametrize(
    "present",
    [
        pytest.param(True, id="with-resources-has-finalizer"),
        pytest.param(False, id="with-resources-finalizer-gets-added"),
    ],
)
async def test_conflicts_are_read_again_and_retried(present: bool) -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, claim("claim", finalizers=[FINALIZER] if present else []))
        attempt = await cluster.start(pod("pod", "claim"))
        assert cluster.feasible(attempt) == ["worker"]
        touched = msgspec.structs.replace(
            current := await cluster.claim(), metadata=msgspec.structs.replace(current.metadata, labels={"a": "b"})
        )
        await cluster.user.update(RESOURCE_CLAIMS, touched)
        assert (await cluster.take(attempt, "worker")).is_success
        current = await cluster.claim()
        assert current.metadata.labels == {"a": "b"}
        assert current.metadata.finalizers == (FINALIZER,)
        assert current.status.allocation is not None


async def _delete(cluster: Bench) -> None:
    await cluster.user.delete(RESOURCE_CLAIMS, "claim", TEAM)


async def _replace(cluster: Bench) -> None:
    await _delete(cluster)
    await cluster.user.create(RESOURCE_CLAIMS, msgspec.convert(claim(), RESOURCE_CLAIMS.type))


async def _allocate(cluster: Bench) -> None:
    current = await cluster.claim()
    status = msgspec.convert(allocated("x", "worker", "gpu-7")["status"], type(current.status))
    await cluster.user.update_status(RESOURCE_CLAIMS, msgspec.structs.replace(current, status=status))


@pytest.mark.behaviour("SP-100")
@pytest.mark.parametrize(
    ("meanwhile", "expected"),
    [
        pytest.param(_delete, "got deleted in the meantime", id="deleted"),
        pytest.param(_replace, "got deleted in the meantime", id="made-again"),
        pytest.param(_allocate, "got allocated elsewhere in the meantime", id="allocated"),
    ],
)
async def test_prebind_stops_when_the_claim_is_not_to_be_had_any_more(
    meanwhile: Callable[[Bench], Awaitable[None]], expected: str
) -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, claim())
        attempt = await cluster.start(pod("pod", "claim"))
        assert cluster.feasible(attempt) == ["worker"]
        # Kept from the informer's cache until PreBind: the claim changes without being seen.
        await meanwhile(cluster)
        status = await cluster.take(attempt, "worker")
        assert status.code is Code.ERROR
        assert expected in status.message or 'resourceclaims.resource.k8s.io "claim" not found' in status.message


@pytest.mark.behaviour("SP-103")
async def test_a_pod_that_is_reserved_already_writes_nothing() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, allocated("claim", "worker", "gpu-0"))
        made = (await cluster.start(pod("pod", "claim"))).pod
        await cluster.reserve_for("claim", made)
        attempt = cluster.attempt(made)
        assert cluster.feasible(attempt) == ["worker"]
        assert (await cluster.take(attempt, "worker")).is_success
        assert cluster.writes() == []


@pytest.mark.behaviour("SP-102")
async def test_unreserve_removes_the_reservation_and_keeps_the_allocation() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, claim())
        attempt = await cluster.start(pod("pod", "claim"))
        assert cluster.feasible(attempt) == ["worker"]
        assert (await cluster.take(attempt, "worker")).is_success
        cluster.transport.calls.clear()
        await cluster.undo(attempt, "worker")
        [call] = cluster.transport.calls
        assert (call.verb, call.subresource) == ("update", "status")
        assert isinstance(call.body, dict)
        assert call.body["metadata"]["uid"] == (await cluster.claim()).metadata.uid
        assert call.body["metadata"]["resourceVersion"]
        current = await cluster.claim()
        assert current.status.allocation is not None
        assert current.status.reserved_for == ()
        # Undone twice is undone once.
        await cluster.undo(attempt, "worker")
        await cluster.seen(RESOURCE_CLAIMS, current)
        assert cluster.feasible(cluster.attempt(attempt.pod)) == ["worker"]


@pytest.mark.behaviour("SP-102")
async def test_unreserve_before_anything_was_written_writes_nothing() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, claim())
        attempt = await cluster.start(pod("pod", "claim"))
        assert cluster.feasible(attempt) == ["worker"]
        cluster.plugin.reserve(attempt.state, attempt.pod, "worker")
        await cluster.undo(attempt, "worker")
        assert cluster.writes() == []
        assert cluster.feasible(cluster.attempt(attempt.pod)) == ["worker"]


@pytest.mark.behaviour("SP-100", "SP-102")
@pytest.mark.parametrize("arrives", [True, False])
async def test_devices_of_a_write_without_an_answer_are_not_given_away(arrives: bool) -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, claim("mine"), claim("theirs"))
        attempt = await cluster.start(pod("pod", "mine"))
        assert cluster.feasible(attempt) == ["worker"]
        held: list[Call] = []

        def fail(call: Call) -> APIError | None:
            if call.subresource == "status":
                held.append(call)
                return ServiceUnavailableError("no answer")
            return None

        cluster.transport.fail = fail
        status = await cluster.take(attempt, "worker")
        assert status.code is Code.ERROR
        cluster.plugin.unreserve(attempt.state, attempt.pod, "worker")
        other = await cluster.start(pod("other", "theirs"))
        assert cluster.filter(other)["worker"].message == "cannot allocate all claims"
        cluster.transport.fail = lambda _: None
        if arrives:
            await cluster.transport.inner.send(held[0])
        await cluster.plugin.unreserve_writes(attempt.state, attempt.pod, "worker")
        assert bool(cluster.feasible(cluster.attempt(other.pod))) is not arrives
        if not arrives:
            # Too late: it can no longer be written over what others have observed.
            with pytest.raises(ConflictError):
                await cluster.transport.inner.send(held[0])


@pytest.fixture
def kube_apiserver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server store any allocation, as kube-apiserver does."""
    monkeypatch.setattr(DeviceLedger, "check", lambda *_args: None)


@pytest.mark.usefixtures("kube_apiserver")
async def test_a_device_of_two_claims_is_told_of_on_both_once_and_again_after_it_was_resolved() -> None:
    async with bench() as cluster:
        told = cluster.recorded.claim_events
        await cluster.create(*WORKER, allocated("one", "worker", "gpu-0"))
        assert told == []
        await cluster.create(allocated("two", "worker", "gpu-0"))
        text = "device gpu.example.com/worker/gpu-0 is also allocated to claim team/"
        assert told == [
            ("one", "DeviceAllocatedTwice", f"{text}two"),
            ("two", "DeviceAllocatedTwice", f"{text}one"),
        ]
        stored = await cluster.user.get(RESOURCE_CLAIMS, "two", TEAM)
        labelled = msgspec.structs.replace(stored.metadata, labels={"a": "b"})
        await cluster.user.update(RESOURCE_CLAIMS, msgspec.structs.replace(stored, metadata=labelled))
        await cluster.create(allocated("three", "worker", "gpu-1"))
        assert len(told) == 2, "each case once"
        stored = await cluster.user.get(RESOURCE_CLAIMS, "one", TEAM)
        released = msgspec.structs.replace(stored, status=type(stored.status)())
        await cluster.user.update_status(RESOURCE_CLAIMS, released)
        await cluster.create(allocated("four", "worker", "gpu-0"))
        assert [name for name, _, _ in told[2:]] == ["four", "two"]


async def test_a_device_that_the_server_refuses_is_given_up_and_the_pod_tried_again_at_once() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, claim("mine"))
        attempt = await cluster.start(pod("pod", "mine"))
        assert cluster.feasible(attempt) == ["worker"]
        theirs = allocated("theirs", "worker", "gpu-0")
        made = await cluster.user.create(RESOURCE_CLAIMS, msgspec.convert(theirs, RESOURCE_CLAIMS.type))
        status = msgspec.convert(theirs["status"], type(made.status))
        await cluster.user.update_status(RESOURCE_CLAIMS, msgspec.structs.replace(made, status=status))
        result = await cluster.take(attempt, "worker")
        assert result.code is Code.ERROR
        assert result.at_once
        assert result.message.endswith("device gpu.example.com/worker/gpu-0 is allocated to claim team/theirs")
        writes = [call for call in cluster.transport.calls if call.subresource == "status" and call.verb == "update"]
        assert len([call for call in writes if call.name == "mine"]) == 1
        # The informer has observed the holder before the next attempt.
        cluster.plugin.unreserve(attempt.state, attempt.pod, "worker")
        assert cluster.filter(cluster.attempt(attempt.pod))["worker"].message == "cannot allocate all claims"


@pytest.mark.behaviour("SP-104")
async def test_of_two_schedulers_that_take_one_device_the_later_gives_way(kube_apiserver: None) -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, claim("mine"))
        attempt = await cluster.start(pod("pod", "mine"))
        assert cluster.feasible(attempt) == ["worker"]
        # Another scheduler was a little faster.
        theirs = allocated("theirs", "worker", "gpu-0")
        made = await cluster.user.create(RESOURCE_CLAIMS, msgspec.convert(theirs, RESOURCE_CLAIMS.type))
        status = msgspec.convert(theirs["status"], type(made.status))
        await cluster.user.update_status(RESOURCE_CLAIMS, msgspec.structs.replace(made, status=status))
        result = await cluster.take(attempt, "worker")
        assert result.code is Code.ERROR
        assert result.at_once
        assert result.message == "devices for claim team/mine were allocated to team/theirs at the same time"
        assert (await cluster.claim("mine")).status.allocation is None
        assert (await cluster.claim("theirs")).status.allocation is not None


@pytest.mark.behaviour("SP-104")
async def test_an_allocated_claim_whose_device_another_claim_has_is_not_used(kube_apiserver: None) -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, allocated("mine", "worker", "gpu-0"), allocated("theirs", "worker", "gpu-0"))
        attempt = await cluster.start(pod("pod", "mine"))
        statuses = cluster.filter(attempt)
        assert statuses[""].message == "devices of resource claim team/mine are also allocated to team/theirs"
        _, status = await cluster.plugin.post_filter(attempt.state, attempt.pod, statuses)
        assert status.message == "deallocation of ResourceClaim completed"


@pytest.mark.behaviour("SP-108")
async def test_the_257th_user_of_a_claim_is_refused_in_prebind() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, allocated("claim", "worker", "gpu-0"))
        attempt = await cluster.start(pod("pod", "claim"))
        assert cluster.feasible(attempt) == ["worker"]
        current = await cluster.claim()
        users = [{"resource": "pods", "name": f"p-{number}", "uid": f"u-{number}"} for number in range(256)]
        status = msgspec.convert(msgspec.to_builtins(current.status) | {"reservedFor": users}, type(current.status))
        await cluster.seen(
            RESOURCE_CLAIMS,
            await cluster.user.update_status(RESOURCE_CLAIMS, msgspec.structs.replace(current, status=status)),
        )
        result = await cluster.take(attempt, "worker")
        assert result.code is Code.ERROR
        assert "status.reservedFor: Too many: 257: must have at most 256 items" in result.message


# --- Scores. ---

MODELS = tuple(
    device_class(f"model-{number}", f'device.attributes["gpu.example.com"].model == "{number}"') for number in range(8)
)


@pytest.mark.behaviour("PL-25", "PL-26", "PL-27", "PL-29")
@pytest.mark.parametrize(
    ("requests", "models", "expected"),
    [
        pytest.param(
            [alternatives("a", "model-0", "model-1", "model-2")],
            {"first": "0", "second": "1", "third": "2"},
            {"first": 100, "second": 50, "third": 0},
            id="ranks",
        ),
        pytest.param(
            [alternatives("a", *(f"model-{number}" for number in range(8)))],
            {"first": "0", "eighth": "7", "fourth": "3"},
            {"first": 100, "eighth": 0, "fourth": 57},
            id="eight-to-one",
        ),
        pytest.param(
            [alternatives("a", "model-0", "model-1")], {"x": "1", "y": "1"}, {"x": 100, "y": 100}, id="all-the-same"
        ),
    ],
)
async def test_scores(requests: list[Document], models: dict[str, str], expected: dict[str, int]) -> None:
    async with bench() as cluster:
        for name, model in models.items():
            await cluster.create(node(name), resource_slice(name, device("gpu-0", model=model)))
        await cluster.create(*MODELS, claim("claim", *requests))
        assert cluster.scores(await cluster.start(pod("pod", "claim"))) == expected


@pytest.mark.behaviour("PL-25", "PL-29")
async def test_scores_are_summed_over_requests_and_claims() -> None:
    """Sums of 14, 15 and 13, as in upstream's integration test."""
    async with bench() as cluster:
        contents = {"fourteen": ("0", "2"), "fifteen": ("0", "1"), "thirteen": ("1", "2")}
        for name, models in contents.items():
            devices = [device(f"gpu-{number}", model=model) for number, model in enumerate(models)]
            await cluster.create(node(name), resource_slice(name, *devices))
        await cluster.create(
            *MODELS,
            claim("one", alternatives("a", "model-0", "model-1")),
            claim("two", alternatives("b", "model-3", "model-1", "model-2")),
        )
        attempt = await cluster.start(pod("pod", "one", "two"))
        found = [item for name in cluster.feasible(attempt) if (item := cluster.handle.snapshot.get(name))]
        raw = {item.name: cluster.plugin.score(attempt.state, attempt.pod, item) for item in found}
        assert raw == {"fourteen": 14, "fifteen": 15, "thirteen": 13}
        scores = list(raw.values())
        cluster.plugin.normalize_scores(attempt.state, attempt.pod, scores)
        assert dict(zip(raw, scores, strict=True)) == {"fourteen": 50, "fifteen": 100, "thirteen": 0}


@pytest.mark.behaviour("PL-25", "PL-26")
async def test_what_is_allocated_already_or_has_no_alternatives_is_not_scored() -> None:
    async with bench() as cluster:
        await cluster.create(*WORKER, claim("plain"), allocated("done", "worker", "gpu-1"))
        for claims in (("plain",), ("done",), ("plain", "done"), ()):
            attempt = await cluster.start(pod(f"pod-{'-'.join(claims)}x", *claims))
            cluster.filter(attempt)
            assert cluster.plugin.pre_score(attempt.state, attempt.pod, list(cluster.handle.snapshot)).code is Code.SKIP


# --- Explanations. ---


@pytest.mark.behaviour("SP-95")
async def test_nodes_that_look_alike_are_explained_together() -> None:
    async with bench() as cluster:
        for number in range(3):
            await cluster.create(node(f"full-{number}"), resource_slice(f"full-{number}", "gpu-0", "gpu-1"))
            await cluster.create(allocated(f"a-{number}", f"full-{number}", "gpu-0", "gpu-1"))
        await cluster.create(device_class(), node("empty"), claim())
        attempt = await cluster.start(pod("pod", "claim"))
        statuses = cluster.filter(attempt)
        cluster.plugin.explain_rejections(attempt.state, attempt.pod, statuses)
        reasons = {name: why(status.texts) for name, status in statuses.items()}
        assert reasons == {
            **{
                f"full-{number}": 'cannot allocate all claims (request "r": 2 devices: 2 in use)' for number in range(3)
            },
            "empty": 'cannot allocate all claims (request "r": no devices)',
        }
        assert all(status.plugin == NAME and status.code is UNRESOLVABLE for status in statuses.values())


# --- Binding conditions. ---


def condition(kind: str, value: str = "True") -> Document:
    return {
        "type": kind,
        "status": value,
        "reason": "Told",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


async def report(cluster: Bench, *conditions: Document) -> None:
    current = await cluster.claim()
    place = {"driver": "gpu.example.com", "pool": "worker", "device": "gpu-0", "conditions": list(conditions)}
    status = msgspec.convert(
        msgspec.json.decode(msgspec.json.encode(current.status)) | {"devices": [place]}, type(current.status)
    )
    await cluster.user.update_status(RESOURCE_CLAIMS, msgspec.structs.replace(current, status=status))


ATTACHED = {
    "name": "gpu-0",
    "bindsToNode": True,
    "bindingConditions": ["example.com/attached"],
    "bindingFailureConditions": ["example.com/broken"],
}


@pytest.mark.behaviour("SP-107")
@pytest.mark.parametrize(
    ("reported", "code", "label"),
    [
        pytest.param("example.com/attached", Code.SUCCESS, "success", id="met"),
        pytest.param("example.com/broken", Code.UNSCHEDULABLE, "failure", id="failed"),
    ],
)
async def test_prebind_waits_for_binding_conditions(reported: str, code: Code, label: str) -> None:
    async with bench() as cluster:
        await cluster.create(device_class(), node("worker"), resource_slice("worker", ATTACHED), claim())
        attempt = await cluster.start(pod("pod", "claim"))
        assert cluster.feasible(attempt) == ["worker"]

        async def drive() -> None:
            await until(lambda: bool(cluster.events))
            await report(cluster, condition(reported))

        status, _ = await asyncio.gather(cluster.take(attempt, "worker"), drive())
        assert status.code is code, status
        assert cluster.events == [
            (
                "BindingConditionsPending",
                "Waiting for binding conditions for device gpu.example.com/worker/gpu-0 on node worker.",
            )
        ]
        current = await cluster.claim()
        assert (current.status.allocation is not None) == (code is Code.SUCCESS)
        name = "scheduler_dra_bindingconditions_allocations_total"
        assert cluster.handle.metrics.value(name, {"status": label}) == 1


@pytest.mark.behaviour("SP-107")
async def test_binding_conditions_time_out() -> None:
    async with bench(bindingTimeout="1s") as cluster:
        await cluster.create(device_class(), node("worker"), resource_slice("worker", ATTACHED), claim())
        attempt = await cluster.start(pod("pod", "claim"))
        assert cluster.feasible(attempt) == ["worker"]
        status = await cluster.take(attempt, "worker")
        assert status.code is Code.UNSCHEDULABLE
        assert status.message == "claim team/claim: binding of device gpu.example.com/worker/gpu-0 timed out"
        assert (await cluster.claim()).status.allocation is None


@pytest.mark.behaviour("SP-107")
async def test_devices_with_conditions_are_not_used_while_the_gate_is_off() -> None:
    async with bench("DRADeviceBindingConditions=false") as cluster:
        await cluster.create(device_class(), node("worker"), resource_slice("worker", ATTACHED), claim())
        attempt = await cluster.start(pod("pod", "claim"))
        assert cluster.feasible(attempt) == []


# --- Whatever else feeds the plugin. ---


async def test_taint_rules_keep_devices_away_and_wake_pods() -> None:
    async with bench("DRADeviceTaintRules=true") as cluster:
        await cluster.create(*WORKER, claim())
        cluster.notified.clear()
        rule = {
            "kind": "DeviceTaintRule",
            "metadata": {"name": "rule"},
            "spec": {
                "deviceSelector": {"driver": "gpu.example.com"},
                "taint": {"key": "example.com/broken", "effect": "NoSchedule"},
            },
        }
        await cluster.create(rule)
        attempt = await cluster.start(pod("pod", "claim"))
        assert cluster.filter(attempt)["worker"].message == "cannot allocate all claims"
        await cluster.user.delete(RULES, "rule")
        await until(lambda: cluster.handle.informers.informer(RULES).lister.get("rule") is None)
        assert [event.resource for event, _old, _new in cluster.notified] == ["DeviceTaintRule", "DeviceTaintRule"]
        assert cluster.feasible(cluster.attempt(attempt.pod)) == ["worker"]


async def test_profiles_share_one_account_of_devices() -> None:
    async with bench() as cluster:
        again = type(cluster.plugin)({}, cluster.handle)
        assert again._tracker is cluster.plugin._tracker
