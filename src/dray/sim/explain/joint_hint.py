"""Says of a pending Pod of a PodGroup whether its group fits if its Pods are placed together."""

from __future__ import annotations

from typing import Final

from dray.api.features import FeatureGates
from dray.api.pod_groups import group_key_of
from dray.api.types.core_v1 import Pod
from dray.sim.capacity.addition import PlanOptions
from dray.sim.capacity.joint import JointPlanner
from dray.sim.snapshot import Snapshot
from dray.sim.trial_cluster import TrialCluster

# Larger groups take too long for an explanation; `dray plan --joint` has no limit.
PODS_MAX: Final = 64
_SECONDS: Final = 2.0


def joint_notes(snapshot: Snapshot, pod: Pod, gates: FeatureGates) -> tuple[str, ...]:
    """Return whether the pending Pods of the group fit together, if they do not one by one."""
    key = group_key_of(pod)
    if key is None or pod.spec.node_name:
        return ()
    cluster = TrialCluster(snapshot, gates=gates)
    pods = [item for item in cluster.pending if group_key_of(item.pod) == key]
    if not pods or len(pods) > PODS_MAX:
        return ()
    plan = JointPlanner(cluster, PlanOptions(seconds=_SECONDS)).plan(pods)
    if not plan.pending_alone:
        return ()
    group = f"the {len(pods)} pending Pods of PodGroup {key.name}"
    if not plan.unplaced:
        where = f"dray plan --joint --group {key.name} shows where"
        return (f"one by one {group} do not fit, but placed together they do: {where}",)
    if plan.is_proved:
        return (f"{group} do not fit on these nodes together, however they are placed",)
    return ()
