"""Conditions that a test waits for. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from dray.api.document import Document
from dray.api.pod_claims import TERMINAL_PHASES

# A phase, the type of a condition, one of the constants below, or a function of the object.
Condition: TypeAlias = "str | Callable[[Document], object]"

EXISTS: Final = "exists"
DELETED: Final = "deleted"
ALLOCATED: Final = "allocated"
RESERVED: Final = "reserved"
PHASES: Final = frozenset({"Pending", "Running", "Succeeded", "Failed"})


def is_met(obj: Document | None, condition: Condition) -> bool:
    """Return whether the object, None if it does not exist, meets the condition."""
    if condition == DELETED:
        return obj is None
    if obj is None:
        return False
    if not isinstance(condition, str):
        return bool(condition(obj))
    status = obj.get("status") or {}
    if condition == EXISTS:
        return True
    if condition in (ALLOCATED, RESERVED):
        return bool(status.get("allocation" if condition == ALLOCATED else "reservedFor"))
    return status.get("phase") == condition or _true(status, condition)


def impossible_reason(obj: Document | None, condition: Condition) -> str:
    """Return why the condition can no longer be met: a finished Pod does not run again. Empty otherwise."""
    phase = ((obj or {}).get("status") or {}).get("phase")
    if (obj or {}).get("kind") != "Pod" or phase not in TERMINAL_PHASES or condition in (EXISTS, DELETED, phase):
        return ""
    return f"it is already {phase}" if isinstance(condition, str) else ""


def describe(condition: Condition) -> str:
    """Return the condition as a phrase that follows `did not`."""
    if not isinstance(condition, str):
        return f"satisfy {getattr(condition, '__name__', condition)}"
    phrases = {EXISTS: "exist", DELETED: "get deleted", ALLOCATED: "get allocated", RESERVED: "get reserved"}
    return phrases.get(condition, f"become {condition}")


def _true(status: Document, kind: str) -> bool:
    return any(item.get("type") == kind and item.get("status") == "True" for item in status.get("conditions") or ())
