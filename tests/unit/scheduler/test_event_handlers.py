"""What the informers say, as it reaches queue, cache and nominations; and plugins that misbehave."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.events import ASSIGNED_POD, NODE, Action, ClusterEvent, EventRegistration, Hint
from dray.framework.plugins import PRE_BIND
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, Code, Status
from dray.scheduler import queue as queue_module
from dray.scheduler.cache import Cache
from dray.scheduler.event_handlers import EventHandlers
from dray.scheduler.nominations import Nominations
from dray.scheduler.plugins.queueing import PrioritySort
from dray.scheduler.profile import Profile
from dray.scheduler.queue import SchedulingQueue
from tests.unit.scheduler.builders import node, node_info, pod, pod_info, state


class Broken:
    name = "Broken"

    def pre_enqueue(self, pod: Pod) -> Status:
        if pod.metadata.name == "bad":
            raise ValueError("bug")
        return SUCCESS

    def filter(self, _state: CycleState, _pod: Pod, _node: Any) -> Status:
        return SUCCESS

    async def pre_bind(self, _state: CycleState, _pod: Pod, _node: str) -> Status:
        return Status(Code.PENDING)

    def events_to_register(self) -> list[EventRegistration]:
        def hint(_pod: Pod, _old: Any, _new: Any) -> Hint:
            raise ValueError("bug")

        return [
            EventRegistration(ClusterEvent(NODE, Action.ADD), hint),
            EventRegistration(ClusterEvent(ASSIGNED_POD, Action.DELETE)),
        ]


PLUGIN = Broken()
PROFILE = Profile(
    "default-scheduler",
    {"queueSort": [PrioritySort()], "preEnqueue": [PLUGIN], "filter": [PLUGIN], "preBind": [PLUGIN]},
    {},
)


class Parts:
    """A follower with everything it keeps."""

    def __init__(self) -> None:
        self.queue = SchedulingQueue(lambda _pod: PROFILE, [PROFILE])
        self.cache = Cache()
        self.nominations = Nominations()
        self.follower = EventHandlers(self.queue, self.cache, self.nominations, {"default-scheduler"}, lambda: 0.0)

    def pending(self) -> list[str]:
        return [queued.info.key.name for queued in self.queue.pending()]


def test_a_pods_life() -> None:
    parts = Parts()
    waiting, placed = pod("a"), pod("a", node="n")
    parts.follower.node_changed(None, node("n"))
    parts.follower.pod_changed(None, waiting)
    assert parts.pending() == ["a"]
    parts.follower.pod_changed(waiting, placed)
    assert (parts.pending(), parts.cache.node_of("uid-a")) == ([], "n")
    parts.follower.pod_changed(placed, None)
    assert parts.cache.pod_count() == 0


def test_others_pods_are_not_queued_but_take_room() -> None:
    parts = Parts()
    parts.follower.pod_changed(None, pod("a", schedulerName="other"))
    assert parts.pending() == []
    parts.follower.pod_changed(None, pod("b", schedulerName="other", node="n"))
    assert parts.cache.node_of("uid-b") == "n"


def test_a_pod_that_is_being_bound_is_not_queued_again() -> None:
    parts = Parts()
    waiting = pod("a")
    parts.cache.assume(PodInfo(waiting), "n")
    parts.follower.pod_changed(waiting, pod("a", labels={"x": "y"}))
    assert parts.pending() == []


def test_an_assumed_pod_whose_binding_was_never_seen_is_let_go_when_it_is_gone() -> None:
    parts = Parts()
    waiting = pod("a")
    parts.cache.assume(PodInfo(waiting), "n")
    parts.follower.pod_changed(waiting, None)
    assert parts.cache.pod_count() == 0


def test_nominations_follow_the_status() -> None:
    parts = Parts()
    nominated = pod("a", status={"nominatedNodeName": "n"})
    parts.follower.pod_changed(None, nominated)
    assert parts.nominations.respected_by(pod_info("b"), node_info("n"))
    parts.follower.pod_changed(nominated, pod("a"))
    assert not parts.nominations


def test_a_hint_that_breaks_queues_the_pod(caplog: pytest.LogCaptureFixture) -> None:
    parts = Parts()
    parts.queue.add(pod_info("a"), 0.0)
    queued = parts.queue.pop(0.0)
    assert queued is not None
    parts.queue.reject(queued, 0.0, plugins=("Broken",))
    parts.follower.node_changed(None, node("n"))
    assert parts.queue.counts()["unschedulable"] == 0
    assert "queueing hint of plugin Broken" in caplog.text


def test_a_gate_that_breaks_holds_up_the_pod_alone(caplog: pytest.LogCaptureFixture) -> None:
    parts = Parts()
    parts.follower.pod_changed(None, pod("bad"))
    parts.follower.pod_changed(None, pod("good"))
    assert parts.queue.counts() == {"active": 1, "backoff": 0, "unschedulable": 0, "gated": 1}
    assert "PreEnqueue plugin Broken" in caplog.text


def test_more_events_than_can_be_recorded_requeue_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "EVENTS_RECORDED_MAX", 2)
    parts = Parts()
    parts.queue.add(pod_info("a"), 0.0)
    queued = parts.queue.pop(0.0)
    assert queued is not None
    for name in ("x", "y", "z"):
        parts.follower.node_changed(None, node(name))
    assert parts.queue.recorded_events == 2
    parts.queue.reject(queued, 0.0, plugins=("Broken",))
    assert parts.queue.counts()["backoff"] == 1


async def test_a_timed_profile_does_the_same_and_tells_how_long_it_took() -> None:
    observed: list[tuple[str, str, str, float]] = []
    moments = iter(range(100))
    twin = PROFILE.timed(lambda: float(next(moments)), lambda *call: observed.append(call))
    assert twin.timed_filter[0].filter(state(pod("a")), pod("a"), node_info()) is SUCCESS
    assert (await twin.at(PRE_BIND)[0].pre_bind(state(pod("a")), pod("a"), "n")).code is Code.PENDING
    assert observed == [("Broken", "Filter", "Success", 1.0), ("Broken", "PreBind", "Pending", 1.0)]
    assert twin.registrations().keys() == PROFILE.registrations().keys()


@pytest.mark.behaviour("PE-37")
def test_a_nomination_in_memory_survives_updates_that_do_not_mention_it() -> None:
    parts = Parts()
    waiting = pod("a")
    parts.follower.pod_changed(None, waiting)
    parts.follower.nominate(PodInfo(waiting), "n")
    labelled = pod("a", labels={"x": "y"})
    parts.follower.pod_changed(waiting, labelled)
    assert parts.nominations.on("n")[0].pod is labelled
    parts.follower.pod_changed(labelled, pod("a", node="n"))
    assert not parts.nominations


def test_keys_are_read_again_when_a_nomination_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts()
    changed: list[str] = []
    monkeypatch.setattr(parts.queue, "keys_changed", changed.append)
    for node_name, expected in (("n", 0), ("n", 0), ("m", 1), ("", 2), ("", 2)):
        parts.follower.nominate(pod_info("a"), node_name)
        assert changed == ["uid-a"] * expected


@pytest.mark.behaviour("PE-41")
@pytest.mark.parametrize(("priority", "requeued"), [(5, True), (6, False)])
@pytest.mark.parametrize(
    "after",
    [
        pytest.param(pod("a", priority=5), id="cleared"),
        pytest.param(pod("a", priority=5, status={"nominatedNodeName": "m"}), id="moved"),
        pytest.param(None, id="deleted"),
    ],
)
def test_who_left_room_for_a_nomination_is_requeued_when_it_ends(
    priority: int, *, requeued: bool, after: Pod | None
) -> None:
    parts = Parts()
    nominated = pod("a", priority=5, status={"nominatedNodeName": "n"})
    parts.queue.add(pod_info("b", priority=priority), 0.0)
    queued = parts.queue.pop(0.0)
    assert queued is not None
    parts.queue.reject(queued, 0.0, plugins=["Broken"])
    parts.follower.pod_changed(None, nominated)
    assert parts.queue.counts()["backoff"] == 0
    parts.follower.pod_changed(nominated, after)
    assert (parts.queue.counts()["backoff"] == 1) is requeued
