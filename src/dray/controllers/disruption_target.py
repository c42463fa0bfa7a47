"""The condition DisruptionTarget, which says why a Pod is deleted. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.disruption import DISRUPTION_TARGET
from dray.api.document import Document
from dray.api.timestamps import format_time
from dray.api.types.core_v1 import Pod, PodCondition

FAILED: Final = "Failed"
FINISHED_PHASES: Final = frozenset({"Succeeded", FAILED})


def condition_of(pod: Pod, name: str) -> PodCondition | None:
    """Return the Pod's condition of that type."""
    return next((item for item in pod.status.conditions if item.type == name), None)


def disruption_patch(pod: Pod, reason: str, message: str, now: datetime, *, fail: bool = False) -> Document | None:
    """Return the strategic patch of the status that explains the deletion; None if nothing changes."""
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
