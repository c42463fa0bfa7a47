"""The group cycle: feasibility, all or nothing, reservations undone in reverse, checks, conditions, binding."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.codec import from_document
from dray.api.types.core_v1 import Pod
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.framework.status import SUCCESS, Code, Status, error, unschedulable
from dray.scheduler.binder import PermitWaiter, RunningBinding
from dray.scheduler.cache import Cache
from dray.scheduler.cycle import Cycle
from dray.scheduler.gang_binding import NOT_TOGETHER, GangBinding
from dray.scheduler.group_cycle import GroupCycle, GroupOutcome, best_placement, check_members
from dray.scheduler.group_reporter import plan_condition
from dray.scheduler.nominations import Nominations
from dray.scheduler.plugins.gang_scheduling import PERMIT_SECONDS, GangScheduling
from dray.scheduler.plugins.node_resources_fit import NodeResourcesFit
from dray.scheduler.pod_groups import PodGroups
from dray.scheduler.profile import explain
from dray.scheduler.queued_pod import QueuedPod
from tests.unit.scheduler.builders import handle, node, pod
from tests.unit.scheduler.test_cycle import profile
from tests.unit.scheduler.test_group_queue import TEAM, member, pod_group


class OnePerNode:
    """Accepts a node without Pods of groups, and writes down what it reserves; `broken` fails on a Pod."""

    name = "OnePerNode"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.broken = ""
        self.refused = ""
        # The only node for a Pod.
        self.only: dict[str, str] = {}

    def filter(self, _state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        if pod.metadata.name == self.broken:
            return error("broke")
        if self.only.get(pod.metadata.name or "", node.name) != node.name:
            return unschedulable("wrong node")
        return unschedulable("node is full") if node.pods else SUCCESS

    def reserve(self, _state: CycleState, pod: Pod, node_name: str) -> Status:
        self.calls.append(f"reserve {pod.metadata.name} {node_name}")
        return unschedulable("not here") if pod.metadata.name == self.refused else SUCCESS

    def unreserve(self, _state: CycleState, pod: Pod, _node_name: str) -> None:
        self.calls.append(f"unreserve {pod.metadata.name}")


class Parts:
    """A cycle on some nodes."""

    def __init__(self, nodes: int) -> None:
        self.cache, snapshot = Cache(), Snapshot()
        self.groups = self.cache.pod_groups = PodGroups()
        for number in range(nodes):
            self.cache.set_node(node(f"n{number}"))
        parts = handle()
        object.__setattr__(parts, "pod_groups", self.groups)
        self.tried: list[Status] = []
        self.plugin = OnePerNode()
        self.profile = profile(self.plugin, GangScheduling(parts))
        self.snapshot = snapshot
        self.cycle = GroupCycle(Cycle(snapshot, Nominations()), self.cache, snapshot, self.groups, explain)

    def run(self, group: PodGroup, *names: str) -> GroupOutcome:
        queued = [QueuedPod(member(name), 0.0) for name in names]
        return self.cycle.run(self.profile, group, TEAM, queued)


@pytest.mark.behaviour("GW-27")
@pytest.mark.parametrize(
    ("min_count", "scheduled", "remaining", "code", "text"),
    [
        (3, 0, 3, Code.WAIT, "minCount (3) is not yet satisfied: 0 scheduled, 3 remaining"),
        (3, 1, 1, Code.UNSCHEDULABLE, "minCount (3) cannot be satisfied: 1 scheduled, 1 remaining"),
        (3, 3, 0, Code.SUCCESS, ""),
        (3, 3, 2, Code.SUCCESS, ""),
        # Basic.
        (0, 0, 1, Code.WAIT, "minCount (1) is not yet satisfied: 0 scheduled, 1 remaining"),
        (0, 0, 0, Code.UNSCHEDULABLE, "minCount (1) cannot be satisfied: 0 scheduled, 0 remaining"),
    ],
)
def test_feasibility(min_count: int, scheduled: int, remaining: int, code: Code, text: str) -> None:
    status = GangScheduling(handle()).placement_feasible(pod_group(min_count=min_count), scheduled, remaining)
    assert (status.code, status.message) == (code, text)


@pytest.mark.behaviour("GW-28", "GW-29", "GW-30")
def test_a_gang_that_fits_stays_reserved() -> None:
    parts = Parts(3)
    outcome = parts.run(pod_group(min_count=2), "a", "b", "c", "d")
    assert outcome.status.is_success
    assert [item.queued.info.key.name for item in outcome.placed] == ["a", "b", "c"]
    assert {item.node_name for item in outcome.placed} == {"n0", "n1", "n2"}
    last = outcome.members[3].diagnosis
    assert last is not None
    assert last.message() == "0/3 nodes are available: 3 node is full."
    assert len(parts.groups.scheduled(TEAM)) == 3


@pytest.mark.behaviour("GW-29", "GW-31", "GW-58", "GW-76")
def test_a_gang_that_does_not_fit_leaves_nothing() -> None:
    parts = Parts(2)
    outcome = parts.run(pod_group(min_count=3), "a", "b", "c")
    assert outcome.status.message == "minCount (3) cannot be satisfied: 2 scheduled, 0 remaining"
    assert outcome.status.code is Code.UNSCHEDULABLE
    assert parts.plugin.calls == ["reserve a n0", "reserve b n1", "unreserve b", "unreserve a"]
    assert not parts.groups.scheduled(TEAM)
    assert not any(item.pods for item in parts.snapshot)
    assert parts.cache.assumed_count() == 0


@pytest.mark.behaviour("GW-27")
def test_the_cycle_ends_when_too_few_are_left() -> None:
    parts = Parts(1)
    outcome = parts.run(pod_group(min_count=3), "a", "b", "c")
    assert outcome.status.message == "minCount (3) cannot be satisfied: 1 scheduled, 1 remaining"
    # The third Pod was not tried.
    assert [item.diagnosis is None for item in outcome.members] == [True, False, True]


@pytest.mark.behaviour("GW-28")
def test_an_error_ends_the_cycle_for_all() -> None:
    parts = Parts(3)
    parts.plugin.broken = "b"
    outcome = parts.run(pod_group(min_count=1), "a", "b", "c")
    assert outcome.status.code is Code.ERROR
    assert outcome.status.message == 'running "OnePerNode" filter plugin: broke'
    assert parts.plugin.calls == ["reserve a n0", "unreserve a"]
    assert parts.cache.assumed_count() == 0


@pytest.mark.behaviour("GW-28")
def test_a_pod_that_cannot_be_reserved_is_rejected_alone() -> None:
    parts = Parts(3)
    parts.plugin.refused = "b"
    outcome = parts.run(pod_group(), "a", "b", "c")
    assert outcome.status.is_success
    assert [item.queued.info.key.name for item in outcome.placed] == ["a", "c"]


@pytest.mark.behaviour("GW-29", "GW-34", "GW-35")
def test_success_needs_a_placed_pod_and_counts_scheduled_ones() -> None:
    parts = Parts(2)
    first = parts.run(pod_group(min_count=2), "a", "b")
    assert first.status.is_success
    # A satisfied gang: more Pods are placed as they come, if there is room.
    more = parts.run(pod_group(min_count=2), "c")
    assert more.status.code is Code.UNSCHEDULABLE
    assert more.scheduled == 2
    parts.cache.set_node(node("n9"))
    assert parts.run(pod_group(min_count=2), "c").status.is_success


@pytest.mark.behaviour("GW-37", "GW-25")
def test_the_order_of_different_pods_matters() -> None:
    picky = Parts(2)
    picky.plugin.only = {"b": "n0"}
    # The first Pod takes the only node of the second one.
    assert picky.run(pod_group(min_count=2), "a", "b").status.code is Code.UNSCHEDULABLE
    assert picky.run(pod_group(min_count=2), "b", "a").status.is_success


@pytest.mark.behaviour("GW-26")
@pytest.mark.parametrize(
    ("others", "text"),
    [
        ({}, ""),
        (
            {"schedulerName": "other"},
            "all pods in a single pod group should have the same .spec.schedulerName set, "
            'got: "other" and "default-scheduler"',
        ),
        (
            {"priority": 3},
            "all pods in a single pod group should have the same priority as the pod group's priority, got 3 and 0",
        ),
        (
            {"preemptionPolicy": "Never"},
            "all pods in a single pod group should have the same preemption policy, got Never and PreemptLowerPriority",
        ),
    ],
)
def test_members_must_be_alike(others: dict[str, Any], text: str) -> None:
    usual = {"preemptionPolicy": "PreemptLowerPriority"}
    assert check_members(pod_group(), [member("a", **usual), member("b", **(usual | others))]) == text
    # An absent policy is the default one.
    if not others:
        assert check_members(pod_group(), [member("a", **usual), member("b")]) == ""


# --- Topology. ---


def racked(parts: Parts, racks: Mapping[str, int]) -> Parts:
    """Nodes in racks, and constraints that are followed; the domains that were tried are counted."""
    for rack, count in racks.items():
        for number in range(count):
            parts.cache.set_node(node(f"{rack}-{number}", labels={"rack": rack}))
    tried: list[Status] = []
    parts.cycle = GroupCycle(
        Cycle(parts.snapshot, Nominations()),
        parts.cache,
        parts.snapshot,
        parts.groups,
        explain,
        lambda _name, status: None if status is None else tried.append(status),
    )
    parts.tried = tried
    return parts


def in_rack(min_count: int) -> PodGroup:
    policy = {"gang": {"minCount": min_count}}
    constraints = {"topology": [{"key": "rack"}]}
    metadata = {"name": "team", "namespace": "default", "uid": "uid-team"}
    spec = {"schedulingPolicy": policy, "schedulingConstraints": constraints}
    return from_document(PodGroup, {"metadata": metadata, "spec": spec})


@pytest.mark.behaviour("GW-60", "GW-61", "GW-62", "GW-63")
def test_a_gang_is_placed_in_one_domain() -> None:
    parts = racked(Parts(1), {"a": 1, "b": 2, "c": 3})
    outcome = parts.run(in_rack(2), "p", "q", "r")
    assert outcome.status.is_success
    # The domain where most Pods fit.
    assert {item.node_name for item in outcome.placed} == {"c-0", "c-1", "c-2"}
    assert [status.is_success for status in parts.tried] == [False, True, True]
    assert len(parts.groups.scheduled(TEAM)) == 3
    # More Pods of the gang belong there, too.
    more = parts.run(in_rack(2), "s")
    assert more.status.message.startswith("0/1 placements are available, first placement status: ")


@pytest.mark.behaviour("GW-62")
@pytest.mark.parametrize(
    ("strategy", "rack"),
    [
        pytest.param({}, "b", id="the fuller domain"),
        pytest.param({"placementScoringStrategy": {"type": "LeastAllocated"}}, "a", id="the emptier domain"),
        # Resources that the Pods do not request do not count, so that the domains are equal.
        pytest.param({"scoringStrategy": {"resources": [{"name": "example.com/a"}]}}, "a", id="inherited resources"),
    ],
)
def test_domains_with_as_many_pods_are_compared_by_resources(strategy: dict[str, Any], rack: str) -> None:
    parts = racked(Parts(0), {"a": 2})
    for number in range(2):
        small = {"cpu": "1", "memory": "1Gi", "pods": "10"}
        parts.cache.set_node(node(f"b-{number}", labels={"rack": "b"}, allocatable=small))
    plugins = (parts.plugin, *parts.profile.plugins.values(), NodeResourcesFit(strategy, handle()))
    parts.profile = profile(*{plugin.name: plugin for plugin in plugins}.values())
    assert {item.node_name for item in parts.run(in_rack(2), "p", "q").placed} == {f"{rack}-0", f"{rack}-1"}


@pytest.mark.behaviour("GW-62")
@pytest.mark.parametrize(
    ("feasible", "best"),
    [
        ([(1, 50, "a"), (2, 50, "b")], "b"),
        ([(2, 50, "a"), (2, 50, "b")], "a"),
        # 9 of 10 Pods are 90.
        ([(9, 61, "a"), (10, 50, "b")], "a"),
        ([(9, 60, "a"), (10, 51, "b")], "b"),
        # 2 of 3 Pods are 66.
        ([(2, 35, "a"), (3, 0, "b")], "a"),
        ([(2, 34, "a"), (3, 0, "b")], "a"),
        ([(2, 33, "a"), (3, 0, "b")], "b"),
    ],
)
def test_the_score_of_a_domain(feasible: list[tuple[int, int, str]], best: str) -> None:
    assert best_placement([(count, score, frozenset((name,))) for count, score, name in feasible]) == {best}


@pytest.mark.behaviour("GW-60", "GW-61")
def test_a_gang_that_fits_in_no_domain() -> None:
    parts = racked(Parts(3), {"a": 1, "b": 2})
    outcome = parts.run(in_rack(3), "p", "q", "r")
    text = "minCount (3) cannot be satisfied: 1 scheduled, 1 remaining"
    assert outcome.status.message == f"0/2 placements are available, first placement status: {text}"
    assert parts.cache.assumed_count() == 0
    nowhere = racked(Parts(3), {})
    assert nowhere.run(in_rack(1), "p").status.message == "no feasible placements found"


@pytest.mark.behaviour("GW-28", "GW-61")
def test_an_error_in_one_domain_ends_the_cycle() -> None:
    parts = racked(Parts(0), {"a": 1, "b": 1})
    parts.plugin.broken = "q"
    outcome = parts.run(in_rack(1), "p", "q")
    assert outcome.status.code is Code.ERROR
    assert len(parts.tried) == 1
    assert parts.cache.assumed_count() == 0


@pytest.mark.behaviour("GW-60")
def test_scheduled_pods_of_several_domains_are_an_error() -> None:
    parts = racked(Parts(0), {"a": 1, "b": 1})
    for name, node_name in (("x", "a-0"), ("y", "b-0")):
        parts.cache.assume(member(name).on_node(node_name), node_name)
    outcome = parts.run(in_rack(1), "p")
    assert outcome.status.code is Code.ERROR
    assert outcome.status.message == "scheduled pods of the pod group are not in one domain of rack"


# --- Permit and binding. ---


@pytest.mark.behaviour("GW-32")
def test_permit_waits_for_the_others_and_lets_them_go() -> None:
    parts, groups = handle(), PodGroups()
    waiting, activated = _Waiting(), list[Any]()
    for name, value in (("pod_groups", groups), ("waiting_pods", waiting), ("activate_group", activated.append)):
        object.__setattr__(parts, name, value)
    plugin = GangScheduling(parts)
    groups.set(TEAM, pod_group(min_count=2))
    state = CycleState(member("a"))
    groups.pod_placed(member("a"))
    status, seconds = plugin.permit(state, member("a").pod, "n")
    text = "waiting for minCount pods from a gang to be scheduled"
    assert (status.code, status.message, seconds) == (Code.WAIT, text, 300)
    assert activated == [TEAM]
    groups.pod_placed(member("b"))
    assert plugin.permit(state, member("b").pod, "n") == (SUCCESS, 0.0)
    assert waiting.allowed == ["uid-a", "uid-b"]
    assert plugin.permit(state, pod("alone"), "n") == (SUCCESS, 0.0)


class _Waiting:
    def __init__(self) -> None:
        self.allowed: list[str] = []

    def __len__(self) -> int:
        return 2

    def get(self, uid: str) -> Any:
        outer = self

        class Waiter:
            def allow(self, plugin: str) -> None:
                assert plugin == "GangScheduling"
                outer.allowed.append(uid)

        return Waiter()


class _Clock:
    def monotonic(self) -> float:
        return 400.0

    async def sleep(self, _seconds: float) -> None:
        raise AssertionError


@pytest.mark.behaviour("GW-33")
def test_the_text_of_a_timeout_at_permit() -> None:
    async def run() -> Status:
        waiter = PermitWaiter(pod("a"), "n", {"GangScheduling": PERMIT_SECONDS}, 0.0)
        return await waiter.wait(_Clock())  # type: ignore[arg-type]

    status = asyncio.run(run())
    assert status.message == "rejected due to timeout after waiting 5m0s at plugin GangScheduling"
    assert status.plugin == "GangScheduling"


@pytest.mark.behaviour("GW-58")
@pytest.mark.parametrize(("needed", "fine", "bound"), [(3, 3, True), (3, 2, False), (2, 2, True), (0, 0, True)])
def test_pods_of_a_gang_are_bound_together(needed: int, fine: int, bound: bool) -> None:
    async def run() -> list[bool]:
        gang = GangBinding(needed)
        uids = ["a", "b", "c"]
        for uid in uids:
            gang.expect(uid)
        ready = [asyncio.ensure_future(gang.ready(uid)) for uid in uids[:fine]]
        await asyncio.sleep(0)
        for uid in uids[fine:]:
            gang.ended(uid)
            gang.ended(uid)
        return list(await asyncio.gather(*ready))

    assert asyncio.run(run()) == [bound] * fine


@pytest.mark.behaviour("GW-58")
@pytest.mark.parametrize(("now_needed", "decision"), [(1, True), (2, None), (3, None), (4, False)])
def test_a_gang_may_need_more_or_fewer_pods_before_it_is_decided(now_needed: int, decision: bool | None) -> None:
    async def run() -> None:
        gang = GangBinding(3)
        for uid in ("a", "b", "c"):
            gang.expect(uid)
        ready = gang.ready("a")
        gang.need(now_needed)
        assert (ready.result() if ready.done() else None) is decision
        # A decision is final.
        gang.need(3)
        assert ready.done() == (decision is not None)
        assert gang.is_bound("a") == bool(decision)

    asyncio.run(run())


@pytest.mark.behaviour("GW-58", "PE-33")
@pytest.mark.parametrize("needed", [1, 2])
def test_a_ready_pod_can_be_preempted_until_the_gang_is_bound(needed: int) -> None:
    """Without it the others are not bound, if they are too few then; with it, it is bound like them."""

    async def run() -> None:
        gang = GangBinding(needed)
        gang.expect("a")
        gang.expect("b")
        running = RunningBinding("a", gang)
        ready = gang.ready("a")
        if needed == 1:
            assert await ready
            assert running.cancel("preempted") is None
            # One that is not ready is not bound with the others.
            assert RunningBinding("b", gang).cancel("preempted") is not None
            return
        assert running.cancel("preempted") is running.ended
        assert not await ready
        assert not gang.is_bound("a")
        assert not await gang.ready("b")

    asyncio.run(run())


@pytest.mark.behaviour("GW-58", "PE-33")
def test_a_preempted_pod_does_not_wait_for_the_others() -> None:
    async def run() -> None:
        gang = GangBinding(2)
        for uid in ("a", "b", "c"):
            gang.expect(uid)
        preempted, other = gang.ready("a"), gang.ready("b")
        assert await other
        assert await preempted
        gang = GangBinding(2)
        for uid in ("a", "b", "c"):
            gang.expect(uid)
        preempted = gang.ready("a")
        assert RunningBinding("a", gang).cancel("preempted") is not None
        assert preempted.done()
        other = gang.ready("b")
        assert not other.done()
        assert await gang.ready("c")
        assert await other
        assert not gang.is_bound("a")

    asyncio.run(run())


@pytest.mark.behaviour("GW-58", "PE-33")
def test_a_pod_that_waits_in_pre_bind_is_cancelled_when_its_gang_cannot_be_bound() -> None:
    async def run() -> None:
        gang = GangBinding(2)
        gang.expect("a")
        gang.expect("b")
        running = RunningBinding("b", gang)
        running.cancel_with_gang()
        gang.ended("a")
        assert running.cancelled.is_set()
        assert running.message == NOT_TOGETHER

    asyncio.run(run())


@pytest.mark.behaviour("GW-58")
def test_a_binding_cycle_that_is_stopped_does_not_disturb_the_others() -> None:
    async def run() -> None:
        gang = GangBinding(2)
        gang.expect("a")
        gang.expect("b")

        async def wait() -> bool:
            return await gang.ready("a")

        stopped = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        stopped.cancel()
        await asyncio.wait((stopped,))
        assert await gang.ready("b")

    asyncio.run(run())


@pytest.mark.behaviour("GW-58")
@pytest.mark.parametrize("fine", [True, False])
def test_listeners_hear_the_decision_once(fine: bool) -> None:
    async def run() -> list[bool]:
        gang, heard = GangBinding(1), list[bool]()
        gang.on_decision(heard.append)
        gang.expect("a")
        assert heard == []
        if fine:
            gang.ready("a")
        gang.ended("a")
        gang.ended("a")
        gang.on_decision(heard.append)
        return heard

    assert asyncio.run(run()) == [fine, fine]


# --- The condition. ---

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def with_condition(status: str, reason: str, message: str) -> PodGroup:
    condition = {
        "type": "PodGroupInitiallyScheduled",
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2025-01-01T00:00:00Z",
    }
    metadata = {"name": "team", "namespace": "default", "uid": "u", "generation": 4}
    return from_document(PodGroup, {"metadata": metadata, "spec": {}, "status": {"conditions": [condition]}})


@pytest.mark.behaviour("GW-36")
def test_the_condition_of_a_group() -> None:
    fresh = plan_condition(pod_group(), "Unschedulable", "m", NOW)
    assert fresh is not None
    assert fresh["status"]["conditions"] == [
        {
            "type": "PodGroupInitiallyScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ]
    failing = with_condition("False", "Unschedulable", "m")
    assert plan_condition(failing, "Unschedulable", "m", NOW) is None
    other = plan_condition(failing, "SchedulerError", "x", NOW)
    assert other is not None
    assert other["status"]["conditions"][0]["lastTransitionTime"] == "2025-01-01T00:00:00Z"
    assert other["status"]["conditions"][0]["observedGeneration"] == 4
    done = plan_condition(failing, "Scheduled", "", NOW)
    assert done is not None
    assert done["status"]["conditions"][0]["status"] == "True"
    # Once True it never goes back.
    assert plan_condition(with_condition("True", "Scheduled", ""), "Unschedulable", "m", NOW) is None


def test_known_pods_of_a_group() -> None:
    groups = PodGroups()
    a, b = member("a"), member("b")
    groups.add_pod(a.pod)
    groups.pod_placed(a)
    groups.pod_placed(b)
    assert groups.known_count(TEAM) == 2
    groups.pod_bound(a.pod)
    assert groups.bound_count(TEAM) == 1
    # Of Pods that are being bound together, one may have lost its place.
    groups.gang_bound(TEAM, {a.uid, b.uid, "lost"})
    assert groups.bound_count(TEAM) == 2
    groups.pod_unplaced(b)
    assert groups.bound_count(TEAM) == 1
    groups.pod_unplaced(a)
    assert groups.bound_count(TEAM) == 0
    groups.gang_bound(TEAM, {a.uid})
    assert groups.bound_count(TEAM) == 0
    groups.remove_pod(a.pod)
    assert groups.known_count(TEAM) == 0
    groups.add_pod(pod("alone"))
    groups.pod_placed(PodInfo(pod("alone")))
    assert not groups.scheduled(TEAM)
