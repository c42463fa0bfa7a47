"""Changes of a Deployment's ReplicaSets, its status, and when to reconcile again. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from dray.api.types.apps_v1 import Deployment, DeploymentStatus, ReplicaSet
from dray.controllers.deployment import conditions as cond
from dray.controllers.deployment.revisions import (
    KIND,
    REVISION,
    as_revision,
    as_scaled,
    find_new,
    make_replica_set,
    next_revision,
    surplus_history,
)
from dray.controllers.deployment.rollout import Create, Rollout, Update
from dray.controllers.deployment.scaling import empty_old, grow_new, is_scaling, scale, shrink_old, size_for_new
from dray.controllers.deployment.strategy import has_progress_deadline, is_rolling, replicas_of
from dray.controllers.pod_control.ownership import Owner, selector_of

# Returns whether Pods of the ReplicaSet are or may be running.
HasRunningPods = Callable[[ReplicaSet], bool]


@dataclass(frozen=True, slots=True)
class Plan:
    """The writes in order: ReplicaSets, those to delete, the Deployment's status."""

    write: tuple[Create | Update, ...] = ()
    delete: tuple[ReplicaSet, ...] = ()
    report: Deployment | None = None
    requeue_seconds: float | None = None


class _NameCollisionError(Exception):
    """Another ReplicaSet of the Deployment has the name of the new one."""


def owner_of(deployment: Deployment) -> Owner:
    """Return the Deployment as an owner of ReplicaSets."""
    return Owner(KIND, deployment.metadata, selector_of(deployment.spec.selector))


def plan_deployment(
    deployment: Deployment, replica_sets: Sequence[ReplicaSet], has_running_pods: HasRunningPods, now: datetime
) -> Plan:
    """Compare a Deployment with its ReplicaSets."""
    rollout = Rollout(deployment, replica_sets, find_new(deployment, replica_sets))
    if deployment.metadata.deletion_timestamp is not None:
        _update_revision(rollout, now)
        return _plan(rollout, (), _counted_status(rollout, now), None)
    rollout.conditions = cond.with_pause(deployment, rollout.conditions, now)
    if deployment.spec.paused or is_scaling(rollout):
        _update_revision(rollout, now)
        scale(rollout)
        surplus = surplus_history(deployment, rollout.old) if deployment.spec.paused else ()
        return _plan(rollout, surplus, _counted_status(rollout, now), None)
    try:
        settled = _roll(rollout, now) if is_rolling(deployment) else _recreate(rollout, has_running_pods, now)
    except _NameCollisionError:
        return Plan(report=after_collision(deployment))
    done = settled and cond.is_complete(deployment, deployment.status)
    surplus = surplus_history(deployment, rollout.old) if done else ()
    status = cond.with_progress(deployment, _counted_status(rollout, now), rollout.all, rollout.new, now)
    return _plan(rollout, surplus, status, cond.deadline_check_seconds(deployment, status, now))


def _roll(rollout: Rollout, now: datetime) -> bool:
    """Take a step of a rolling update; return whether it is complete."""
    _update_revision(rollout, now)
    if rollout.new is None:
        _create_new(rollout, now)
    return not grow_new(rollout) and not shrink_old(rollout)


def _recreate(rollout: Rollout, has_running_pods: HasRunningPods, now: datetime) -> bool:
    """Delete all old Pods before creating new ones; return whether the rollout is complete."""
    _update_revision(rollout, now)
    if empty_old(rollout):
        return False
    if any(item.status.replicas > 0 or has_running_pods(item) for item in rollout.old):
        return False
    if rollout.new is None:
        _create_new(rollout, now)
    assert rollout.new is not None
    if replicas_of(rollout.new) != replicas_of(rollout.deployment):
        rollout.scale(rollout.new, replicas_of(rollout.deployment))
    return True


def _update_revision(rollout: Rollout, now: datetime) -> None:
    """Give the new ReplicaSet, if there is one, and the Deployment the highest revision."""
    new = rollout.new
    if new is None:
        return
    new = as_revision(rollout.deployment, new, next_revision(rollout.old))
    rollout.put(new)
    rollout.revision = new.metadata.annotations.get(REVISION)
    if has_progress_deadline(rollout.deployment) and cond.find(rollout.conditions, cond.PROGRESSING) is None:
        message = f'Found new replica set "{new.metadata.name}"'
        rollout.conditions = cond.put(
            rollout.conditions, cond.condition(cond.PROGRESSING, cond.TRUE, cond.FOUND, message, now)
        )


def _create_new(rollout: Rollout, now: datetime) -> None:
    deployment = rollout.deployment
    revision = next_revision(rollout.old)
    empty = make_replica_set(deployment, revision)
    if any(item.metadata.name == empty.metadata.name for item in rollout.old):
        raise _NameCollisionError
    rollout.create(as_scaled(deployment, empty, size_for_new(deployment, rollout.old, empty)))
    rollout.revision = str(revision)
    if has_progress_deadline(deployment):
        message = f'Created new replica set "{empty.metadata.name}"'
        rollout.conditions = cond.put(
            rollout.conditions, cond.condition(cond.PROGRESSING, cond.TRUE, cond.CREATED, message, now)
        )


def _counted_status(rollout: Rollout, now: datetime) -> DeploymentStatus:
    return cond.count(rollout.deployment, rollout.conditions, rollout.all, rollout.new, now)


def _plan(
    rollout: Rollout, surplus: Sequence[ReplicaSet], status: DeploymentStatus, requeue_seconds: float | None
) -> Plan:
    report = _reported(rollout.deployment, status, rollout.revision)
    return Plan(rollout.writes(), tuple(surplus), report, requeue_seconds)


def _reported(deployment: Deployment, status: DeploymentStatus, revision: str | None = None) -> Deployment | None:
    """Return the Deployment with status and revision; None if they do not change."""
    annotations = deployment.metadata.annotations
    if revision is not None and annotations.get(REVISION) != revision:
        metadata = msgspec.structs.replace(deployment.metadata, annotations={**annotations, REVISION: revision})
        return msgspec.structs.replace(deployment, metadata=metadata, status=status)
    return None if deployment.status == status else msgspec.structs.replace(deployment, status=status)


def after_collision(deployment: Deployment) -> Deployment:
    """Return the Deployment after a name collision; the collision count changes the next hash."""
    status = msgspec.structs.replace(deployment.status, collision_count=(deployment.status.collision_count or 0) + 1)
    return msgspec.structs.replace(deployment, status=status)


def creation_failure(name: str, message: str) -> str:
    """Return the message for a ReplicaSet that could not be created."""
    return f'Failed to create new replica set "{name}": {message}'


def after_failed_creation(deployment: Deployment, failure: str, now: datetime) -> Deployment | None:
    """Return the Deployment after a ReplicaSet could not be created; None if it does not change."""
    if not has_progress_deadline(deployment):
        return None
    state = cond.condition(cond.PROGRESSING, cond.FALSE, cond.CREATE_FAILED, failure, now)
    conditions = cond.put(deployment.status.conditions, state)
    return _reported(deployment, msgspec.structs.replace(deployment.status, conditions=conditions))
