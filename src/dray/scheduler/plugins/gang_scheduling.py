"""GangScheduling: the Pods of a PodGroup are placed together, or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dray.api.pod_groups import group_key_of, group_name_of, min_count
from dray.api.types.core_v1 import Pod
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.framework.cycle_state import CycleState
from dray.framework.events import POD, POD_GROUP, Action, ClusterEvent, EventRegistration, Hint
from dray.framework.plugins import PreFilterResult
from dray.framework.status import SKIP, SUCCESS, Code, Status, unresolvable, unschedulable
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.arguments import Arguments

NAME: Final = "GangScheduling"
NOT_ENOUGH: Final = "waiting for minCount pods from a gang to appear in scheduling queue"
NOT_SCHEDULED: Final = "waiting for minCount pods from a gang to be scheduled"
# How long a Pod waits at Permit for the others of its gang.
PERMIT_SECONDS: Final = 300.0
_NOT_ENOUGH: Final = unresolvable(NOT_ENOUGH)
_WAIT: Final = Status(Code.WAIT, (NOT_SCHEDULED,))


class GangScheduling:
    """Implements PreEnqueue, PlacementFeasible and Permit."""

    name = NAME

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._groups = handle.pod_groups

    def pre_enqueue(self, pod: Pod) -> Status:
        """Keep a Pod out of the queue until its group exists and, if it is a gang, has enough Pods."""
        key = group_key_of(pod)
        if key is None:
            return SUCCESS
        group = self._groups.get(key)
        if group is None:
            return unresolvable(f'waiting for pods\'s pod group "{key.name}" to appear in scheduling queue')
        needed = min_count(group)
        if needed > 1 and self._groups.known_count(key) < needed:
            return _NOT_ENOUGH
        return SUCCESS

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Return new Pods of the group, and the group itself."""
        return (
            EventRegistration(ClusterEvent(POD, Action.ADD), _pod_added),
            EventRegistration(ClusterEvent(POD_GROUP, Action.ADD | Action.UPDATE), _group_changed),
        )

    def pre_filter(self, state: CycleState, _pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Keep the Pods of a group to the nodes of the placement that is tried."""
        nodes = None if state.group is None else state.group.nodes_of(state.pod_info.uid)
        return (None, SKIP) if nodes is None else (PreFilterResult(nodes), SUCCESS)

    def placement_feasible(self, group: PodGroup, scheduled: int, remaining: int) -> Status:
        """Return whether enough Pods of a gang have a place, or can still get one."""
        needed = min_count(group)
        counts = f"{scheduled} scheduled, {remaining} remaining"
        if scheduled + remaining < needed:
            return unschedulable(f"minCount ({needed}) cannot be satisfied: {counts}")
        if scheduled < needed:
            return Status(Code.WAIT, (f"minCount ({needed}) is not yet satisfied: {counts}",))
        return SUCCESS

    def permit(self, _state: CycleState, pod: Pod, _node_name: str) -> tuple[Status, float]:
        """Let the Pods of a gang wait until enough of them are scheduled; then let all that wait go on."""
        key = group_key_of(pod)
        group = None if key is None else self._groups.get(key)
        if key is None or group is None or group.spec.scheduling_policy.gang is None:
            return SUCCESS, 0.0
        scheduled = self._groups.scheduled(key)
        if len(scheduled) < min_count(group):
            self._handle.activate_group(key)
            return _WAIT, PERMIT_SECONDS
        waiting_pods = self._handle.waiting_pods
        # The Pods of one group cycle are all scheduled when the first of them is permitted: most often none waits.
        for uid in scheduled if len(waiting_pods) else ():
            waiting = waiting_pods.get(uid)
            if waiting is not None:
                waiting.allow(NAME)
        return SUCCESS, 0.0


def _pod_added(pod: Pod, _old: Pod | None, new: Pod | None) -> Hint:
    """Queue the Pods of the same group."""
    return Hint.QUEUE if new is not None and group_key_of(new) == group_key_of(pod) else Hint.SKIP


def _group_changed(pod: Pod, old: PodGroup | None, new: PodGroup | None) -> Hint:
    """Queue the Pods of a new group, or of one that needs fewer Pods now."""
    if new is None or new.metadata.namespace != pod.metadata.namespace or new.metadata.name != group_name_of(pod):
        return Hint.SKIP
    return Hint.QUEUE if old is None or min_count(new) < min_count(old) else Hint.SKIP


class Disabled:
    """Used while the gate GenericWorkload is off: groups are ignored."""

    name = NAME


def make_gang_scheduling(given: Mapping[str, Any], handle: Handle) -> GangScheduling | Disabled:
    """Return the plugin, or its replacement if the feature is disabled."""
    Arguments(given).end()
    return GangScheduling(handle) if handle.features.enabled("GenericWorkload") else Disabled()
