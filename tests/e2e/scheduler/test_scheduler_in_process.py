"""The scheduler on a real API server in one process: extension points, failures, waiting, competition."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document, GroupVersion
from dray.api.types.core_v1 import Pod
from dray.client.in_process import in_process_client
from dray.client.interface import (
    WRITE,
    Client,
    DeleteOptions,
    ListOptions,
    Patch,
    PatchType,
    Resource,
    WriteOptions,
    unstructured,
)
from dray.framework.cycle_state import CycleState
from dray.framework.events import NODE, Action, ClusterEvent, EventRegistration
from dray.framework.plugins import PostFilterResult
from dray.framework.status import SKIP, SUCCESS, Code, Status, error, unresolvable, unschedulable
from dray.scheduler.config import PluginSet, ProfileConfig, SchedulerConfig
from dray.scheduler.handle import Handle
from dray.scheduler.queue import Backoff
from dray.scheduler.registry import BUILT_IN
from tests.e2e.scheduler.cluster import EVENTS, NODES, PODS, Cluster, node, pod, started

QUICK = Backoff(0.05, 0.2)
PRIORITY_CLASSES = unstructured(
    GroupVersion("scheduling.k8s.io", "v1"), "priorityclasses", "PriorityClass", namespaced=False
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with started(tmp_path) as running:
        yield running


class Probe:
    """Takes part in everything from Reserve on and writes down the calls; answers may be set and are used once."""

    name = "Probe"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.answers: dict[str, Status] = {}
        self.handle: Handle | None = None

    def _said(self, point: str) -> Status:
        self.calls.append(point)
        return self.answers.pop(point, SUCCESS)

    def reserve(self, _state: CycleState, _pod: Pod, _node: str) -> Status:
        return self._said("reserve")

    def unreserve(self, _state: CycleState, _pod: Pod, _node: str) -> None:
        self._said("unreserve")

    async def unreserve_writes(self, _state: CycleState, _pod: Pod, _node: str) -> None:
        self._said("unreserve_writes")

    def permit(self, _state: CycleState, _pod: Pod, _node: str) -> tuple[Status, float]:
        return self._said("permit"), 0.1

    async def pre_bind(self, _state: CycleState, _pod: Pod, _node: str) -> Status:
        return self._said("pre_bind")

    async def bind(self, _state: CycleState, _pod: Pod, _node: str) -> Status:
        status = self._said("bind")
        return SKIP if status is SUCCESS else status

    def post_bind(self, _state: CycleState, _pod: Pod, _node: str) -> None:
        self._said("post_bind")

    def events_to_register(self) -> list[EventRegistration]:
        return [EventRegistration(ClusterEvent(NODE, Action.ADD))]


def start(cluster: Cluster, probe: Any, gates: str = "") -> None:
    def make(_args: Any, handle: Handle) -> Any:
        probe.handle = handle
        return probe

    profile = ProfileConfig(
        multi_point=PluginSet(enabled=((probe.name, 0),)),
        points={"bind": PluginSet(enabled=((probe.name, 0), ("DefaultBinder", 0)))} if hasattr(probe, "bind") else {},
    )
    cluster.start_scheduler({**BUILT_IN, probe.name: make}, SchedulerConfig((profile,), QUICK), gates=gates)


BOUND = ["reserve", "permit", "pre_bind", "bind", "post_bind"]


async def test_order_of_the_binding_cycle(cluster: Cluster) -> None:
    probe = Probe()
    start(cluster, probe)
    await cluster.create(node("n"), pod("p"))
    assert await cluster.node_of("p") == "n"
    await cluster.eventually(lambda: asyncio.sleep(0, probe.calls), lambda calls: "post_bind" in calls)
    assert probe.calls == BOUND
    assert await cluster.event_messages("p", "Scheduled") == ["Successfully assigned default/p to n"]


UNDONE = ["unreserve", "unreserve_writes"]


@pytest.mark.parametrize(
    ("point", "before"),
    [
        ("reserve", ["reserve"]),
        ("permit", ["reserve", "permit"]),
        ("pre_bind", ["reserve", "permit", "pre_bind"]),
        ("bind", ["reserve", "permit", "pre_bind", "bind"]),
    ],
)
async def test_a_failure_is_undone_told_and_tried_again(cluster: Cluster, point: str, before: list[str]) -> None:
    probe = Probe()
    probe.answers[point] = error("broke")
    start(cluster, probe)
    await cluster.create(node("n"), pod("p"))
    assert await cluster.node_of("p") == "n"
    await cluster.eventually(lambda: asyncio.sleep(0, probe.calls), lambda calls: "post_bind" in calls)
    assert probe.calls == [*before, *UNDONE, *BOUND]
    name = {"reserve": "Reserve", "permit": "Permit", "pre_bind": "PreBind", "bind": "Bind"}[point]
    assert await cluster.event_messages("p", "FailedScheduling") == [f'running {name} plugin "Probe": broke']


async def test_an_error_is_not_called_unschedulable(cluster: Cluster) -> None:
    class Broken:
        name = "Broken"

        def filter(self, _state: CycleState, _pod: Pod, _node: Any) -> Status:
            raise ValueError("bug")

    start(cluster, Broken())
    await cluster.create(node("n"), pod("p"))
    condition = await cluster.condition("p", "SchedulerError")
    assert (condition["status"], condition["message"]) == ("False", "ValueError: bug")


async def test_a_rejection_after_placing_waits_for_an_event(cluster: Cluster) -> None:
    probe = Probe()
    probe.answers["permit"] = unschedulable("not now")
    start(cluster, probe)
    await cluster.create(node("n"), pod("p"))
    condition = await cluster.condition("p", "Unschedulable")
    assert condition["message"] == "0/1 nodes are available: 1 not now."
    await cluster.create(node("m"))
    assert await cluster.node_of("p") in ("n", "m")


async def test_permit_waits_until_allowed(cluster: Cluster) -> None:
    class Slow(Probe):
        def permit(self, _state: CycleState, _pod: Pod, _node: str) -> tuple[Status, float]:
            self.calls.append("permit")
            return Status(Code.WAIT), 60.0

    probe = Slow()
    start(cluster, probe)
    await cluster.create(node("n"), pod("p"))
    await cluster.eventually(lambda: asyncio.sleep(0, probe.calls), lambda calls: "permit" in calls)
    assert probe.handle is not None
    held = await cluster.eventually(lambda: asyncio.sleep(0, probe.handle.waiting_pods.all()), bool)  # type: ignore[union-attr]
    assert "nodeName" not in (await cluster.pod("p"))["spec"]
    assert (held[0].node_name, held[0].pending_plugins) == ("n", ("Probe",))
    held[0].allow("Probe")
    assert await cluster.node_of("p") == "n"


class Waiting(Probe):
    """Lets Pods wait at Permit."""

    def permit(self, _state: CycleState, _pod: Pod, _node: str) -> tuple[Status, float]:
        self.calls.append("permit")
        return Status(Code.WAIT), 60.0

    async def held(self, cluster: Cluster) -> Any:
        await cluster.eventually(lambda: asyncio.sleep(0, self.calls), lambda calls: "permit" in calls)
        assert self.handle is not None
        return (await cluster.eventually(lambda: asyncio.sleep(0, self.handle.waiting_pods.all()), bool))[0]  # type: ignore[union-attr]


async def nominated_node(cluster: Cluster, name: str) -> str:
    return str((await cluster.pod(name))["status"].get("nominatedNodeName", ""))


@pytest.mark.behaviour("PE-42")
async def test_the_node_of_a_pod_that_waits_is_made_known(cluster: Cluster) -> None:
    probe = Waiting()
    start(cluster, probe)
    await cluster.create(node("n"), pod("p"))
    held = await probe.held(cluster)
    assert await cluster.eventually(lambda: nominated_node(cluster, "p"), bool) == "n"
    held.allow("Probe")
    assert await cluster.node_of("p") == "n"
    assert await nominated_node(cluster, "p") == ""


@pytest.mark.behaviour("PE-11", "PE-42")
async def test_a_node_that_was_made_known_is_withdrawn_with_the_attempt(cluster: Cluster) -> None:
    probe = Waiting()
    start(cluster, probe)
    await cluster.create(node("n"), pod("p"))
    held = await probe.held(cluster)
    await cluster.eventually(lambda: nominated_node(cluster, "p"), bool)
    held.reject("Probe", "not here")
    await cluster.condition("p", "Unschedulable", "not here")
    assert await nominated_node(cluster, "p") == ""


@pytest.mark.behaviour("PE-42")
async def test_the_node_of_a_pod_that_waits_in_pre_bind_is_made_known(cluster: Cluster) -> None:
    class Preparing(Probe):
        ready = asyncio.Event()

        def pre_bind_pre_flight(self, _state: CycleState, pod: Pod, _node: str) -> Status:
            return SUCCESS if pod.metadata.name == "slow" else SKIP

        async def pre_bind(self, _state: CycleState, pod: Pod, _node: str) -> Status:
            self.calls.append(f"{pod.metadata.name} {pod.metadata.uid}")
            await self.ready.wait()
            return SUCCESS

    probe = Preparing()
    start(cluster, probe)
    await cluster.create(node("n"), pod("slow"), pod("quick"))
    await cluster.eventually(lambda: asyncio.sleep(0, probe.calls), lambda calls: len(calls) >= 2)
    assert await cluster.eventually(lambda: nominated_node(cluster, "slow"), bool) == "n"
    assert await nominated_node(cluster, "quick") == ""
    probe.ready.set()
    assert await cluster.node_of("slow") == "n"


@pytest.mark.behaviour("PE-42")
async def test_without_the_gate_no_node_is_made_known(cluster: Cluster) -> None:
    probe = Waiting()
    start(cluster, probe, gates="NominatedNodeNameForExpectation=false")
    await cluster.create(node("n"), pod("p"))
    held = await probe.held(cluster)
    assert await nominated_node(cluster, "p") == ""
    held.allow("Probe")
    assert await cluster.node_of("p") == "n"


@pytest.mark.behaviour("PE-42")
async def test_a_node_that_another_component_nominates_is_tried_first(cluster: Cluster) -> None:
    await cluster.create(node("roomy", cpu="64"), node("other"))
    await cluster.create(pod("p", schedulingGates=[{"name": "g"}]))
    body: Document = {"status": {"nominatedNodeName": "other"}}
    await cluster.client.patch(PODS, "p", "default", Patch(PatchType.MERGE, body), WriteOptions(subresource="status"))
    cluster.start_scheduler()
    ungated = Patch(PatchType.JSON, [{"op": "remove", "path": "/spec/schedulingGates"}])
    await cluster.client.patch(PODS, "p", "default", ungated)
    assert await cluster.node_of("p") == "other"


async def test_a_pod_that_was_bound_by_another_scheduler_does_not_wait_after_its_deletion(cluster: Cluster) -> None:
    probe = Waiting()
    start(cluster, probe)
    await cluster.create(node("n"), pod("p"))
    await probe.held(cluster)
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"name": "n"}}
    await cluster.client.create_subresource(PODS, "p", "default", "binding", binding)
    await cluster.client.delete(PODS, "p", "default", _now())
    await cluster.eventually(lambda: asyncio.sleep(0, probe.calls), lambda calls: "unreserve_writes" in calls)


async def test_permit_gives_up_in_time(cluster: Cluster) -> None:
    probe = Probe()
    probe.answers["permit"] = Status(Code.WAIT)
    start(cluster, probe)
    await cluster.create(node("n"), pod("p"))
    message = "0/1 nodes are available: 1 rejected due to timeout after waiting 100ms at plugin Probe."
    assert (await cluster.condition("p", "Unschedulable"))["message"] == message


async def test_post_filter_makes_room_and_nominates(cluster: Cluster) -> None:
    class Room:
        name = "Room"

        async def post_filter(self, _state: CycleState, _pod: Pod, statuses: Any) -> Any:
            assert sorted(statuses) == ["n"]
            return PostFilterResult("n"), SUCCESS

    start(cluster, Room())
    await cluster.create(node("n"), pod("p", cpu="9"))
    await cluster.condition("p", "Unschedulable")
    found = await cluster.pod("p")
    assert found["status"]["nominatedNodeName"] == "n"


class Asked(Probe):
    """Remembers the rejections with which PostFilter was called."""

    name = "Asked"

    def __init__(self, **rejections: Status) -> None:
        super().__init__()
        self.answers.update(rejections)
        self.filter_status = rejections.get("filter", SUCCESS)
        self.pre_filter_status = rejections.get("pre_filter", SUCCESS)
        self.asked: list[dict[str, Code]] = []

    def pre_filter(self, _state: CycleState, _pod: Pod) -> tuple[None, Status]:
        return None, self.pre_filter_status

    def filter(self, _state: CycleState, _pod: Pod, _node: Any) -> Status:
        return self.filter_status

    async def post_filter(self, _state: CycleState, _pod: Pod, statuses: Any) -> Any:
        self.asked.append({name: status.code for name, status in statuses.items()})
        return None, unschedulable()


@pytest.mark.behaviour("PE-09")
@pytest.mark.parametrize(
    ("rejections", "reason", "asked"),
    [
        pytest.param({"filter": unschedulable("no")}, "Unschedulable", True, id="Filter"),
        pytest.param({"pre_filter": unresolvable("no")}, "Unschedulable", True, id="PreFilter"),
        pytest.param({"filter": error("bug")}, "SchedulerError", False, id="an error"),
        pytest.param({"reserve": unschedulable("no")}, "Unschedulable", False, id="Reserve"),
        pytest.param({"permit": unschedulable("no")}, "Unschedulable", False, id="Permit"),
    ],
)
async def test_post_filter_runs_only_if_no_node_fits(
    cluster: Cluster, rejections: dict[str, Status], reason: str, *, asked: bool
) -> None:
    probe = Asked(**rejections)
    start(cluster, probe)
    await cluster.create(node("n"), pod("p"))
    await cluster.condition("p", reason)
    assert bool(probe.asked) is asked


@pytest.mark.behaviour("PE-09")
async def test_post_filter_does_not_run_without_nodes(cluster: Cluster) -> None:
    probe = Asked()
    start(cluster, probe)
    await cluster.create(pod("p"))
    await cluster.condition("p", "Unschedulable", "no nodes available to schedule pods")
    assert not probe.asked


@pytest.mark.behaviour("PE-14")
@pytest.mark.parametrize("status", [unschedulable("no"), unresolvable("no")])
async def test_a_rejection_in_pre_filter_is_that_of_every_node(cluster: Cluster, status: Status) -> None:
    probe = Asked(pre_filter=status)
    start(cluster, probe)
    await cluster.create(node("n"), node("m"), pod("p"))
    await cluster.condition("p", "Unschedulable", "nodes are available: no.")
    found = await cluster.eventually(lambda: asyncio.sleep(0, probe.asked), lambda asked: len(asked[-1]) == 2)
    assert set(found[-1].values()) == {status.code}


async def test_two_schedulers_never_bind_twice(cluster: Cluster) -> None:
    """Both see every Pod; the API server lets one binding through, and the loser lets go."""
    await cluster.create(*(node(f"n{number}", cpu="100") for number in range(3)))
    first, _ = cluster.start_scheduler()
    second, _ = cluster.start_scheduler()
    names = [f"p{number}" for number in range(40)]
    await asyncio.gather(*(cluster.create(pod(name)) for name in names))
    nodes = {name: await cluster.node_of(name) for name in names}
    for scheduler in (first, second):
        read = lambda one=scheduler: asyncio.sleep(0, (one.cache.assumed_count(), len(one.queue.pending())))  # noqa: E731
        await cluster.eventually(read, lambda counts: counts == (0, 0))
        for name, where in nodes.items():
            uid = (await cluster.pod(name))["metadata"]["uid"]
            assert scheduler.cache.node_of(uid) == where
    for name in names:
        assert len(await cluster.event_messages(name, "Scheduled")) == 1


async def test_a_condition_is_written_once(cluster: Cluster) -> None:
    patches: list[str] = []

    class Counting:
        """Counts the patches that pass."""

        def __init__(self, inner: Client) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        async def patch(
            self, resource: Resource[Any], name: str, namespace: str, body: Patch, options: WriteOptions = WRITE
        ) -> Any:
            if resource.plural == "pods":
                patches.append(name)
            return await self._inner.patch(resource, name, namespace, body, options)

    client: Any = Counting(in_process_client(cluster.running.local, user="system:kube-scheduler"))
    scheduler, _ = cluster.start_scheduler(config=SchedulerConfig(backoff=QUICK), client=client)
    await cluster.create(node("n"), pod("big", cpu="50"))
    await cluster.condition("big", "Unschedulable", "0/1 nodes")
    queued = scheduler.queue.pending()[0]
    for attempts in (2, 3):
        scheduler.handle.activate(queued.uid)
        await cluster.eventually(lambda: asyncio.sleep(0, queued.attempts), partial(operator.le, attempts))
    await cluster.eventually(lambda: asyncio.sleep(0, scheduler.queue.counts()["unschedulable"]), bool)
    assert patches == ["big"]
    assert len(await cluster.event_messages("big", "FailedScheduling")) == 1


async def test_restart_takes_up_what_is_there(cluster: Cluster) -> None:
    await cluster.create(node("n", cpu="1"), pod("first", cpu="600m"))
    _, stop = cluster.start_scheduler()
    assert await cluster.node_of("first") == "n"
    await stop()
    await cluster.create(pod("second", cpu="600m"), pod("third", cpu="300m"))
    cluster.start_scheduler(config=SchedulerConfig(backoff=QUICK))
    assert await cluster.node_of("third") == "n"
    assert "Insufficient cpu" in (await cluster.condition("second", "Unschedulable"))["message"]
    await cluster.client.delete(PODS, "first", "default", _now())
    assert await cluster.node_of("second") == "n"


async def test_the_important_go_first(cluster: Cluster) -> None:
    """All wait when the scheduler starts, and there is room for one."""
    await cluster.create(node("n"))
    for name, value in (("low", 1), ("high", 1000), ("middle", 10)):
        await cluster.client.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})
        await cluster.create(pod(name, cpu="3", priorityClassName=name))
    cluster.start_scheduler()
    assert await cluster.node_of("high") == "n"
    for name in ("low", "middle"):
        assert "Insufficient cpu" in (await cluster.condition(name, "Unschedulable"))["message"]


async def test_only_its_own_profiles_are_placed(cluster: Cluster) -> None:
    profiles = (ProfileConfig("default-scheduler"), ProfileConfig("other"))
    cluster.start_scheduler(config=SchedulerConfig(profiles))
    await cluster.create(
        node("n"), pod("mine"), pod("named", schedulerName="other"), pod("stranger", schedulerName="x")
    )
    assert await cluster.node_of("mine") == "n"
    assert await cluster.node_of("named") == "n"
    assert "nodeName" not in (await cluster.pod("stranger"))["spec"]
    assert await _event_component(cluster, "named") == "other"


async def test_deleted_pods_leave_nothing_behind(cluster: Cluster) -> None:
    scheduler, _ = cluster.start_scheduler()
    await cluster.create(node("n"), pod("big", cpu="50"), pod("small"))
    await cluster.condition("big", "Unschedulable")
    await cluster.node_of("small")
    for name in ("big", "small"):
        await cluster.client.delete(PODS, name, "default", _now())
    read = lambda: asyncio.sleep(0, (scheduler.cache.pod_count(), len(scheduler.queue.pending())))  # noqa: E731
    await cluster.eventually(read, lambda counts: counts == (0, 0))


async def test_a_node_that_loses_its_taint_wakes_pods(cluster: Cluster) -> None:
    cluster.start_scheduler(config=SchedulerConfig(backoff=QUICK))
    taints = [{"key": "k", "effect": "NoSchedule"}]
    await cluster.create(node("n", taints=taints), node("small", cpu="1"), pod("p", cpu="2"))
    condition = await cluster.condition("p", "Unschedulable", "0/2")
    expected = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s)."
    assert condition["message"].startswith(expected)
    await cluster.client.patch(NODES, "n", "", Patch(PatchType.MERGE, {"spec": {"taints": None}}))
    assert await cluster.node_of("p") == "n"


def _now() -> Any:
    return DeleteOptions(grace_period_seconds=0)


async def _event_component(cluster: Cluster, name: str) -> str:
    await cluster.event_messages(name, "Scheduled")
    page = await cluster.client.list(EVENTS, "default", ListOptions(field_selector=f"involvedObject.name={name}"))
    event: Document = page.items[0]
    return str(event["source"]["component"])
