"""How many Pods of a ReplicaSet to create, which to delete, and the status. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from dray.api.document import GroupVersionKind
from dray.api.types.apps_v1 import ReplicaSet, ReplicaSetCondition, ReplicaSetStatus
from dray.api.types.core_v1 import Pod
from dray.controllers.pod_control.ownership import Owner, selector_of
from dray.controllers.pod_control.pod_status import has_labels, is_active, is_available, is_ready, is_terminating
from dray.controllers.pod_control.replicas import choose_for_deletion

KIND: Final = GroupVersionKind("apps", "v1", "ReplicaSet")
# Pods per sync; the rest follows after their informer events.
BURST_MAX: Final = 500
REPLICA_FAILURE: Final = "ReplicaFailure"


@dataclass(frozen=True, slots=True)
class Plan:
    """The number of Pods to create, or the Pods to delete."""

    create: int = 0
    delete: tuple[Pod, ...] = ()


def owner_of(replica_set: ReplicaSet) -> Owner:
    """Return the ReplicaSet as an owner of Pods."""
    return Owner(KIND, replica_set.metadata, selector_of(replica_set.spec.selector))


def replicas_wanted(replica_set: ReplicaSet) -> int:
    """Return the desired number of replicas."""
    return 1 if replica_set.spec.replicas is None else replica_set.spec.replicas


def plan_pods(
    replica_set: ReplicaSet, pods: Sequence[Pod], related: Callable[[], Iterable[Pod]], now: datetime
) -> Plan:
    """Compare the active Pods with the desired number; `related` is called only if Pods are deleted."""
    if replica_set.metadata.deletion_timestamp is not None:
        return Plan()
    active = [pod for pod in pods if is_active(pod)]
    surplus = len(active) - replicas_wanted(replica_set)
    if surplus < 0:
        return Plan(create=min(-surplus, BURST_MAX))
    if surplus == 0:
        return Plan()
    return Plan(delete=choose_for_deletion(active, min(surplus, BURST_MAX), now, related()))


@dataclass(frozen=True, slots=True)
class Failure:
    """Why Pods could not be created or deleted."""

    reason: str
    message: str


def status_of(replica_set: ReplicaSet, pods: Sequence[Pod], failure: Failure | None, now: datetime) -> ReplicaSetStatus:
    """Return the status, from the Pods before the writes."""
    active = [pod for pod in pods if is_active(pod)]
    labels = replica_set.spec.template.metadata.labels
    min_ready = replica_set.spec.min_ready_seconds or 0
    return ReplicaSetStatus(
        replicas=len(active),
        fully_labeled_replicas=_count(has_labels(pod.metadata, labels) for pod in active),
        ready_replicas=_count(is_ready(pod) for pod in active),
        available_replicas=_count(is_available(pod, min_ready, now) for pod in active),
        terminating_replicas=sum(is_terminating(pod) for pod in pods),
        observed_generation=replica_set.metadata.generation,
        conditions=_conditions(replica_set.status.conditions, failure, now),
    )


def _count(facts: Iterable[bool]) -> int | None:
    """Count; zero is None, since the API omits it."""
    return sum(facts) or None


def _conditions(
    conditions: tuple[ReplicaSetCondition, ...], failure: Failure | None, now: datetime
) -> tuple[ReplicaSetCondition, ...]:
    """Return the conditions; the first failure stays until there is none."""
    others = tuple(item for item in conditions if item.type != REPLICA_FAILURE)
    if failure is None:
        return others
    if len(others) < len(conditions):
        return conditions
    return (
        *others,
        ReplicaSetCondition(
            type=REPLICA_FAILURE,
            status="True",
            reason=failure.reason,
            message=failure.message,
            last_transition_time=now.replace(microsecond=0),
        ),
    )


def with_status(replica_set: ReplicaSet, status: ReplicaSetStatus) -> ReplicaSet | None:
    """Return the ReplicaSet with the status; None if it does not change."""
    return None if replica_set.status == status else msgspec.structs.replace(replica_set, status=status)
