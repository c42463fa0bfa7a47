"""The condition PodScheduled of a Pod that was not placed."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.timestamps import format_time
from dray.api.types.core_v1 import Pod, PodCondition

POD_SCHEDULED: Final = "PodScheduled"
REASON_UNSCHEDULABLE: Final = "Unschedulable"
REASON_ERROR: Final = "SchedulerError"


def plan_status(pod: Pod, reason: str, message: str, now: datetime, nominated: str | None = None) -> Document | None:
    """The patch of the Pod's status; None when nothing would change. `nominated` None leaves that field alone."""
    status: Document = {}
    if nominated is not None and nominated != (pod.status.nominated_node_name or ""):
        status["nominatedNodeName"] = nominated or None
    old = next((item for item in pod.status.conditions if item.type == POD_SCHEDULED), None)
    if old is None or (old.status, old.reason, old.message) != ("False", reason, message):
        status["conditions"] = [_condition(old, reason, message, now)]
    if not status:
        return None
    return {"metadata": {"uid": pod.metadata.uid}, "status": status}


def _condition(old: PodCondition | None, reason: str, message: str, now: datetime) -> Document:
    changed = now
    if old is not None and old.status == "False" and old.last_transition_time is not None:
        changed = old.last_transition_time
    return {
        "type": POD_SCHEDULED,
        "status": "False",
        "lastProbeTime": None,
        "lastTransitionTime": format_time(changed),
        "reason": reason,
        "message": message,
    }
