"""Whatever happens, a pending Pod is in exactly one place, and no event that helps it is missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api.types.core_v1 import Pod
from dray.framework.events import NODE, Action, ClusterEvent, EventRegistration
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, Status
from dray.scheduler.queue import SchedulingQueue
from dray.scheduler.queued_pod import QueuedPod
from tests.unit.scheduler.builders import pod_info

NODE_ADD = ClusterEvent(NODE, Action.ADD, "NodeAdd")
UIDS = [f"u{number}" for number in range(4)]


class Rules:
    def sort_key(self, priority: int, queued_at: float) -> Any:
        return -priority, queued_at

    def pre_enqueue(self, _pod: Pod) -> Status:
        return SUCCESS

    def registrations(self) -> Mapping[str, Sequence[EventRegistration]]:
        return {"Fit": (EventRegistration(NODE_ADD),)}


def info(uid: str) -> PodInfo:
    return pod_info(uid, uid=uid, priority=int(uid[1:]) % 2)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "delete", "pop", "reject", "break", "done", "event", "flush", "time"]),
        st.sampled_from(UIDS),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_no_pod_is_lost_or_doubled(steps: list[tuple[str, str]]) -> None:  # noqa: C901, PLR0915 - one branch for each step
    rules = Rules()
    queue = SchedulingQueue(lambda _pod: rules, [rules])
    now = 0.0
    pending: set[str] = set()
    flying: dict[str, QueuedPod] = {}
    # Pods for which an event came after they were popped.
    helped: set[str] = set()
    for step, uid in steps:
        match step:
            case "add" if uid not in pending and uid not in flying:
                queue.add(info(uid), now)
                pending.add(uid)
            case "delete" if uid in pending:
                queue.delete(uid)
                pending.discard(uid)
            case "pop":
                queued = queue.pop(now)
                if queued is not None:
                    assert queued.uid in pending
                    pending.discard(queued.uid)
                    flying[queued.uid] = queued
                    helped.discard(queued.uid)
            case "reject" | "break" if uid in flying:
                queued = flying.pop(uid)
                queue.reject(queued, now, plugins=("Fit",), is_error=step == "break")
                pending.add(uid)
                parked = {item.uid for item in queue._unschedulable}
                assert (uid in parked) == (step == "reject" and uid not in helped)
            case "done" if uid in flying:
                queue.done(flying.pop(uid).uid)
            case "event":
                queue.requeue_for_event(NODE_ADD, None, None, now)
                helped |= flying.keys()
                assert queue.counts()["unschedulable"] == 0
            case "flush":
                queue.flush(now)
            case "time":
                now += 1.5
        found = [item.uid for item in queue.pending()]
        assert sorted(found) == sorted(pending)
        assert sum(queue.counts().values()) == len(pending)
        if not flying:
            assert queue.recorded_events == 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=30))
def test_pods_come_out_in_order(pods: list[tuple[int, int]]) -> None:
    rules = Rules()
    queue = SchedulingQueue(lambda _pod: rules, [rules])
    for number, (priority, moment) in enumerate(pods):
        queue.add(pod_info(f"p{number}", priority=priority), float(moment))
    out = [queue.pop(100.0) for _ in pods]
    keys = [(-queued.info.priority, queued.queued_at) for queued in out if queued is not None]
    assert len(keys) == len(pods)
    assert keys == sorted(keys)
