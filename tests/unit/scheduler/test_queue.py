"""The queue: order, backoff, hints, gates, and events that arrive while a Pod is tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from dray.api.types.core_v1 import Pod
from dray.framework.events import (
    ANYTHING,
    ASSIGNED_POD,
    NODE,
    UNSCHEDULED_POD,
    Action,
    ClusterEvent,
    EventKeys,
    EventRegistration,
    Hint,
)
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, Status, unresolvable
from dray.scheduler.cluster_events import pod_event
from dray.scheduler.queue import ACTIVE_FEW, UNFINISHED_EVENTS_MAX, WOKEN_AT_ONCE_MAX, Backoff, SchedulingQueue
from tests.unit.scheduler.builders import node, pod_info

NODE_ADD = ClusterEvent(NODE, Action.ADD, "NodeAdd")
POD_DELETE = ClusterEvent(ASSIGNED_POD, Action.DELETE, "AssignedPodDelete")
GATES_GONE = ClusterEvent(UNSCHEDULED_POD, Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED, "UnscheduledPodUpdate")


# Pods and nodes belong together by their labels' values; a node without labels concerns every Pod.
BY_LABEL = EventKeys(
    lambda pod: pod.metadata.labels.values(),
    lambda _old, new: new.metadata.labels.values() if new.metadata.labels else None,
)


class FakeRules:
    """`Fit` waits for any node, `Named` for the node that is called like the Pod, `Gates` for its own."""

    def sort_key(self, priority: int, queued_at: float) -> Any:
        return -priority, queued_at

    def pre_enqueue(self, pod: Pod) -> Status:
        return unresolvable("gated").with_plugin("Gates") if pod.spec.scheduling_gates else SUCCESS

    def registrations(self) -> Mapping[str, Sequence[EventRegistration]]:
        def is_named(pod: Pod, _old: Any, new: Any) -> Hint:
            return Hint.QUEUE if new.metadata.name == pod.metadata.name else Hint.SKIP

        return {
            "Fit": (EventRegistration(NODE_ADD),),
            "Named": (EventRegistration(NODE_ADD, is_named),),
            "Gates": (EventRegistration(GATES_GONE),),
            "Labelled": (EventRegistration(NODE_ADD, self._counted, BY_LABEL),),
        }

    def __init__(self) -> None:
        self.asked: list[str] = []

    def _counted(self, pod: Pod, _old: Any, _new: Any) -> Hint:
        self.asked.append(pod.metadata.name or "")
        return Hint.SKIP


def make_queue(**options: Any) -> SchedulingQueue:
    rules = FakeRules()
    return SchedulingQueue(lambda _pod: rules, [rules], **options)


def popped(queue: SchedulingQueue, now: float = 0.0) -> str:
    queued = queue.pop(now)
    return queued.info.key.name if queued is not None else ""


def rejected(queue: SchedulingQueue, name: str, plugin: str, now: float = 0.0, **words: Any) -> None:
    """A Pod that was tried once and rejected."""
    queue.add(pod_info(name, **words), now)
    queued = queue.pop(now)
    assert queued is not None
    assert queued.info.key.name == name
    queue.reject(queued, now, plugins=(plugin,))


def test_priority_then_time() -> None:
    queue = make_queue()
    queue.add(pod_info("late", priority=5), 2.0)
    queue.add(pod_info("low", priority=1), 0.0)
    queue.add(pod_info("early", priority=5), 1.0)
    assert [popped(queue, 3.0) for _ in range(4)] == ["early", "late", "low", ""]


@pytest.mark.parametrize(("failures", "seconds"), [(0, 0), (1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (500, 10)])
def test_backoff_doubles_to_its_limit(failures: int, seconds: float) -> None:
    assert Backoff().seconds(failures) == seconds


def test_a_rejected_pod_waits_for_an_event_that_helps() -> None:
    queue = make_queue()
    rejected(queue, "a", "Fit")
    queue.requeue_for_event(POD_DELETE, None, None, 100.0)
    assert queue.counts()["unschedulable"] == 1
    queue.requeue_for_event(NODE_ADD, None, node("n"), 100.0)
    assert queue.counts() == {"active": 1, "backoff": 0, "unschedulable": 0, "gated": 0}


def test_hints_are_asked_pod_by_pod() -> None:
    queue = make_queue()
    rejected(queue, "a", "Named")
    rejected(queue, "b", "Named")
    queue.requeue_for_event(NODE_ADD, None, node("b"), 100.0)
    assert [popped(queue, 100.0), popped(queue, 100.0)] == ["b", ""]


@pytest.mark.behaviour("SC-17")
def test_only_pods_with_a_common_key_are_asked_about() -> None:
    rules = FakeRules()
    queue = SchedulingQueue(lambda _pod: rules, [rules])
    rejected(queue, "a", "Labelled", labels={"x": "1", "y": "1"})
    rejected(queue, "b", "Labelled", labels={"x": "2"})
    queue.requeue_for_event(NODE_ADD, None, node("n", labels={"z": "2"}), 1.0)
    assert rules.asked == ["b"]
    queue.requeue_for_event(NODE_ADD, None, node("n", labels={"z": "3"}), 1.0)
    assert rules.asked == ["b"]
    old, new = pod_info("a"), pod_info("a", labels={"x": "3"})
    queue.update(new, ClusterEvent(UNSCHEDULED_POD, Action.UPDATE_POD_LABEL), old.pod, 1.0)
    queue.requeue_for_event(NODE_ADD, None, node("n", labels={"z": "3"}), 1.0)
    assert rules.asked == ["b", "a"]
    queue.requeue_for_event(NODE_ADD, None, node("n"), 1.0)
    assert rules.asked == ["b", "a", "a", "b"]
    queue.delete("uid-a")
    queue.requeue_for_event(NODE_ADD, None, node("n", labels={"z": "3"}), 1.0)
    assert rules.asked == ["b", "a", "a", "b"]


def test_a_helped_pod_still_backs_off_and_is_ready_in_time() -> None:
    queue = make_queue()
    rejected(queue, "a", "Fit")
    queue.requeue_for_event(NODE_ADD, None, node("n"), 0.5)
    assert queue.counts()["backoff"] == 1
    assert queue.next_due() == 1.0
    queue.flush(1.0)
    assert queue.counts()["active"] == 1


def test_with_nothing_else_to_do_a_rejected_pod_is_tried_before_its_backoff_ends() -> None:
    queue = make_queue()
    rejected(queue, "a", "Fit")
    queue.requeue_for_event(NODE_ADD, None, node("n"), 0.1)
    assert popped(queue, 0.1) == "a"


def test_a_broken_attempt_always_waits() -> None:
    queue = make_queue()
    queue.add(pod_info("a"), 0.0)
    queued = queue.pop(0.0)
    assert queued is not None
    queue.reject(queued, 0.0, is_error=True)
    assert queue.counts()["backoff"] == 1
    assert popped(queue, 0.9) == ""
    assert popped(queue, 1.0) == "a"


def test_errors_and_rejections_back_off_separately() -> None:
    queue = make_queue()
    queue.add(pod_info("a"), 0.0)
    for now in (0.0, 1.0, 3.0):
        queued = queue.pop(now)
        assert queued is not None
        queue.reject(queued, now, is_error=True)
    assert queue.next_due() == 7.0
    queued = queue.pop(7.0)
    assert queued is not None
    queue.reject(queued, 7.0, plugins=("Fit",))
    queue.requeue_for_event(NODE_ADD, None, node("n"), 7.0)
    assert queue.next_due() == 8.0


def test_pending_plugins_do_not_make_a_pod_back_off() -> None:
    queue = make_queue()
    queue.add(pod_info("a"), 0.0)
    queued = queue.pop(0.0)
    assert queued is not None
    queue.reject(queued, 0.0, pending=("Fit",))
    queue.requeue_for_event(NODE_ADD, None, node("n"), 0.1)
    assert queue.counts()["active"] == 1


def test_an_event_during_the_attempt_is_not_missed() -> None:
    queue = make_queue()
    queue.add(pod_info("a"), 0.0)
    queued = queue.pop(0.0)
    assert queued is not None
    queue.requeue_for_event(NODE_ADD, None, node("n"), 0.1)
    queue.reject(queued, 0.2, plugins=("Fit",))
    assert queue.counts()["backoff"] == 1
    assert queue.recorded_events == 0


def test_an_event_before_the_attempt_is_no_news() -> None:
    queue = make_queue()
    queue.add(pod_info("first"), 0.0)
    first = queue.pop(0.0)
    queue.requeue_for_event(NODE_ADD, None, node("n"), 0.1)
    rejected(queue, "second", "Fit", 0.2)
    assert queue.counts()["unschedulable"] == 1
    assert first is not None
    queue.done(first.uid)
    assert queue.recorded_events == 0


def test_events_without_interested_plugins_are_not_kept() -> None:
    queue = make_queue()
    queue.add(pod_info("a"), 0.0)
    queue.pop(0.0)
    queue.requeue_for_event(POD_DELETE, None, None, 0.1)
    assert queue.recorded_events == 0


def test_a_change_of_one_pending_pod_says_nothing_about_another() -> None:
    queue = make_queue()
    gated = pod_info("gated", schedulingGates=[{"name": "g"}])
    for name in ("a", "b"):
        queue.add(pod_info(name), 0.0)
    first, second = queue.pop(0.0), queue.pop(0.0)
    assert first is not None
    assert second is not None
    queue.update(first.info, GATES_GONE, gated.pod, 0.1)
    queue.reject(first, 0.2, plugins=("Gates",))
    queue.reject(second, 0.2, plugins=("Gates",))
    assert queue.counts() == {"active": 0, "backoff": 1, "unschedulable": 1, "gated": 0}


def test_the_flush_requeues_pods_that_waited_too_long() -> None:
    queue = make_queue()
    rejected(queue, "a", "Fit")
    queue.flush(300.0)
    assert queue.counts()["unschedulable"] == 1
    queue.flush(300.1)
    assert queue.counts()["active"] == 1


def test_gates_keep_out_and_let_in_without_backoff() -> None:
    queue = make_queue()
    gated = pod_info("a", schedulingGates=[{"name": "g"}])
    queue.add(gated, 0.0)
    assert popped(queue) == ""
    queue.requeue_for_event(NODE_ADD, None, node("n"), 0.0)
    assert queue.counts()["gated"] == 1
    queue.update(pod_info("a"), GATES_GONE, gated.pod, 50.0)
    queued = queue.pop(50.0)
    assert queued is not None
    # The time behind the gate is not the scheduler's.
    assert queued.added_at == 50.0


def test_updates_reach_a_queued_pod() -> None:
    queue = make_queue()
    old = pod_info("a")
    queue.add(old, 0.0)
    new = pod_info("a", labels={"x": "y"})
    queue.update(new, ClusterEvent(UNSCHEDULED_POD, Action.UPDATE_POD_LABEL), old.pod, 0.0)
    queued = queue.pop(0.0)
    assert queued is not None
    assert queued.pod.metadata.labels == {"x": "y"}


CONDITION = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}


@pytest.mark.parametrize(
    ("change", "read_again"),
    [
        pytest.param({"labels": {"x": "2"}}, True, id="labels"),
        pytest.param({"requests": {"cpu": "2"}}, True, id="spec"),
        pytest.param({"status": {"resourceClaimStatuses": [{"name": "gpu"}]}}, True, id="claims"),
        pytest.param({"status": {"nominatedNodeName": "n", **CONDITION}}, False, id="what-the-scheduler-writes"),
    ],
)
def test_keys_follow_a_rejected_pod(change: dict[str, Any], read_again: bool) -> None:
    asked: list[Pod] = []

    def of_pod(pod: Pod) -> list[str]:
        asked.append(pod)
        return [*pod.metadata.labels.values()]

    rules = FakeRules()
    keys = EventKeys(of_pod, BY_LABEL.of_change)
    rules.registrations = lambda: {"Labelled": (EventRegistration(NODE_ADD, None, keys),)}  # type: ignore[method-assign]
    queue = SchedulingQueue(lambda _pod: rules, [rules])
    rejected(queue, "a", "Labelled", labels={"x": "1"})
    old, new = pod_info("a", labels={"x": "1"}), pod_info("a", **{"labels": {"x": "1"}, **change})
    queue.update(new, pod_event(old.pod, new.pod), old.pod, 0.0)
    assert asked[1:] == ([new.pod] if read_again else [])
    queue.requeue_for_event(NODE_ADD, None, node("n", labels=new.pod.metadata.labels), 0.1)
    assert queue.counts()["unschedulable"] == 0


def test_deleted_pods_are_gone_wherever_they_were() -> None:
    queue = make_queue()
    rejected(queue, "unschedulable", "Fit")
    queue.add(pod_info("gated", schedulingGates=[{"name": "g"}]), 0.0)
    queue.add(pod_info("active"), 0.0)
    for name in ("unschedulable", "gated", "active"):
        queue.delete(f"uid-{name}")
    assert sum(queue.counts().values()) == 0
    queue.requeue_for_event(ANYTHING, None, None, 1.0)
    assert popped(queue, 1.0) == ""


def test_activate_brings_a_pod_back_at_once() -> None:
    queue = make_queue()
    rejected(queue, "a", "Fit")
    queue.activate("uid-a", 0.1)
    assert queue.counts()["active"] == 1
    queue.activate("uid-unknown", 0.1)


def test_what_comes_in_is_counted() -> None:
    seen: list[tuple[str, str]] = []
    queue = make_queue(observe_incoming=lambda name, event: seen.append((name, event)))
    rejected(queue, "a", "Fit")
    queue.requeue_for_event(NODE_ADD, None, node("n"), 0.1)
    assert seen == [
        ("active", "UnscheduledPodAdd"),
        ("unschedulable", "ScheduleAttemptFailure"),
        ("backoff", "NodeAdd"),
    ]


def test_a_pod_made_again_under_its_name_is_another_one() -> None:
    queue = make_queue()
    queue.add(pod_info("a", uid="1"), 0.0)
    first = queue.pop(0.0)
    assert first is not None
    queue.delete("1")
    queue.add(pod_info("a", uid="2"), 0.1)
    queue.done("1")
    assert isinstance(queue.pop(0.1).info, PodInfo)  # type: ignore[union-attr]
    assert popped(queue, 20.0) == ""


def test_nothing_is_due_for_a_pod_that_is_no_longer_gated() -> None:
    queue = make_queue()
    gated = pod_info("a", schedulingGates=[{"name": "g"}])
    queue.add(gated, 0.0)
    assert queue.next_due() == 5.0
    queue.update(pod_info("a"), GATES_GONE, gated.pod, 2.0)
    assert queue.next_due() is None
    queue.add(pod_info("b", schedulingGates=[{"name": "g"}]), 3.0)
    assert queue.next_due() == 8.0


@pytest.mark.behaviour("CL-56")
def test_a_gated_pod_is_reported_once_after_a_while() -> None:
    queue = make_queue()
    gated = pod_info("a", schedulingGates=[{"name": "g"}])
    queue.add(gated, 0.0)
    queue.add(pod_info("b", schedulingGates=[{"name": "g"}]), 1.0)
    queue.add(pod_info("c"), 1.0)
    assert (queue.next_due(), queue.gated_to_report(4.9)) == (5.0, [])
    # Ungated in time.
    queue.update(pod_info("b"), GATES_GONE, gated.pod, 2.0)
    (reported,) = queue.gated_to_report(6.0)
    assert (reported.gated_message, queue.is_gated(reported)) == ("gated", True)
    assert queue.gated_to_report(100.0) == []
    # An event that does not help does not report it again.
    queue.update(gated, GATES_GONE, gated.pod, 100.0)
    assert queue.gated_to_report(200.0) == []
    queue.update(pod_info("a"), GATES_GONE, gated.pod, 300.0)
    assert not queue.is_gated(reported)


@pytest.mark.behaviour("PE-32")
def test_a_pod_whose_preemption_failed_is_tried_again_after_a_backoff() -> None:
    """At once would be a busy loop while the API server is down."""
    rules = FakeRules()
    queue = SchedulingQueue(lambda _pod: rules, [rules])
    queue.add(pod_info("a"), 0.0)
    for failures in (1, 2):
        queued = queue.pop(100.0 * failures)
        assert queued is not None
        queue.reject(queued, 100.0 * failures, plugins=["Nobody"])
        queue.retry_later("uid-a", 100.0 * failures)
        assert queue.next_due() == 100.0 * failures + 1.0


@pytest.mark.behaviour("PE-29")
def test_a_pod_that_is_tried_early_is_not_if_it_is_gated_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """A preemptor that an event requeues waits for its evictions, even if nothing else is to be done."""
    rules = FakeRules()
    queue = SchedulingQueue(lambda _pod: rules, [rules])
    queue.add(pod_info("a"), 0.0)
    queued = queue.pop(0.0)
    assert queued is not None
    queue.reject(queued, 0.0, is_error=False, plugins=["Nobody"])
    queue._unschedulable.take("uid-a")
    queue._backoff.push((10.0, 0), queued)
    monkeypatch.setattr(rules, "pre_enqueue", lambda _pod: unresolvable("waiting").with_plugin("Gate"))
    assert queue.pop(1.0) is None
    assert queue.counts()["gated"] == 1
    monkeypatch.undo()
    queue.recheck_gate("uid-a", 1.0)
    assert queue.pop(1.0) is queued


# --- Events that concern many Pods. ---


def crowd(queue: SchedulingQueue, count: int, plugin: str = "Fit") -> list[str]:
    """Pods that were rejected, with rising priorities; return their names, the first in the queue's order first."""
    for number in range(count):
        rejected(queue, f"p{number}", plugin, priority=number)
    return [f"p{number}" for number in reversed(range(count))]


def test_an_event_requeues_so_many_pods_at_once_and_the_others_when_few_are_active() -> None:
    queue = make_queue()
    names = crowd(queue, 2 * WOKEN_AT_ONCE_MAX + 10)
    queue.requeue_for_event(NODE_ADD, None, node("n"), 100.0)
    assert queue.counts()["active"] == WOKEN_AT_ONCE_MAX
    assert queue.next_due() == 0.0
    found = [popped(queue, 100.0) for _ in range(WOKEN_AT_ONCE_MAX - ACTIVE_FEW + 1)]
    assert queue.counts()["active"] == ACTIVE_FEW - 1
    found += [popped(queue, 100.0) for _ in range(len(names) - len(found))]
    assert found == names
    assert (popped(queue, 100.0), queue.has_work_before(None), queue.next_due()) == ("", False, None)


def test_pods_that_are_rejected_again_are_not_requeued_by_the_same_event() -> None:
    queue = make_queue(backoff=Backoff(0.0, 0.0))
    names = crowd(queue, WOKEN_AT_ONCE_MAX + 10)
    queue.requeue_for_event(NODE_ADD, None, node("n"), 100.0)
    tried: list[str] = []
    while (queued := queue.pop(100.0)) is not None:
        tried.append(queued.info.key.name)
        queue.reject(queued, 100.0, plugins=("Fit",))
    assert tried == names
    assert queue.counts()["unschedulable"] == len(names)


def test_pods_that_the_event_does_not_help_do_not_hold_up_the_others() -> None:
    queue = make_queue()
    crowd(queue, WOKEN_AT_ONCE_MAX + 10, "Named")
    queue.requeue_for_event(NODE_ADD, None, node("p0"), 100.0)
    assert queue.counts()["active"] == 0
    assert popped(queue, 100.0) == "p0"


def test_an_event_that_concerns_nobody_any_more_requeues_no_further_pods() -> None:
    rules = FakeRules()
    concerned: list[str] | None = None
    keys = EventKeys(lambda _pod: ("any",), lambda _old, _new: concerned)
    rules.registrations = lambda: {"Labelled": (EventRegistration(NODE_ADD, None, keys),)}  # type: ignore[method-assign]
    queue = SchedulingQueue(lambda _pod: rules, [rules])
    crowd(queue, WOKEN_AT_ONCE_MAX + 10, "Labelled")
    queue.requeue_for_event(NODE_ADD, None, node("n"), 100.0)
    concerned = []
    while queue.pop(100.0) is not None:
        pass
    assert queue.counts()["unschedulable"] == 10


def test_the_flush_requeues_the_others_too() -> None:
    queue = make_queue()
    names = crowd(queue, WOKEN_AT_ONCE_MAX + 10)
    queue.requeue_for_event(NODE_ADD, None, node("n"), 100.0)
    queue.flush(101.0)
    assert queue.counts()["active"] == len(names)


def test_of_many_events_the_oldest_requeues_all_its_pods() -> None:
    queue = make_queue()
    names = crowd(queue, WOKEN_AT_ONCE_MAX + 10, "Named")
    for _ in range(UNFINISHED_EVENTS_MAX + 1):
        queue.requeue_for_event(NODE_ADD, None, node("p0"), 100.0)
    assert queue.counts()["active"] == 1
    assert queue.counts()["unschedulable"] == len(names) - 1
