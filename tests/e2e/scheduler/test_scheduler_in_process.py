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
from dray.framework.status import SKIP, SUCCESS, Code, Status, error, unschedulable
from dray.scheduler.config import PluginSet, ProfileConfig, SchedulerConfig
from dray.scheduler.handle import Handle
from dray.scheduler.queue import Backoff
from dray.scheduler.registry import BUILT_IN
from tests.e2e.scheduler.worlds import EVENTS, NODES, PODS, World, node, pod, started

QUICK = Backoff(0.05, 0.2)
PRIORITY_CLASSES = unstructured(
    GroupVersion("scheduling.k8s.io", "v1"), "priorityclasses", "PriorityClass", namespaced=False
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
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


def start(world: World, probe: Any) -> None:
    def make(_args: Any, handle: Handle) -> Any:
        probe.handle = handle
        return probe

    profile = ProfileConfig(
        multi_point=PluginSet(enabled=((probe.name, 0),)),
        points={"bind": PluginSet(enabled=((probe.name, 0), ("DefaultBinder", 0)))} if hasattr(probe, "bind") else {},
    )
    world.start_scheduler({**BUILT_IN, probe.name: make}, SchedulerConfig((profile,), QUICK))


BOUND = ["reserve", "permit", "pre_bind", "bind", "post_bind"]


async def test_order_of_the_binding_cycle(world: World) -> None:
    probe = Probe()
    start(world, probe)
    await world.create(node("n"), pod("p"))
    assert await world.node_of("p") == "n"
    await world.eventually(lambda: asyncio.sleep(0, probe.calls), lambda calls: "post_bind" in calls)
    assert probe.calls == BOUND
    assert await world.event_messages("p", "Scheduled") == ["Successfully assigned default/p to n"]


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
async def test_a_failure_is_undone_told_and_tried_again(world: World, point: str, before: list[str]) -> None:
    probe = Probe()
    probe.answers[point] = error("broke")
    start(world, probe)
    await world.create(node("n"), pod("p"))
    assert await world.node_of("p") == "n"
    await world.eventually(lambda: asyncio.sleep(0, probe.calls), lambda calls: "post_bind" in calls)
    assert probe.calls == [*before, *UNDONE, *BOUND]
    name = {"reserve": "Reserve", "permit": "Permit", "pre_bind": "PreBind", "bind": "Bind"}[point]
    assert await world.event_messages("p", "FailedScheduling") == [f'running {name} plugin "Probe": broke']


async def test_an_error_is_not_called_unschedulable(world: World) -> None:
    class Broken:
        name = "Broken"

        def filter(self, _state: CycleState, _pod: Pod, _node: Any) -> Status:
            raise ValueError("bug")

    start(world, Broken())
    await world.create(node("n"), pod("p"))
    condition = await world.condition("p", "SchedulerError")
    assert (condition["status"], condition["message"]) == ("False", "ValueError: bug")


async def test_a_rejection_after_placing_waits_for_an_event(world: World) -> None:
    probe = Probe()
    probe.answers["permit"] = unschedulable("not now")
    start(world, probe)
    await world.create(node("n"), pod("p"))
    condition = await world.condition("p", "Unschedulable")
    assert condition["message"] == "0/1 nodes are available: 1 not now."
    await world.create(node("m"))
    assert await world.node_of("p") in ("n", "m")


async def test_permit_waits_until_allowed(world: World) -> None:
    class Slow(Probe):
        def permit(self, _state: CycleState, _pod: Pod, _node: str) -> tuple[Status, float]:
            self.calls.append("permit")
            return Status(Code.WAIT), 60.0

    probe = Slow()
    start(world, probe)
    await world.create(node("n"), pod("p"))
    await world.eventually(lambda: asyncio.sleep(0, probe.calls), lambda calls: "permit" in calls)
    assert probe.handle is not None
    held = await world.eventually(lambda: asyncio.sleep(0, probe.handle.waiting_pods.all()), bool)  # type: ignore[union-attr]
    assert "nodeName" not in (await world.pod("p"))["spec"]
    assert (held[0].node_name, held[0].pending_plugins) == ("n", ("Probe",))
    held[0].allow("Probe")
    assert await world.node_of("p") == "n"


async def test_permit_gives_up_in_time(world: World) -> None:
    probe = Probe()
    probe.answers["permit"] = Status(Code.WAIT)
    start(world, probe)
    await world.create(node("n"), pod("p"))
    message = "0/1 nodes are available: 1 rejected due to timeout after waiting at plugin Probe."
    assert (await world.condition("p", "Unschedulable"))["message"] == message


async def test_post_filter_makes_room_and_nominates(world: World) -> None:
    class Room:
        name = "Room"

        async def post_filter(self, _state: CycleState, _pod: Pod, statuses: Any) -> Any:
            assert sorted(statuses) == ["n"]
            return PostFilterResult("n"), SUCCESS

    start(world, Room())
    await world.create(node("n"), pod("p", cpu="9"))
    await world.condition("p", "Unschedulable")
    found = await world.pod("p")
    assert found["status"]["nominatedNodeName"] == "n"


async def test_two_schedulers_never_bind_twice(world: World) -> None:
    """Both see every Pod; the API server lets one binding through, and the loser lets go."""
    await world.create(*(node(f"n{number}", cpu="100") for number in range(3)))
    first, _ = world.start_scheduler()
    second, _ = world.start_scheduler()
    names = [f"p{number}" for number in range(40)]
    await asyncio.gather(*(world.create(pod(name)) for name in names))
    nodes = {name: await world.node_of(name) for name in names}
    for scheduler in (first, second):
        read = lambda one=scheduler: asyncio.sleep(0, (one.cache.assumed_count(), len(one.queue.pending())))  # noqa: E731
        await world.eventually(read, lambda counts: counts == (0, 0))
        for name, where in nodes.items():
            uid = (await world.pod(name))["metadata"]["uid"]
            assert scheduler.cache.node_of(uid) == where
    for name in names:
        assert len(await world.event_messages(name, "Scheduled")) == 1


async def test_a_condition_is_written_once(world: World) -> None:
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

    client: Any = Counting(in_process_client(world.running.local, user="system:kube-scheduler"))
    scheduler, _ = world.start_scheduler(config=SchedulerConfig(backoff=QUICK), client=client)
    await world.create(node("n"), pod("big", cpu="50"))
    await world.condition("big", "Unschedulable", "0/1 nodes")
    queued = scheduler.queue.pending()[0]
    for attempts in (2, 3):
        scheduler.handle.activate(queued.uid)
        await world.eventually(lambda: asyncio.sleep(0, queued.attempts), partial(operator.le, attempts))
    await world.eventually(lambda: asyncio.sleep(0, scheduler.queue.counts()["unschedulable"]), bool)
    assert patches == ["big"]
    assert len(await world.event_messages("big", "FailedScheduling")) == 1


async def test_restart_takes_up_what_is_there(world: World) -> None:
    await world.create(node("n", cpu="1"), pod("first", cpu="600m"))
    _, stop = world.start_scheduler()
    assert await world.node_of("first") == "n"
    await stop()
    await world.create(pod("second", cpu="600m"), pod("third", cpu="300m"))
    world.start_scheduler(config=SchedulerConfig(backoff=QUICK))
    assert await world.node_of("third") == "n"
    assert "Insufficient cpu" in (await world.condition("second", "Unschedulable"))["message"]
    await world.client.delete(PODS, "first", "default", _now())
    assert await world.node_of("second") == "n"


async def test_the_important_go_first(world: World) -> None:
    """All wait when the scheduler starts, and there is room for one."""
    await world.create(node("n"))
    for name, value in (("low", 1), ("high", 1000), ("middle", 10)):
        await world.client.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})
        await world.create(pod(name, cpu="3", priorityClassName=name))
    world.start_scheduler()
    assert await world.node_of("high") == "n"
    for name in ("low", "middle"):
        assert "Insufficient cpu" in (await world.condition(name, "Unschedulable"))["message"]


async def test_only_its_own_profiles_are_placed(world: World) -> None:
    profiles = (ProfileConfig("default-scheduler"), ProfileConfig("other"))
    world.start_scheduler(config=SchedulerConfig(profiles))
    await world.create(node("n"), pod("mine"), pod("named", schedulerName="other"), pod("stranger", schedulerName="x"))
    assert await world.node_of("mine") == "n"
    assert await world.node_of("named") == "n"
    assert "nodeName" not in (await world.pod("stranger"))["spec"]
    assert await _event_component(world, "named") == "other"


async def test_deleted_pods_leave_nothing_behind(world: World) -> None:
    scheduler, _ = world.start_scheduler()
    await world.create(node("n"), pod("big", cpu="50"), pod("small"))
    await world.condition("big", "Unschedulable")
    await world.node_of("small")
    for name in ("big", "small"):
        await world.client.delete(PODS, name, "default", _now())
    read = lambda: asyncio.sleep(0, (scheduler.cache.pod_count(), len(scheduler.queue.pending())))  # noqa: E731
    await world.eventually(read, lambda counts: counts == (0, 0))


async def test_a_node_that_loses_its_taint_wakes_pods(world: World) -> None:
    world.start_scheduler(config=SchedulerConfig(backoff=QUICK))
    taints = [{"key": "k", "effect": "NoSchedule"}]
    await world.create(node("n", taints=taints), node("small", cpu="1"), pod("p", cpu="2"))
    condition = await world.condition("p", "Unschedulable", "0/2")
    expected = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s)."
    assert condition["message"].startswith(expected)
    await world.client.patch(NODES, "n", "", Patch(PatchType.MERGE, {"spec": {"taints": None}}))
    assert await world.node_of("p") == "n"


def _now() -> Any:
    return DeleteOptions(grace_period_seconds=0)


async def _event_component(world: World, name: str) -> str:
    await world.event_messages(name, "Scheduled")
    page = await world.client.list(EVENTS, "default", ListOptions(field_selector=f"involvedObject.name={name}"))
    event: Document = page.items[0]
    return str(event["source"]["component"])
