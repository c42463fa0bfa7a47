"""Status of a single Pod: active, terminating, ready, available. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from dray.api.timestamps import seconds_after
from dray.api.types.core_v1 import Pod, PodCondition
from dray.api.types.meta_v1 import ObjectMeta

SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"
_TERMINAL: Final = (SUCCEEDED, FAILED)
_READY: Final = "Ready"


def is_finished(pod: Pod) -> bool:
    """Return whether the Pod has succeeded or failed."""
    return pod.status.phase in _TERMINAL


def is_active(pod: Pod) -> bool:
    """Return whether the Pod counts as a replica: neither finished nor being deleted."""
    return not is_finished(pod) and pod.metadata.deletion_timestamp is None


def is_terminating(pod: Pod) -> bool:
    """Return whether the Pod is being deleted and may still be running."""
    return pod.metadata.deletion_timestamp is not None and not is_finished(pod)


def ready_condition(pod: Pod) -> PodCondition | None:
    """Return the condition Ready if it is true."""
    for condition in pod.status.conditions:
        if condition.type == _READY:
            return condition if condition.status == "True" else None
    return None


def is_ready(pod: Pod) -> bool:
    """Return whether the Pod is ready."""
    return ready_condition(pod) is not None


def available_in_seconds(pod: Pod, min_ready_seconds: int, now: datetime) -> float | None:
    """Return the seconds until the Pod is available, 0 if it is; None if it is not ready."""
    condition = ready_condition(pod)
    if condition is None:
        return None
    if min_ready_seconds == 0:
        return 0.0
    if condition.last_transition_time is None:
        return float(min_ready_seconds)
    available = seconds_after(condition.last_transition_time, min_ready_seconds)
    return max((available - now).total_seconds(), 0.0)


def is_available(pod: Pod, min_ready_seconds: int, now: datetime) -> bool:
    """Return whether the Pod has been ready for `min_ready_seconds`."""
    return available_in_seconds(pod, min_ready_seconds, now) == 0.0


def next_available_seconds(pods: Iterable[Pod], min_ready_seconds: int, now: datetime) -> float | None:
    """Return the seconds until the next ready Pod becomes available; None if there is none."""
    if min_ready_seconds == 0:
        return None
    waits = (available_in_seconds(pod, min_ready_seconds, now) for pod in pods)
    return min((wait for wait in waits if wait), default=None)


def has_labels(metadata: ObjectMeta, wanted: Mapping[str, str]) -> bool:
    """Return whether the object has all these labels."""
    labels = metadata.labels
    return all(labels.get(key) == value for key, value in wanted.items())


def restarts_max(pod: Pod) -> tuple[int, int]:
    """Return the highest restart count of containers and that of sidecars."""
    sidecars = {item.name for item in pod.spec.init_containers if item.restart_policy == "Always"}
    regular = max((status.restart_count for status in pod.status.container_statuses), default=0)
    init = pod.status.init_container_statuses
    return regular, max((status.restart_count for status in init if status.name in sidecars), default=0)
