"""What a Deployment reports: its numbers, whether it is available, whether it gets on; pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias

import msgspec

from dray.api.types.apps_v1 import Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet
from dray.controllers.deployment.strategy import (
    has_progress_deadline,
    max_unavailable,
    replicas_of,
    total,
    total_available,
)

PROGRESSING: Final = "Progressing"
AVAILABLE: Final = "Available"
REPLICA_FAILURE: Final = "ReplicaFailure"
NEW_AVAILABLE: Final = "NewReplicaSetAvailable"
TIMED_OUT: Final = "ProgressDeadlineExceeded"
FOUND: Final = "FoundNewReplicaSet"
CREATED: Final = "NewReplicaSetCreated"
UPDATED: Final = "ReplicaSetUpdated"
CREATE_FAILED: Final = "ReplicaSetCreateError"
PAUSED: Final = "DeploymentPaused"
RESUMED: Final = "DeploymentResumed"
TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"

Conditions: TypeAlias = tuple[DeploymentCondition, ...]


def find(conditions: Conditions, kind: str) -> DeploymentCondition | None:
    """The condition of that type."""
    return next((item for item in conditions if item.type == kind), None)


def without(conditions: Conditions, kind: str) -> Conditions:
    """The others."""
    return tuple(item for item in conditions if item.type != kind)


def condition(kind: str, status: str, reason: str, message: str, now: datetime) -> DeploymentCondition:
    """A new condition."""
    now = now.replace(microsecond=0)
    return DeploymentCondition(
        type=kind, status=status, reason=reason, message=message, last_update_time=now, last_transition_time=now
    )


def put(conditions: Conditions, new: DeploymentCondition) -> Conditions:
    """Set a condition; one with the same status and reason stays as it is."""
    current = find(conditions, new.type)
    if current is not None and (current.status, current.reason) == (new.status, new.reason):
        return conditions
    if current is not None and current.status == new.status:
        new = msgspec.structs.replace(new, last_transition_time=current.last_transition_time)
    return (*without(conditions, new.type), new)


def with_pause(deployment: Deployment, conditions: Conditions, now: datetime) -> Conditions:
    """Tell of pausing and resuming; a deadline that was missed stays told."""
    current = find(conditions, PROGRESSING)
    if not has_progress_deadline(deployment) or (current is not None and current.reason == TIMED_OUT):
        return conditions
    told = current is not None and current.reason == PAUSED
    if deployment.spec.paused and not told:
        return put(conditions, condition(PROGRESSING, UNKNOWN, PAUSED, "Deployment is paused", now))
    if not deployment.spec.paused and told:
        return put(conditions, condition(PROGRESSING, UNKNOWN, RESUMED, "Deployment is resumed", now))
    return conditions


def count(
    deployment: Deployment,
    conditions: Conditions,
    replica_sets: Sequence[ReplicaSet],
    new: ReplicaSet | None,
    now: datetime,
) -> DeploymentStatus:
    """The numbers, and whether enough is available."""
    available = total_available(replica_sets)
    if available >= replicas_of(deployment) - max_unavailable(deployment):
        state = condition(AVAILABLE, TRUE, "MinimumReplicasAvailable", "Deployment has minimum availability.", now)
    else:
        state = condition(
            AVAILABLE, FALSE, "MinimumReplicasUnavailable", "Deployment does not have minimum availability.", now
        )
    return DeploymentStatus(
        observed_generation=deployment.metadata.generation,
        replicas=sum(item.status.replicas for item in replica_sets) or None,
        updated_replicas=(new.status.replicas or None) if new is not None else None,
        ready_replicas=sum(item.status.ready_replicas or 0 for item in replica_sets) or None,
        available_replicas=available or None,
        unavailable_replicas=max(total(replica_sets) - available, 0) or None,
        terminating_replicas=sum(item.status.terminating_replicas or 0 for item in replica_sets),
        collision_count=deployment.status.collision_count,
        conditions=put(conditions, state),
    )


def is_complete(deployment: Deployment, status: DeploymentStatus) -> bool:
    """Whether all Pods wanted are there, new and available."""
    wanted = replicas_of(deployment)
    numbers = (status.updated_replicas or 0, status.replicas or 0, status.available_replicas or 0)
    observed = (status.observed_generation or 0) >= (deployment.metadata.generation or 0)
    return observed and numbers == (wanted, wanted, wanted)


def _gets_on(before: DeploymentStatus, after: DeploymentStatus) -> bool:
    def old_ones(status: DeploymentStatus) -> int:
        return (status.replicas or 0) - (status.updated_replicas or 0)

    return (
        (after.updated_replicas or 0) > (before.updated_replicas or 0)
        or old_ones(after) < old_ones(before)
        or (after.ready_replicas or 0) > (before.ready_replicas or 0)
        or (after.available_replicas or 0) > (before.available_replicas or 0)
    )


def _has_timed_out(deployment: Deployment, conditions: Conditions, now: datetime) -> bool:
    current = find(conditions, PROGRESSING)
    if current is None or current.reason == NEW_AVAILABLE:
        return False
    return current.reason == TIMED_OUT or _deadline(deployment, current) < now


def _deadline(deployment: Deployment, current: DeploymentCondition) -> datetime:
    assert current.last_update_time is not None
    return current.last_update_time + timedelta(seconds=deployment.spec.progress_deadline_seconds or 0)


def with_progress(
    deployment: Deployment,
    status: DeploymentStatus,
    replica_sets: Sequence[ReplicaSet],
    new: ReplicaSet | None,
    now: datetime,
) -> DeploymentStatus:
    """The status with whether the Deployment gets on, and why its ReplicaSets fail."""
    conditions = status.conditions
    if not has_progress_deadline(deployment):
        conditions = without(conditions, PROGRESSING)
    elif not _was_complete(status):
        conditions = _progress(deployment, status, new, now)
    failure = _failure(replica_sets, new)
    conditions = without(conditions, REPLICA_FAILURE) if failure is None else put(conditions, failure)
    return msgspec.structs.replace(status, conditions=conditions)


def _was_complete(status: DeploymentStatus) -> bool:
    """A complete Deployment that loses Pods is not progressing: its ReplicaSet looks after them."""
    current = find(status.conditions, PROGRESSING)
    return status.replicas == status.updated_replicas and current is not None and current.reason == NEW_AVAILABLE


def _progress(deployment: Deployment, status: DeploymentStatus, new: ReplicaSet | None, now: datetime) -> Conditions:
    subject = f'Deployment "{deployment.metadata.name}"' if new is None else f'ReplicaSet "{new.metadata.name}"'
    conditions = status.conditions
    if is_complete(deployment, status):
        message = f"{subject} has successfully progressed."
        return put(conditions, condition(PROGRESSING, TRUE, NEW_AVAILABLE, message, now))
    if _gets_on(deployment.status, status):
        state = condition(PROGRESSING, TRUE, UPDATED, f"{subject} is progressing.", now)
        current = find(conditions, PROGRESSING)
        if current is not None and current.status == TRUE:
            state = msgspec.structs.replace(state, last_transition_time=current.last_transition_time)
        # Each step counts anew, so the time of the last one is told even when nothing else changes.
        return (*without(conditions, PROGRESSING), state)
    if _has_timed_out(deployment, conditions, now):
        message = f"{subject} has timed out progressing."
        return put(conditions, condition(PROGRESSING, FALSE, TIMED_OUT, message, now))
    return conditions


def _failure(replica_sets: Sequence[ReplicaSet], new: ReplicaSet | None) -> DeploymentCondition | None:
    """The new ReplicaSet's failure, else any other's."""
    for item in ((new,) if new is not None else ()) + tuple(replica_sets):
        for state in item.status.conditions:
            if state.type == REPLICA_FAILURE:
                return DeploymentCondition(
                    type=REPLICA_FAILURE,
                    status=state.status,
                    reason=state.reason,
                    message=state.message,
                    last_update_time=state.last_transition_time,
                    last_transition_time=state.last_transition_time,
                )
    return None


def stuck_in_seconds(deployment: Deployment, status: DeploymentStatus, now: datetime) -> float | None:
    """When to look whether the deadline was missed; None when there is nothing to miss."""
    current = find(status.conditions, PROGRESSING)
    if current is None or not has_progress_deadline(deployment) or is_complete(deployment, status):
        return None
    if current.reason == TIMED_OUT:
        return None
    # The times told are whole seconds.
    return max((_deadline(deployment, current) - now).total_seconds(), 0.0) + 1.0
