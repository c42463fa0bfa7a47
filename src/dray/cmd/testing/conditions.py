"""When what a test waits for has come, and when it never will. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from dray.api.document import Document

# A phase, the type of a condition, one of the words below, or a function of the object.
Condition: TypeAlias = "str | Callable[[Document], object]"

EXISTS: Final = "exists"
DELETED: Final = "deleted"
ALLOCATED: Final = "allocated"
RESERVED: Final = "reserved"
PHASES: Final = frozenset({"Pending", "Running", "Succeeded", "Failed"})
_FINAL: Final = frozenset({"Succeeded", "Failed"})


def reached(obj: Document | None, condition: Condition) -> bool:
    """Whether the object, None when there is none, is as wanted."""
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


def hopeless(obj: Document | None, condition: Condition) -> str:
    """Why it can never come to that, if so; a Pod that has ended does not run again."""
    phase = ((obj or {}).get("status") or {}).get("phase")
    if (obj or {}).get("kind") != "Pod" or phase not in _FINAL or condition in (EXISTS, DELETED, phase):
        return ""
    return f"it is {phase} already" if isinstance(condition, str) else ""


def describe(condition: Condition) -> str:
    """The condition in a sentence that begins with `did not`."""
    if not isinstance(condition, str):
        return f"satisfy {getattr(condition, '__name__', condition)}"
    words = {EXISTS: "come to exist", DELETED: "go", ALLOCATED: "get allocated", RESERVED: "get reserved"}
    return words.get(condition, f"become {condition}")


def _true(status: Document, kind: str) -> bool:
    return any(item.get("type") == kind and item.get("status") == "True" for item in status.get("conditions") or ())
