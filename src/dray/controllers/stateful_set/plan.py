"""The next step of a StatefulSet: which Pods to create, correct and delete, and its status. Pure, time is an argument.

With the policy OrderedReady there is at most one creation or deletion at a time, and none while a Pod of a lower
ordinal is not available. A rolling update deletes outdated Pods one by one from the highest ordinal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from dray.api.types.apps_v1 import ControllerRevision, StatefulSet, StatefulSetStatus
from dray.api.types.core_v1 import Pod
from dray.controllers.pod_control.pod_status import is_available, is_finished, is_ready
from dray.controllers.pod_control.revisions import template_of
from dray.controllers.stateful_set.pods import (
    REVISION_LABEL,
    first_ordinal,
    identity_patch,
    new_pod,
    ordinal_of,
    replicas_wanted,
)


@dataclass(slots=True)
class Plan:
    """What to write."""

    create: list[Pod] = field(default_factory=list)
    delete: list[Pod] = field(default_factory=list)
    # Pods whose identity has to be corrected.
    correct: list[Pod] = field(default_factory=list)
    # Pending Pods, whose claims may be missing, by ordinal.
    pending: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class State:
    """A StatefulSet with its Pods, and the revisions between which it is updated."""

    stateful_set: StatefulSet
    # By ordinal.
    pods: Mapping[int, Pod]
    current: ControllerRevision
    update: ControllerRevision
    now: datetime

    @property
    def ordinals(self) -> range:
        """The ordinals that Pods should have."""
        first = first_ordinal(self.stateful_set)
        return range(first, first + replicas_wanted(self.stateful_set))

    @property
    def is_ordered(self) -> bool:
        """Whether Pods are created and deleted one after the other."""
        return self.stateful_set.spec.pod_management_policy != "Parallel"

    @property
    def partition(self) -> int:
        """The number of Pods that a rolling update leaves alone."""
        rolling = self.stateful_set.spec.update_strategy.rolling_update
        return (rolling.partition or 0) if rolling is not None else 0

    def is_healthy(self, pod: Pod) -> bool:
        """Return whether the Pod is available and stays."""
        seconds = self.stateful_set.spec.min_ready_seconds or 0
        return pod.metadata.deletion_timestamp is None and is_available(pod, seconds, self.now)


def make_state(
    stateful_set: StatefulSet,
    pods: Sequence[Pod],
    revisions: Sequence[ControllerRevision],
    update: ControllerRevision,
    now: datetime,
) -> State:
    """Return the state; without a revision of the status's name the update is the current one."""
    name = stateful_set.status.current_revision
    current = next((item for item in revisions if item.metadata.name == name), update)
    by_ordinal = {ordinal: pod for pod in pods if (ordinal := ordinal_of(stateful_set, pod)) is not None}
    return State(stateful_set, by_ordinal, current, update, now)


def plan_pods(state: State) -> Plan:
    """Return the next step."""
    plan = Plan()
    if state.stateful_set.metadata.deletion_timestamp is not None:
        return plan
    if not _plan_replicas(state, plan) or not _plan_condemned(state, plan):
        return plan
    if not plan.create and not plan.delete and state.stateful_set.spec.update_strategy.type != "OnDelete":
        _plan_update(state, plan)
    return plan


def _plan_replicas(state: State, plan: Plan) -> bool:
    """Plan the wanted Pods in order; return whether what follows may be done as well."""
    for ordinal in state.ordinals:
        pod = state.pods.get(ordinal)
        if pod is None:
            plan.create.append(_new(state, ordinal))
        elif pod.metadata.deletion_timestamp is None and is_finished(pod):
            plan.delete.append(pod)
        elif pod.metadata.deletion_timestamp is None:
            if pod.status.phase in (None, "Pending"):
                plan.pending.append(ordinal)
            if identity_patch(pod, ordinal) is not None:
                plan.correct.append(pod)
        if state.is_ordered and (pod is None or not state.is_healthy(pod)):
            return False
    return True


def _plan_condemned(state: State, plan: Plan) -> bool:
    """Plan the deletion of surplus Pods, the highest first; return whether what follows may be done as well."""
    surplus = sorted((ordinal for ordinal in state.pods if ordinal not in state.ordinals), reverse=True)
    # The first unhealthy one may go, although it is not ready.
    unhealthy = next((ordinal for ordinal in reversed(surplus) if not state.is_healthy(state.pods[ordinal])), None)
    for ordinal in surplus:
        pod = state.pods[ordinal]
        is_leaving = pod.metadata.deletion_timestamp is not None
        if state.is_ordered and (is_leaving or (not state.is_healthy(pod) and ordinal != unhealthy)):
            return False
        if not is_leaving:
            plan.delete.append(pod)
        if state.is_ordered:
            return False
    return True


def _plan_update(state: State, plan: Plan) -> None:
    """Plan the deletion of the highest outdated Pod, if those above it are available again."""
    for ordinal in reversed(state.ordinals[state.partition :]):
        pod = state.pods[ordinal]
        if pod.metadata.labels.get(REVISION_LABEL) != state.update.metadata.name:
            if pod.metadata.deletion_timestamp is None:
                plan.delete.append(pod)
            return
        if not state.is_healthy(pod):
            return


def _new(state: State, ordinal: int) -> Pod:
    stateful_set = state.stateful_set
    index = ordinal - first_ordinal(stateful_set)
    is_rolling = stateful_set.spec.update_strategy.type != "OnDelete"
    if is_rolling and index < state.partition and state.current.metadata.name != state.update.metadata.name:
        return new_pod(stateful_set, template_of(state.current), state.current.metadata.name or "", ordinal)
    return new_pod(stateful_set, stateful_set.spec.template, state.update.metadata.name or "", ordinal)


def status_of(state: State) -> StatefulSetStatus:
    """Return the status; an update is complete when all Pods are updated and ready."""
    pods = list(state.pods.values())
    current, update = state.current.metadata.name or "", state.update.metadata.name or ""
    staying = [pod for pod in pods if pod.metadata.deletion_timestamp is None]
    counts = {
        name: sum(pod.metadata.labels.get(REVISION_LABEL) == name for pod in staying) for name in (current, update)
    }
    ready = sum(is_ready(pod) for pod in pods)
    is_rolling = state.stateful_set.spec.update_strategy.type != "OnDelete"
    if is_rolling and counts[update] == len(pods) == ready:
        current = update
    return msgspec.structs.replace(
        state.stateful_set.status,
        observed_generation=state.stateful_set.metadata.generation,
        replicas=len(pods),
        ready_replicas=ready or None,
        available_replicas=sum(state.is_healthy(pod) for pod in pods),
        current_replicas=counts[current] or None,
        updated_replicas=counts[update] or None,
        current_revision=current,
        update_revision=update,
    )
