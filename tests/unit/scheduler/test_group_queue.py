"""The queue of groups: what waits for what, gates, order, backoff, and Pods that come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from dray.api.codec import from_document
from dray.api.document import NamespacedName
from dray.api.types.core_v1 import Pod
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.framework.events import EventRegistration
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, Status
from dray.scheduler.group_queue import GroupQueue
from dray.scheduler.plugins.gang_scheduling import GangScheduling
from dray.scheduler.pod_groups import PodGroups
from dray.scheduler.queued_group import QueuedGroup
from tests.unit.scheduler.builders import handle, pod
from tests.unit.scheduler.test_queue import GATES_GONE, FakeRules

TEAM = NamespacedName("default", "team")


def pod_group(name: str = "team", *, min_count: int = 0, priority: int = 0) -> PodGroup:
    policy: Any = {"gang": {"minCount": min_count}} if min_count else {"basic": {}}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return from_document(PodGroup, {"metadata": metadata, "spec": {"schedulingPolicy": policy, "priority": priority}})


def member(name: str, of: str = "team", **words: Any) -> PodInfo:
    return PodInfo(pod(name, schedulingGroup={"podGroupName": of}, **words))


class Parts:
    """A queue with the plugin GangScheduling and scheduling gates."""

    def __init__(self) -> None:
        self.groups = PodGroups()
        rules, parts = _Rules(), handle()
        self.checked = rules.checked
        object.__setattr__(parts, "pod_groups", self.groups)
        rules.gang = GangScheduling(parts)
        self.queue = GroupQueue(lambda _pod: rules, [rules], has_group=lambda key: self.groups.get(key) is not None)

    def add(self, info: PodInfo, now: float = 0.0) -> None:
        self.groups.add_pod(info.pod)
        self.queue.add(info, now)
        key = NamespacedName("default", info.pod.spec.scheduling_group.pod_group_name or "")  # type: ignore[union-attr]
        self.queue.group_changed(key, now)

    def remove(self, info: PodInfo, now: float = 0.0) -> None:
        self.groups.remove_pod(info.pod)
        self.queue.delete(info.uid)
        self.queue.group_changed(TEAM, now)

    def set(self, group: PodGroup | None, key: NamespacedName = TEAM, now: float = 0.0) -> None:
        self.groups.set(key, group)
        self.queue.group_changed(key, now)

    def pop(self, now: float = 0.0) -> QueuedGroup:
        popped = self.queue.pop(now)
        assert isinstance(popped, QueuedGroup)
        return popped


class _Rules(FakeRules):
    gang: GangScheduling

    def __init__(self) -> None:
        super().__init__()
        self.checked: list[str] = []

    def registrations(self) -> Mapping[str, Sequence[EventRegistration]]:
        return {**super().registrations(), "GangScheduling": self.gang.events_to_register()}

    def pre_enqueue(self, pod: Pod) -> Status:
        self.checked.append(pod.metadata.name or "")
        status = super().pre_enqueue(pod)
        if status is not SUCCESS:
            return status
        status = self.gang.pre_enqueue(pod)
        return status if status is SUCCESS else status.with_plugin("GangScheduling")


def names(group: QueuedGroup) -> list[str]:
    return [item.info.key.name for item in group.in_order()]


@pytest.mark.behaviour("GW-18", "GW-19", "GW-24")
def test_pods_wait_for_their_group_and_for_each_other() -> None:
    parts = Parts()
    parts.add(member("a"))
    assert parts.queue.pop(0.0) is None
    assert parts.queue.counts()["incomplete"] == 1
    parts.set(pod_group(min_count=2))
    assert parts.queue.pop(0.0) is None
    assert (parts.queue.counts()["incomplete"], parts.queue.counts()["gated"]) == (0, 1)
    parts.add(member("b"))
    assert parts.queue.counts()["active"] == 2
    parts.set(None)
    assert parts.queue.pop(0.0) is None
    assert parts.queue.counts()["incomplete"] == 2
    parts.set(pod_group(min_count=2))
    assert names(parts.pop()) == ["a", "b"]


@pytest.mark.behaviour("GW-23", "GW-77")
def test_a_lower_count_lets_the_group_go() -> None:
    parts = Parts()
    parts.set(pod_group(min_count=3))
    parts.add(member("a"))
    parts.add(member("b"))
    assert parts.queue.pop(0.0) is None
    parts.set(pod_group(min_count=2))
    assert names(parts.pop()) == ["a", "b"]


@pytest.mark.behaviour("GW-20")
def test_one_gated_pod_gates_the_group() -> None:
    parts = Parts()
    parts.set(pod_group(min_count=2))
    gated = member("b", schedulingGates=[{"name": "g"}])
    parts.add(member("a"))
    parts.add(gated)
    assert parts.queue.pop(0.0) is None
    assert parts.queue.counts()["gated"] == 2
    # Another Pod of the group changes nothing.
    parts.add(member("c"))
    assert parts.queue.pop(0.0) is None
    free = member("b")
    parts.queue.update(free, GATES_GONE, gated.pod, 0.0)
    assert names(parts.pop()) == ["a", "b", "c"]


@pytest.mark.behaviour("GW-20")
def test_a_gated_pod_that_joins_takes_the_group_out_of_the_queue_until_it_is_gone() -> None:
    parts = Parts()
    parts.set(pod_group())
    parts.add(member("a"))
    gated = member("b", schedulingGates=[{"name": "g"}])
    parts.add(gated)
    assert parts.queue.pop(0.0) is None
    parts.remove(gated)
    assert names(parts.pop()) == ["a"]


@pytest.mark.behaviour("GW-20")
def test_activating_a_pod_activates_its_group() -> None:
    parts = Parts()
    parts.set(pod_group())
    parts.add(member("a"))
    group = parts.pop()
    parts.queue.finish_group(group, group.in_order(), 0.0, placed=False)
    assert parts.queue.counts()["backoff"] == 1
    parts.queue.activate("uid-a", 0.0)
    assert parts.queue.counts()["active"] == 1


@pytest.mark.behaviour("GW-21")
def test_order_of_groups_and_of_their_pods() -> None:
    parts = Parts()
    for number, name in enumerate(("late", "low", "early")):
        parts.set(pod_group(name), NamespacedName("default", name))
        time = {"late": 2.0, "low": 0.0, "early": 1.0}[name]
        parts.add(member(f"p{number}", name, priority=0 if name == "low" else 5), time)
    parts.queue.add(PodInfo(pod("alone", priority=5)), 1.5)
    popped = [item.info.key.name for _ in range(4) if (item := parts.queue.pop(3.0)) is not None]
    assert popped == ["p2", "alone", "p0", "p1"]
    parts.set(pod_group())
    for name, time in (("b", 1.0), ("a", 1.0), ("c", 0.0)):
        parts.add(member(name), time)
    parts.add(member("first", priority=9), 5.0)
    group = parts.pop(6.0)
    assert names(group) == ["first", "c", "a", "b"]
    group.members["uid-b"].attempts = 7
    assert names(group) == ["first", "b", "c", "a"]


@pytest.mark.behaviour("GW-22", "GW-19")
def test_after_an_attempt() -> None:
    parts = Parts()
    parts.set(pod_group())
    for name in ("a", "b", "c"):
        parts.add(member(name))
    group = parts.pop()
    # A Pod that arrives meanwhile waits for the end of the attempt.
    parts.add(member("d"), 1.0)
    assert parts.queue.counts()["pending"] == 1
    assert parts.queue.pop(1.0) is None
    # The Pods that are left are tried again at once, and the group keeps its time.
    parts.queue.finish_group(group, [group.members["uid-c"]], 2.0, placed=True)
    again = parts.pop(2.0)
    assert again is group
    assert names(again) == ["c", "d"]
    assert again.queued_at == 0.0
    # Rejected: a backoff of a second, then of two; only then again, even if nothing else is to do.
    parts.queue.finish_group(again, again.in_order(), 3.0, placed=False)
    assert parts.queue.counts()["backoff"] == 2
    assert parts.queue.pop(3.9) is None
    assert parts.queue.next_due() == 4.0
    third = parts.pop(4.0)
    parts.queue.finish_group(third, third.in_order(), 4.0, placed=False)
    assert parts.queue.next_due() == 6.0
    fourth = parts.pop(6.0)
    # An error is never tried early.
    parts.queue.finish_group(fourth, fourth.in_order(), 6.0, placed=False, is_error=True)
    assert parts.queue.pop(6.5) is None
    assert parts.pop(7.0) is group
    parts.queue.finish_group(group, [], 7.0, placed=True)
    assert parts.queue.pending() == ()
    assert parts.queue.next_due() is None


@pytest.mark.behaviour("GW-22")
def test_a_pod_whose_binding_failed_goes_back_to_its_group() -> None:
    parts = Parts()
    parts.set(pod_group(min_count=2))
    parts.add(member("a"))
    parts.add(member("b"))
    group = parts.pop()
    bound = list(group.in_order())
    parts.queue.finish_group(group, [], 0.0, placed=True)
    assert parts.queue.pending() == ()
    parts.queue.reject(bound[0], 1.0, is_error=True)
    parts.queue.reject(bound[1], 1.0, is_error=True)
    assert parts.queue.counts()["backoff"] == 2
    assert names(parts.pop(2.0)) == ["a", "b"]


@pytest.mark.behaviour("GW-25")
def test_deleted_pods_leave_their_group() -> None:
    parts = Parts()
    parts.set(pod_group())
    a, b = member("a"), member("b")
    parts.add(a)
    parts.add(b)
    parts.remove(a)
    group = parts.pop()
    assert names(group) == ["b"]
    parts.remove(b)
    # Deleted while it was tried.
    parts.queue.finish_group(group, [], 0.0, placed=False)
    assert parts.queue.pop(100.0) is None
    assert "uid-b" not in parts.queue
    assert parts.queue.counts() == dict.fromkeys(parts.queue.counts(), 0)


@pytest.mark.behaviour("GW-18")
def test_all_pods_of_a_gated_group_are_reported() -> None:
    parts = Parts()
    parts.set(pod_group(min_count=3))
    parts.add(member("a"))
    parts.add(member("b"))
    assert not parts.queue.gated_to_report(4.0)
    reported = parts.queue.gated_to_report(5.0)
    assert sorted(item.info.key.name for item in reported) == ["a", "b"]
    assert {item.gated_message for item in reported} == {
        "waiting for minCount pods from a gang to appear in scheduling queue"
    }
    assert not parts.queue.gated_to_report(50.0)
    assert all(map(parts.queue.is_gated, reported))
    parts.add(member("c"))
    assert not any(map(parts.queue.is_gated, reported))


@pytest.mark.behaviour("GW-20")
def test_ungating_one_pod_after_the_other_does_not_check_the_whole_group_each_time() -> None:
    parts, count = Parts(), 8
    parts.set(pod_group(min_count=count))
    gated = [member(f"p{number}", schedulingGates=[{"name": "g"}]) for number in range(count)]
    for info in gated:
        parts.groups.add_pod(info.pod)
        parts.queue.add(info, 0.0)
    # New members cannot help one that has gates.
    assert parts.checked == ["p0"]
    parts.checked.clear()
    for info in gated[:-1]:
        parts.queue.update(member(info.key.name), GATES_GONE, info.pod, 0.0)
        assert parts.queue.pop(0.0) is None
    # Each time the one that was gated, and the next one.
    assert parts.checked == [name for number in range(count - 1) for name in (f"p{number}", f"p{number + 1}")]
    parts.checked.clear()
    parts.queue.update(member("p7"), GATES_GONE, gated[-1].pod, 0.0)
    assert parts.checked == ["p7", *(f"p{number}" for number in range(count - 1))]
    assert len(names(parts.pop())) == count


@pytest.mark.behaviour("GW-20")
def test_a_pod_that_is_gated_again_is_found_before_the_group_is_tried() -> None:
    parts = Parts()
    parts.set(pod_group(min_count=2))
    gated = member("b", schedulingGates=[{"name": "g"}])
    parts.add(member("a"))
    parts.add(gated)
    # It cannot get gates again in a cluster; a claim that is deleted is a case like it.
    again = member("a", schedulingGates=[{"name": "g"}])
    parts.queue.update(again, GATES_GONE, member("a").pod, 0.0)
    parts.queue.update(member("b"), GATES_GONE, gated.pod, 0.0)
    assert parts.queue.pop(0.0) is None
    parts.queue.update(member("a"), GATES_GONE, again.pod, 0.0)
    assert names(parts.pop()) == ["a", "b"]
