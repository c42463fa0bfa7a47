"""Orders the queue: higher priority first, then who came first."""

from __future__ import annotations

from collections.abc import Sequence

from dray.api.types.core_v1 import Pod
from dray.framework.events import UNSCHEDULED_POD, Action, ClusterEvent, EventRegistration
from dray.framework.status import SUCCESS, Status, unresolvable


class PrioritySort:
    """QueueSort only."""

    name = "PrioritySort"

    def sort_key(self, priority: int, queued_at: float) -> tuple[int, float]:
        """Lowest first."""
        return -priority, queued_at


class SchedulingGates:
    """PreEnqueue only."""

    name = "SchedulingGates"

    def pre_enqueue(self, pod: Pod) -> Status:
        """Every gate must be gone."""
        gates = pod.spec.scheduling_gates
        if not gates:
            return SUCCESS
        return unresolvable(f"waiting for scheduling gates: [{' '.join(gate.name for gate in gates)}]")

    def events_to_register(self) -> Sequence[EventRegistration]:
        """The removal of the last gate."""
        return (EventRegistration(ClusterEvent(UNSCHEDULED_POD, Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED)),)
