"""The numbers of a disruption budget, and which conditions of Pods are stale. Pure, time is an argument."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from dray.api.disruption import DELETION_TIMEOUT_SECONDS, DISRUPTION_TARGET, SYNC_FAILED, with_disruption_allowed
from dray.api.document import Document
from dray.api.timestamps import format_time, parse_time
from dray.api.types.core_v1 import Pod, PodCondition
from dray.controllers.pod_control.pod_status import is_finished, is_ready

# A Pod whose deletion was announced and did not come within this time is not disrupted.
STALE_SECONDS: Final = 120.0
# The kubelet keeps the condition of Pods that it ends itself.
_BY_KUBELET: Final = "TerminationByKubelet"
# A Pod that the cache does not have may be gone, or may not have been observed yet: it would count as healthy as soon
# as its creation is observed, and until its deletion is.
_UNSEEN: Final = timedelta(seconds=15)
_TIMEOUT: Final = timedelta(seconds=DELETION_TIMEOUT_SECONDS)


@dataclass(frozen=True, slots=True)
class Evicted:
    """Pods that were evicted and are still there, by name with the time; those overdue; and when the next one is."""

    pending: Mapping[str, str]
    overdue: tuple[Pod, ...]
    recheck_seconds: float | None


def needs_scale(spec: Document) -> bool:
    """Return whether the number of expected Pods is that of their controllers rather than of those that exist."""
    return spec.get("maxUnavailable") is not None or isinstance(spec.get("minAvailable"), str)


def expected_and_desired(spec: Document, pods: int, scale: int) -> tuple[int, int]:
    """Return how many Pods there should be and how many must be healthy; `scale` is that of their controllers."""
    unavailable, available = spec.get("maxUnavailable"), spec.get("minAvailable")
    if unavailable is not None:
        return scale, max(scale - _scaled(unavailable, scale), 0)
    if available is None:
        return 0, 0
    if isinstance(available, str):
        return scale, _scaled(available, scale)
    return pods, int(available)


def _scaled(value: Any, total: int) -> int:
    """Return a number, or a percentage of the total rounded up."""
    if not isinstance(value, str):
        return int(value)
    return -(-total * int(value.removesuffix("%")) // 100)


def plan_evicted(recorded: Mapping[str, str], pods: Iterable[Pod], now: datetime) -> Evicted:
    """Compare the recorded evictions with the Pods of the budget."""
    pending: dict[str, str] = {}
    overdue: list[Pod] = []
    ends: list[datetime] = []
    present = {pod.metadata.name or "": pod for pod in pods}
    for name, time in sorted(recorded.items()):
        pod, since = present.get(name), parse_time(time)
        if pod is not None and _is_gone(pod, since):
            continue
        end = since + (_UNSEEN if pod is None else _TIMEOUT)
        if end > now:
            pending[name] = time
            ends.append(end)
        elif pod is not None:
            overdue.append(pod)
    recheck = (min(ends) - now).total_seconds() if ends else None
    return Evicted(pending, tuple(overdue), recheck)


def _is_gone(pod: Pod, evicted: datetime) -> bool:
    """Return whether the evicted Pod is being deleted, or this is a later one of its name."""
    created = pod.metadata.creation_timestamp
    return pod.metadata.deletion_timestamp is not None or (created is not None and created > evicted)


def count_healthy(pods: Iterable[Pod], evicted: Mapping[str, str]) -> int:
    """Count the Pods that are ready and stay."""
    return sum(
        pod.metadata.deletion_timestamp is None and pod.metadata.name not in evicted and is_ready(pod) for pod in pods
    )


def plan_status(
    budget: Document, pods: Sequence[Pod], scale: int, evicted: Mapping[str, str], now: datetime
) -> Document | None:
    """Return the budget's new status; None if it does not change."""
    old: Document = budget.get("status") or {}
    expected, desired = expected_and_desired(budget.get("spec") or {}, len(pods), scale)
    current = count_healthy(pods, evicted)
    status = {key: value for key, value in old.items() if key != "disruptedPods"} | {
        "currentHealthy": current,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "disruptionsAllowed": max(current - desired, 0) if expected > 0 else 0,
        "observedGeneration": budget["metadata"].get("generation") or 0,
    }
    if evicted:
        status["disruptedPods"] = dict(evicted)
    status["conditions"] = with_disruption_allowed(status, now)
    return None if status == old else status


def plan_failed_sync(budget: Document, error: str, now: datetime) -> Document:
    """Return the status of a budget whose numbers are unknown: nothing may be evicted."""
    status = {**(budget.get("status") or {}), "disruptionsAllowed": 0}
    status["conditions"] = with_disruption_allowed(status, now, error)
    return status


def has_failed(budget: Document, error: str) -> bool:
    """Return whether the budget's status reports this failure already."""
    conditions = (budget.get("status") or {}).get("conditions") or ()
    return any((item.get("reason"), item.get("message")) == (SYNC_FAILED, error) for item in conditions)


def announced_deletion(pod: Pod) -> PodCondition | None:
    """Return the Pod's condition DisruptionTarget."""
    for condition in pod.status.conditions:
        if condition.type == DISRUPTION_TARGET:
            return condition
    return None


def stale_in_seconds(pod: Pod, now: datetime) -> float | None:
    """Return the seconds until the Pod's DisruptionTarget is stale, 0 if it is; None if it will not be."""
    condition = announced_deletion(pod)
    if condition is None or condition.status != "True" or condition.reason == _BY_KUBELET:
        return None
    if pod.metadata.deletion_timestamp is not None or is_finished(pod):
        return None
    since = condition.last_transition_time or now
    return max((since + timedelta(seconds=STALE_SECONDS) - now).total_seconds(), 0.0)


def reset_patch(pod: Pod, now: datetime) -> Document:
    """Return the strategic patch of the status that takes a stale DisruptionTarget back."""
    condition: Document = {
        "type": DISRUPTION_TARGET,
        "status": "False",
        "reason": None,
        "message": None,
        "lastTransitionTime": format_time(now),
    }
    metadata = {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version}
    return {"metadata": metadata, "status": {"conditions": [condition]}}
