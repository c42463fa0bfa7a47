"""PrioritySort and SchedulingGates: the order of the active queue, and who may enter it."""

from __future__ import annotations

from collections.abc import Sequence

from dray.api.types.core_v1 import Pod
from dray.framework.events import UNSCHEDULED_POD, Action, ClusterEvent, EventRegistration
from dray.framework.status import SUCCESS, Status, unresolvable


class PrioritySort:
    """Orders by priority, then by time."""

    name = "PrioritySort"

    def sort_key(self, priority: int, queued_at: float) -> tuple[int, float]:
        """Return a key that is lowest for the next Pod."""
        return -priority, queued_at


class SchedulingGates:
    """Gates Pods with scheduling gates."""

    name = "SchedulingGates"

    def pre_enqueue(self, pod: Pod) -> Status:
        """Reject a Pod that has a gate."""
        gates = pod.spec.scheduling_gates
        if not gates:
            return SUCCESS
        return unresolvable(f"waiting for scheduling gates: [{' '.join(gate.name for gate in gates)}]")

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Return the removal of the last gate."""
        return (EventRegistration(ClusterEvent(UNSCHEDULED_POD, Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED)),)
