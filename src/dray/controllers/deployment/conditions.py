"""Status and conditions of a Deployment: counts, Available, Progressing, ReplicaFailure. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from dray.api.timestamps import seconds_after
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
    """Return the condition of that type."""
    return next((item for item in conditions if item.type == kind), None)


def without(conditions: Conditions, kind: str) -> Conditions:
    """Return the conditions of other types."""
    return tuple(item for item in conditions if item.type != kind)


def condition(kind: str, status: str, reason: str, message: str, now: datetime) -> DeploymentCondition:
    """Return a new condition."""
    now = now.replace(microsecond=0)
    return DeploymentCondition(
        type=kind, status=status, reason=reason, message=message, last_update_time=now, last_transition_time=now
    )


def put(conditions: Conditions, new: DeploymentCondition) -> Conditions:
    """Set a condition, unless it has the same status and reason already."""
    current = find(conditions, new.type)
    if current is not None and (current.status, current.reason) == (new.status, new.reason):
        return conditions
    if current is not None and current.status == new.status:
        new = msgspec.structs.replace(new, last_transition_time=current.last_transition_time)
    return (*without(conditions, new.type), new)


def with_pause(deployment: Deployment, conditions: Conditions, now: datetime) -> Conditions:
    """Set the condition Progressing after pausing and resuming, unless the deadline was exceeded."""
    current = find(conditions, PROGRESSING)
    if not has_progress_deadline(deployment) or (current is not None and current.reason == TIMED_OUT):
        return conditions
    reported = current is not None and current.reason == PAUSED
    if deployment.spec.paused and not reported:
        return put(conditions, condition(PROGRESSING, UNKNOWN, PAUSED, "Deployment is paused", now))
    if not deployment.spec.paused and reported:
        return put(conditions, condition(PROGRESSING, UNKNOWN, RESUMED, "Deployment is resumed", now))
    return conditions


def count(
    deployment: Deployment,
    conditions: Conditions,
    replica_sets: Sequence[ReplicaSet],
    new: ReplicaSet | None,
    now: datetime,
) -> DeploymentStatus:
    """Return the counts and the condition Available."""
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
    """Return whether all replicas are updated and available."""
    wanted = replicas_of(deployment)
    numbers = (status.updated_replicas or 0, status.replicas or 0, status.available_replicas or 0)
    observed = (status.observed_generation or 0) >= (deployment.metadata.generation or 0)
    return observed and numbers == (wanted, wanted, wanted)


def _has_progressed(before: DeploymentStatus, after: DeploymentStatus) -> bool:
    def old_replicas(status: DeploymentStatus) -> int:
        return (status.replicas or 0) - (status.updated_replicas or 0)

    return (
        (after.updated_replicas or 0) > (before.updated_replicas or 0)
        or old_replicas(after) < old_replicas(before)
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
    return seconds_after(current.last_update_time, deployment.spec.progress_deadline_seconds or 0)


def with_progress(
    deployment: Deployment,
    status: DeploymentStatus,
    replica_sets: Sequence[ReplicaSet],
    new: ReplicaSet | None,
    now: datetime,
) -> DeploymentStatus:
    """Return the status with the conditions Progressing and ReplicaFailure."""
    conditions = status.conditions
    if not has_progress_deadline(deployment):
        conditions = without(conditions, PROGRESSING)
    elif not _was_complete(status):
        conditions = _progress(deployment, status, new, now)
    failure = _failure(replica_sets, new)
    conditions = without(conditions, REPLICA_FAILURE) if failure is None else put(conditions, failure)
    return msgspec.structs.replace(status, conditions=conditions)


def _was_complete(status: DeploymentStatus) -> bool:
    """Return whether the rollout was complete: a later loss of Pods is no progress, the ReplicaSet replaces them."""
    current = find(status.conditions, PROGRESSING)
    return status.replicas == status.updated_replicas and current is not None and current.reason == NEW_AVAILABLE


def _progress(deployment: Deployment, status: DeploymentStatus, new: ReplicaSet | None, now: datetime) -> Conditions:
    subject = f'Deployment "{deployment.metadata.name}"' if new is None else f'ReplicaSet "{new.metadata.name}"'
    conditions = status.conditions
    if is_complete(deployment, status):
        message = f"{subject} has successfully progressed."
        return put(conditions, condition(PROGRESSING, TRUE, NEW_AVAILABLE, message, now))
    if _has_progressed(deployment.status, status):
        state = condition(PROGRESSING, TRUE, UPDATED, f"{subject} is progressing.", now)
        current = find(conditions, PROGRESSING)
        if current is not None and current.status == TRUE:
            state = msgspec.structs.replace(state, last_transition_time=current.last_transition_time)
        # The deadline starts again with each step, so the update time changes even if nothing else does.
        return (*without(conditions, PROGRESSING), state)
    if _has_timed_out(deployment, conditions, now):
        message = f"{subject} has timed out progressing."
        return put(conditions, condition(PROGRESSING, FALSE, TIMED_OUT, message, now))
    return conditions


def _failure(replica_sets: Sequence[ReplicaSet], new: ReplicaSet | None) -> DeploymentCondition | None:
    """Return the failure of the new ReplicaSet, or of any other."""
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


def deadline_check_seconds(deployment: Deployment, status: DeploymentStatus, now: datetime) -> float | None:
    """Return the seconds until the progress deadline has to be checked; None without one."""
    current = find(status.conditions, PROGRESSING)
    if current is None or not has_progress_deadline(deployment) or is_complete(deployment, status):
        return None
    if current.reason == TIMED_OUT:
        return None
    # Timestamps are whole seconds.
    return max((_deadline(deployment, current) - now).total_seconds(), 0.0) + 1.0
