"""Hard constraints that this scheduler does not know: a Pod that has one is kept pending, never misplaced."""

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
    """Refuses hard spreading; soft spreading is a wish that is not granted."""

    name = "PodTopologySpread"

    def pre_filter(self, _state: CycleState, pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Only Pods without hard constraints pass."""
        constraints = pod.spec.topology_spread_constraints
        if any(item.when_unsatisfiable == _DO_NOT_SCHEDULE for item in constraints):
            return None, unresolvable(REASON_SPREAD)
        return None, SKIP


class VolumeBinding:
    """Refuses volumes that must be found a place first."""

    name = "VolumeBinding"

    def pre_filter(self, _state: CycleState, pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Only Pods without claims on volumes pass."""
        for volume in pod.spec.volumes:
            if volume.persistent_volume_claim is not None or volume.ephemeral is not None:
                return None, unresolvable(REASON_VOLUMES)
        return None, SKIP
