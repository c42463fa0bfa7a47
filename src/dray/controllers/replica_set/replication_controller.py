"""ReplicationControllers as ReplicaSets, which differ in their selector and status only. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from dray.api.document import GroupVersionKind
from dray.api.selectors import LabelSelector
from dray.api.types import meta_v1
from dray.api.types.apps_v1 import ReplicaSet, ReplicaSetCondition, ReplicaSetSpec, ReplicaSetStatus
from dray.api.types.core_v1 import (
    PodTemplateSpec,
    ReplicationController,
    ReplicationControllerCondition,
    ReplicationControllerStatus,
)
from dray.controllers.pod_control.ownership import Owner

KIND: Final = GroupVersionKind("", "v1", "ReplicationController")


def owner_of(controller: ReplicationController) -> Owner:
    """Return the ReplicationController as an owner of Pods."""
    return Owner(KIND, controller.metadata, LabelSelector.from_labels(controller.spec.selector))


def as_replica_set(controller: ReplicationController) -> ReplicaSet:
    """Return the ReplicaSet that asks for the same Pods."""
    spec, status = controller.spec, controller.status
    return ReplicaSet(
        metadata=controller.metadata,
        spec=ReplicaSetSpec(
            selector=meta_v1.LabelSelector(match_labels=spec.selector),
            template=spec.template or PodTemplateSpec(),
            replicas=spec.replicas,
            min_ready_seconds=spec.min_ready_seconds,
        ),
        status=ReplicaSetStatus(conditions=tuple(map(_condition_up, status.conditions))),
    )


def with_status(controller: ReplicationController, status: ReplicaSetStatus) -> ReplicationController | None:
    """Return the ReplicationController with the status of its ReplicaSet; None if it does not change."""
    found = ReplicationControllerStatus(
        replicas=status.replicas,
        fully_labeled_replicas=status.fully_labeled_replicas,
        ready_replicas=status.ready_replicas,
        available_replicas=status.available_replicas,
        observed_generation=status.observed_generation,
        conditions=tuple(map(_condition_down, status.conditions)),
    )
    return None if controller.status == found else msgspec.structs.replace(controller, status=found)


def _condition_up(item: ReplicationControllerCondition) -> ReplicaSetCondition:
    return ReplicaSetCondition(
        type=item.type,
        status=item.status,
        reason=item.reason,
        message=item.message,
        last_transition_time=item.last_transition_time,
    )


def _condition_down(item: ReplicaSetCondition) -> ReplicationControllerCondition:
    return ReplicationControllerCondition(
        type=item.type,
        status=item.status,
        reason=item.reason,
        message=item.message,
        last_transition_time=item.last_transition_time,
    )
