"""What a controller writes into the status of a Pod that it is about to take away."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.timestamps import format_time
from dray.api.types.core_v1 import Pod, PodCondition
from dray.runtime.metrics import Metrics

DISRUPTION_TARGET: Final = "DisruptionTarget"
FAILED: Final = "Failed"
FINISHED_PHASES: Final = frozenset({"Succeeded", FAILED})


def condition_of(pod: Pod, name: str) -> PodCondition | None:
    """The Pod's condition of that type."""
    return next((item for item in pod.status.conditions if item.type == name), None)


def disruption_patch(pod: Pod, reason: str, message: str, now: datetime, *, fail: bool = False) -> Document | None:
    """The strategic patch of the status that says why the Pod goes; None when it says so already."""
    status: Document = {}
    if reason:
        condition = _disruption(pod, reason, message, now)
        if condition is not None:
            status["conditions"] = [condition]
    if fail and pod.status.phase not in FINISHED_PHASES:
        status["phase"] = FAILED
    return {"metadata": {"uid": pod.metadata.uid}, "status": status} if status else None


def _disruption(pod: Pod, reason: str, message: str, now: datetime) -> Document | None:
    old = condition_of(pod, DISRUPTION_TARGET)
    if old is not None and (old.status, old.reason, old.message) == ("True", reason, message):
        return None
    changed = now
    if old is not None and old.status == "True" and old.last_transition_time is not None:
        changed = old.last_transition_time
    condition: Document = {
        "type": DISRUPTION_TARGET,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": format_time(changed),
    }
    if pod.metadata.generation:
        condition["observedGeneration"] = pod.metadata.generation
    return condition


_BUCKETS: Final = (0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240)


class EvictionMetrics:
    """Counts Pods deleted, and how late; `subsystem` names the controller."""

    def __init__(self, metrics: Metrics, subsystem: str) -> None:
        self._deletions = metrics.counter(f"{subsystem}_pod_deletions_total", "Pods deleted by the controller")
        self._latency = metrics.histogram(
            f"{subsystem}_pod_deletion_duration_seconds",
            "Time from when a Pod had to go until it was deleted",
            buckets=_BUCKETS,
        )

    def deleted(self, late_seconds: float) -> None:
        """A Pod was deleted."""
        self._deletions.inc()
        self._latency.observe(max(late_seconds, 0.0))
