"""Limits of a Deployment's strategy: surge and unavailable Pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dray.api.types.apps_v1 import Deployment, ReplicaSet, RollingUpdateDeployment
from dray.controllers.pod_control.replicas import scaled_value

RECREATE: Final = "Recreate"
_NOTHING: Final = RollingUpdateDeployment()
_INT32_MAX: Final = 2**31 - 1


def replicas_of(workload: Deployment | ReplicaSet) -> int:
    """Return the desired number of replicas."""
    return 1 if workload.spec.replicas is None else workload.spec.replicas


def is_rolling(deployment: Deployment) -> bool:
    """Return whether the strategy is RollingUpdate."""
    return deployment.spec.strategy.type != RECREATE


def fenceposts(deployment: Deployment) -> tuple[int, int]:
    """Return surge, rounded up, and unavailable, rounded down; if both are 0, one Pod may be unavailable."""
    rolling = deployment.spec.strategy.rolling_update or _NOTHING
    wanted = replicas_of(deployment)
    surge = scaled_value(rolling.max_surge, wanted, round_up=True)
    unavailable = scaled_value(rolling.max_unavailable, wanted, round_up=False)
    return (surge, unavailable) if surge or unavailable else (0, 1)


def max_surge(deployment: Deployment) -> int:
    """Return how many Pods may exist in addition."""
    return fenceposts(deployment)[0] if is_rolling(deployment) else 0


def max_unavailable(deployment: Deployment) -> int:
    """Return how many Pods may be unavailable."""
    wanted = replicas_of(deployment)
    if not is_rolling(deployment) or wanted == 0:
        return 0
    return min(fenceposts(deployment)[1], wanted)


def total_max(deployment: Deployment) -> int:
    """Return how many Pods may exist."""
    return replicas_of(deployment) + max_surge(deployment)


def has_progress_deadline(deployment: Deployment) -> bool:
    """Return whether the Deployment has a progress deadline."""
    return deployment.spec.progress_deadline_seconds not in (None, _INT32_MAX)


def history_limit(deployment: Deployment) -> int | None:
    """Return how many old ReplicaSets are kept; None means all."""
    limit = deployment.spec.revision_history_limit
    return None if limit == _INT32_MAX else limit


def active(replica_sets: Iterable[ReplicaSet]) -> list[ReplicaSet]:
    """Return the ReplicaSets with desired replicas."""
    return [item for item in replica_sets if replicas_of(item) > 0]


def total(replica_sets: Iterable[ReplicaSet]) -> int:
    """Return the sum of desired replicas."""
    return sum(replicas_of(item) for item in replica_sets)


def total_available(replica_sets: Iterable[ReplicaSet]) -> int:
    """Return the sum of available replicas."""
    return sum(item.status.available_replicas or 0 for item in replica_sets)
