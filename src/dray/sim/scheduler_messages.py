"""Reads what schedulers have written into the condition PodScheduled. Pure.

The API has nothing but the text, and the scheduler may be another one; so what is known of its words is here alone.
"""

from __future__ import annotations

from dray.api.types.core_v1 import Pod
from dray.scheduler.plugins.volume_claims import REASON_UNBOUND


def scheduler_message(pod: Pod) -> str:
    """Return why the Pod could not be scheduled, as a scheduler reported last; empty if none has."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.message or ""
    return ""


def without_preemption(message: str) -> str:
    """Return the message without what preemption could not do."""
    return message.partition(" preemption: ")[0]


def reports_missing_claim(message: str, name: str) -> bool:
    """Return whether the scheduler did not find the volume claim."""
    return f'persistentvolumeclaim "{name}" not found' in message


def reports_skipped_classes(message: str) -> bool:
    """Return whether the scheduler skips alternatives whose device class does not exist."""
    return " skipped: device class " in message


def reports_unbound_claims(message: str) -> bool:
    """Return whether a volume claim is not bound whose class does not wait for the first consumer."""
    return REASON_UNBOUND in message


def reports_volume_claims(message: str) -> bool:
    """Return whether the Pod waits for a volume claim."""
    return reports_unbound_claims(message) or "persistentvolumeclaim" in message
