"""Unsupported hard constraints: a Pod with one stays pending."""

from __future__ import annotations

from typing import Final

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.plugins import PreFilterResult
from dray.framework.status import SKIP, Status, unresolvable

REASON_SPREAD: Final = (
    "topology spread constraints with whenUnsatisfiable DoNotSchedule are not supported by this scheduler"
)
REASON_VOLUMES: Final = "persistent volume claims are not supported by this scheduler"
_DO_NOT_SCHEDULE: Final = "DoNotSchedule"


class PodTopologySpread:
    """Rejects Pods with DoNotSchedule spread constraints; ScheduleAnyway constraints are ignored."""

    name = "PodTopologySpread"

    def pre_filter(self, _state: CycleState, pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Reject Pods with hard spread constraints."""
        constraints = pod.spec.topology_spread_constraints
        if any(item.when_unsatisfiable == _DO_NOT_SCHEDULE for item in constraints):
            return None, unresolvable(REASON_SPREAD)
        return None, SKIP


class VolumeBinding:
    """Rejects Pods with persistent volume claims."""

    name = "VolumeBinding"

    def pre_filter(self, _state: CycleState, pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Reject Pods with persistent volume claims."""
        for volume in pod.spec.volumes:
            if volume.persistent_volume_claim is not None or volume.ephemeral is not None:
                return None, unresolvable(REASON_VOLUMES)
        return None, SKIP
