"""A group is tried as soon as it is complete and none of its Pods is gated, whatever came before and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api.types.core_v1 import Pod
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.framework.events import EventRegistration
from dray.framework.status import SUCCESS, Status
from dray.scheduler.cache import Cache
from dray.scheduler.event_handlers import EventHandlers
from dray.scheduler.group_queue import GroupQueue
from dray.scheduler.nominations import Nominations
from dray.scheduler.plugins.gang_scheduling import NAME, GangScheduling
from dray.scheduler.pod_groups import PodGroups
from dray.scheduler.queued_group import QueuedGroup
from tests.unit.scheduler.builders import handle, pod
from tests.unit.scheduler.test_group_queue import TEAM, pod_group
from tests.unit.scheduler.test_queue import FakeRules

PODS = 5
ACTIONS = ("add", "add gated", "ungate", "delete", "bind", "group", "no group", "try")
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, PODS - 1)), max_size=60)


class Rules(FakeRules):
    """Scheduling gates and gangs."""

    def __init__(self, gang: GangScheduling) -> None:
        super().__init__()
        self._gang = gang

    def pre_enqueue(self, pod: Pod) -> Status:
        status = super().pre_enqueue(pod)
        return status if status is not SUCCESS else self._gang.pre_enqueue(pod).with_plugin(NAME)

    def registrations(self) -> Mapping[str, Sequence[EventRegistration]]:
        return {**super().registrations(), NAME: self._gang.events_to_register()}


class World:
    """A group and its Pods, as the informers show them."""

    def __init__(self) -> None:
        self.groups, self.cache = PodGroups(), Cache()
        self.cache.pod_groups = self.groups
        parts = handle()
        object.__setattr__(parts, "pod_groups", self.groups)
        rules = Rules(GangScheduling(parts))
        self.queue = GroupQueue(lambda _pod: rules, [rules], has_group=lambda key: self.groups.get(key) is not None)
        self.now = 0.0
        self._handlers = EventHandlers(
            self.queue, self.cache, Nominations(), {"default-scheduler"}, lambda: self.now, self.groups
        )
        self.group: PodGroup | None = None
        self.pods: dict[int, Pod] = {}

    def put(self, number: int, **words: Any) -> None:
        new = pod(f"p{number}", schedulingGroup={"podGroupName": TEAM.name}, **words)
        old = self.pods.get(number)
        self.pods[number] = new
        self._handlers.pod_changed(old, new)

    def delete(self, number: int) -> None:
        self._handlers.pod_changed(self.pods.pop(number), None)

    def set_group(self, group: PodGroup | None) -> None:
        if group is None and self.group is None:
            return
        old, self.group = self.group, group
        self._handlers.group_changed(old, group)

    def attempt(self) -> None:
        """Try the group in vain."""
        popped = self.queue.pop(self.now)
        if popped is not None:
            assert isinstance(popped, QueuedGroup)
            self.queue.finish_group(popped, popped.in_order(), self.now, placed=False)

    def step(self, name: str, number: int) -> None:
        self.now += 1.0
        known = self.pods.get(number)
        pending = known is not None and not known.spec.node_name
        match name:
            case "add" if known is None:
                self.put(number)
            case "add gated" if known is None:
                self.put(number, schedulingGates=[{"name": "g"}])
            case "ungate" if pending:
                self.put(number)
            case "delete" if known is not None:
                self.delete(number)
            case "bind" if pending:
                self.put(number, node="n")
            case "group":
                self.set_group(pod_group(min_count=number + 1))
            case "no group":
                self.set_group(None)
            case "try":
                self.attempt()

    def check(self) -> None:
        pending = [item for item in self.pods.values() if not item.spec.node_name]
        is_gated = any(item.spec.scheduling_gates for item in pending)
        needed = 1 if self.group is None else self.group.spec.scheduling_policy.gang.min_count  # type: ignore[union-attr]
        counts = self.queue.counts()
        waiting = counts["active"] + counts["backoff"]
        assert sum(counts.values()) == len(pending)
        if is_gated or self.group is None:
            assert not waiting
        elif len(self.pods) >= needed:
            # With fewer Pods the group waits, unless it was complete before.
            assert waiting == len(pending)


@settings(max_examples=400, deadline=None)
@given(STEPS)
def test_a_complete_group_without_gates_is_queued(steps: list[tuple[str, int]]) -> None:
    world = World()
    for name, number in steps:
        world.step(name, number)
        world.check()
