"""Keeps Pods out of the queue while they have scheduling gates."""

from __future__ import annotations

from collections.abc import Sequence

from dray.api.types.core_v1 import Pod
from dray.framework.events import UNSCHEDULED_POD, Action, ClusterEvent, EventRegistration
from dray.framework.status import SUCCESS, Status, unresolvable


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
