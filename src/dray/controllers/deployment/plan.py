"""What to do for a Deployment: its ReplicaSets, its status, and when to look again; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from dray.api.types.apps_v1 import Deployment, DeploymentStatus, ReplicaSet
from dray.controllers.deployment import conditions as told
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
from dray.controllers.deployment.rollout import Create, Draft, Update
from dray.controllers.deployment.scaling import empty_old, grow_new, is_scaling, scale, shrink_old, size_for_new
from dray.controllers.deployment.strategy import has_progress_deadline, is_rolling, replicas_of
from dray.controllers.pod_control.ownership import Owner, selector_of

# Whether Pods of the ReplicaSet are or may be running.
HasRunningPods = Callable[[ReplicaSet], bool]


@dataclass(frozen=True, slots=True)
class Plan:
    """The writes in order: ReplicaSets, those to delete, the Deployment's status."""

    write: tuple[Create | Update, ...] = ()
    delete: tuple[ReplicaSet, ...] = ()
    report: Deployment | None = None
    requeue_seconds: float | None = None


def owner_of(deployment: Deployment) -> Owner:
    """The Deployment as an owner of ReplicaSets."""
    return Owner(KIND, deployment.metadata, selector_of(deployment.spec.selector))


def plan_deployment(
    deployment: Deployment, replica_sets: Sequence[ReplicaSet], has_running_pods: HasRunningPods, now: datetime
) -> Plan:
    """Compare a Deployment with its ReplicaSets."""
    draft = Draft(deployment, replica_sets, find_new(deployment, replica_sets))
    if deployment.metadata.deletion_timestamp is not None:
        _renumber(draft, now)
        return _plan(draft, (), _numbers(draft, now), None)
    draft.conditions = told.with_pause(deployment, draft.conditions, now)
    if deployment.spec.paused or is_scaling(draft):
        _renumber(draft, now)
        scale(draft)
        surplus = surplus_history(deployment, draft.old) if deployment.spec.paused else ()
        return _plan(draft, surplus, _numbers(draft, now), None)
    settled = _roll(draft, now) if is_rolling(deployment) else _recreate(draft, has_running_pods, now)
    done = settled and told.is_complete(deployment, deployment.status)
    surplus = surplus_history(deployment, draft.old) if done else ()
    status = told.with_progress(deployment, _numbers(draft, now), draft.all, draft.new, now)
    return _plan(draft, surplus, status, told.stuck_in_seconds(deployment, status, now))


def _roll(draft: Draft, now: datetime) -> bool:
    """Replace Pods within what the strategy allows; whether there is nothing more to do."""
    _renumber(draft, now)
    if draft.new is None:
        _create_new(draft, now)
    return not grow_new(draft) and not shrink_old(draft)


def _recreate(draft: Draft, has_running_pods: HasRunningPods, now: datetime) -> bool:
    """No new Pod before the last old one has ended; whether there is nothing more to do."""
    _renumber(draft, now)
    if empty_old(draft):
        return False
    if any(item.status.replicas > 0 or has_running_pods(item) for item in draft.old):
        return False
    if draft.new is None:
        _create_new(draft, now)
    assert draft.new is not None
    if replicas_of(draft.new) != replicas_of(draft.deployment):
        draft.scale(draft.new, replicas_of(draft.deployment))
    return True


def _renumber(draft: Draft, now: datetime) -> None:
    """See to it that the new ReplicaSet, if there is one, has the highest revision, and that the Deployment says so."""
    new = draft.new
    if new is None:
        return
    new = as_revision(draft.deployment, new, next_revision(draft.old))
    draft.put(new)
    draft.revision = new.metadata.annotations.get(REVISION)
    if has_progress_deadline(draft.deployment) and told.find(draft.conditions, told.PROGRESSING) is None:
        message = f'Found new replica set "{new.metadata.name}"'
        draft.conditions = told.put(
            draft.conditions, told.condition(told.PROGRESSING, told.TRUE, told.FOUND, message, now)
        )


def _create_new(draft: Draft, now: datetime) -> None:
    deployment = draft.deployment
    revision = next_revision(draft.old)
    empty = make_replica_set(deployment, revision)
    draft.create(as_scaled(deployment, empty, size_for_new(deployment, draft.old, empty)))
    draft.revision = str(revision)
    if has_progress_deadline(deployment):
        message = f'Created new replica set "{empty.metadata.name}"'
        draft.conditions = told.put(
            draft.conditions, told.condition(told.PROGRESSING, told.TRUE, told.CREATED, message, now)
        )


def _numbers(draft: Draft, now: datetime) -> DeploymentStatus:
    return told.count(draft.deployment, draft.conditions, draft.all, draft.new, now)


def _plan(draft: Draft, surplus: Sequence[ReplicaSet], status: DeploymentStatus, requeue_seconds: float | None) -> Plan:
    report = _reported(draft.deployment, status, draft.revision)
    return Plan(draft.writes(), tuple(surplus), report, requeue_seconds)


def _reported(deployment: Deployment, status: DeploymentStatus, revision: str | None = None) -> Deployment | None:
    """The Deployment with another status and revision; None when it says so already."""
    annotations = deployment.metadata.annotations
    if revision is not None and annotations.get(REVISION) != revision:
        metadata = msgspec.structs.replace(deployment.metadata, annotations={**annotations, REVISION: revision})
        return msgspec.structs.replace(deployment, metadata=metadata, status=status)
    return None if deployment.status == status else msgspec.structs.replace(deployment, status=status)


def after_collision(deployment: Deployment) -> Deployment:
    """What to report when another content has the new ReplicaSet's name: the next hash will be another one."""
    status = msgspec.structs.replace(deployment.status, collision_count=(deployment.status.collision_count or 0) + 1)
    return msgspec.structs.replace(deployment, status=status)


def creation_failure(name: str, message: str) -> str:
    """What is told when a ReplicaSet could not be created."""
    return f'Failed to create new replica set "{name}": {message}'


def after_failed_creation(deployment: Deployment, failure: str, now: datetime) -> Deployment | None:
    """What to report when a ReplicaSet could not be created."""
    if not has_progress_deadline(deployment):
        return None
    state = told.condition(told.PROGRESSING, told.FALSE, told.CREATE_FAILED, failure, now)
    conditions = told.put(deployment.status.conditions, state)
    return _reported(deployment, msgspec.structs.replace(deployment.status, conditions=conditions))
