"""The condition EvictionInProgress of a DeviceTaintRule. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dray.allocator.taints import TaintRule
from dray.api.document import Document
from dray.api.timestamps import TimeFormatError, format_time, parse_time
from dray.controllers.device_taint_eviction.plan import NO_EXECUTE, Rule

CONDITION: Final = "EvictionInProgress"
NO_EFFECT: Final = "None"
# As in Kubernetes: minimal time between two status writes of a rule.
STATUS_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Counts:
    """Effects of a rule, actual or simulated."""

    pods: int = 0
    namespaces: int = 0
    published: int = 0
    allocated: int = 0
    evicted: int = 0


def effect_of(rule: Document) -> str:
    """Return the effect of the rule's taint."""
    effect: str = ((rule.get("spec") or {}).get("taint") or {}).get("effect") or ""
    return effect


def read_rule(rule: Document) -> Rule:
    """Decode the parts of a rule that evictions depend on."""
    text = ((rule.get("spec") or {}).get("taint") or {}).get("timeAdded") or ""
    try:
        time_added = parse_time(text) if text else None
    except TimeFormatError:
        time_added = None
    return Rule(TaintRule.from_document(rule), (rule.get("metadata") or {}).get("uid") or "", time_added)


def existing_condition(rule: Document) -> Document | None:
    """Return the condition as last written."""
    conditions = (rule.get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item.get("type") == CONDITION), None)


def wait_seconds(rule: Document, now: datetime) -> float:
    """Return the seconds until the status may be written again; 0 after a change of the spec."""
    old = existing_condition(rule)
    if old is None or old.get("observedGeneration") != (rule.get("metadata") or {}).get("generation"):
        return 0.0
    since = (now - parse_time(old["lastTransitionTime"])).total_seconds()
    return max(STATUS_SECONDS - since, 0.0)


def plan_condition(rule: Document, counts: Counts, now: datetime) -> Document | None:
    """Return the condition to write; None if it is written already."""
    status, reason, message = _condition_text(effect_of(rule), counts)
    if counts.evicted:
        message = f"{message} {_number(counts.evicted, 'pod')} evicted since starting the controller.".lstrip()
    wanted: Document = {
        "type": CONDITION,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": (rule.get("metadata") or {}).get("generation") or 0,
    }
    old = existing_condition(rule) or {}
    if all(old.get(name) == value for name, value in wanted.items()):
        return None
    return {**wanted, "lastTransitionTime": format_time(now)}


def status_patch(rule: Document, condition: Document) -> Document:
    """Return the apply patch with the condition; it fails for another rule of the same name."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": rule["metadata"]["name"], "uid": rule["metadata"]["uid"]},
        "status": {"conditions": [condition]},
    }


def _condition_text(effect: str, counts: Counts) -> tuple[str, str, str]:
    if effect == NO_EXECUTE:
        if counts.pods:
            need = "needs" if counts.pods == 1 else "need"
            message = f"{_number(counts.pods, 'pod')} {need} to be evicted in {_namespaces(counts)}."
            return "True", "PodsPendingEviction", message
        return "False", "Completed" if counts.evicted else "NotStarted", ""
    if effect == NO_EFFECT:
        message = (
            f"{_number(counts.published, 'published device')} selected. "
            f"{_number(counts.allocated, 'allocated device')} selected. "
            f"{_number(counts.pods, 'pod')} would be evicted in {_namespaces(counts)} if the effect was NoExecute. "
            "This information will not be updated again. Recreate the DeviceTaintRule to trigger an update."
        )
        return "False", "NoEffect", message
    return "False", "OtherEffect", "Eviction only happens for the NoExecute effect."


def _number(count: int, thing: str) -> str:
    return f"1 {thing}" if count == 1 else f"{count} {thing}s"


def _namespaces(counts: Counts) -> str:
    return "1 namespace" if counts.namespaces == 1 else f"{counts.namespaces} different namespaces"
