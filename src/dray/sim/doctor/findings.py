"""Findings of `dray doctor`, and what its rules have in common. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from dray.api.types.core_v1 import Pod
from dray.sim.snapshot import Snapshot


class Severity(enum.StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Fix:
    """A write that resolves the finding: a JSON patch whose `test` operations guard against changes."""

    kind: str
    namespace: str
    name: str
    operations: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem."""

    severity: Severity
    rule: str
    # `kind namespace/name`
    subject: str
    what: str
    # How to resolve it, as text or command.
    advice: str
    fix: Fix | None = None


# Controllers need seconds; what lasts longer than this is stuck.
STUCK_AFTER: Final = timedelta(minutes=2)
Rule = Callable[[Snapshot, datetime], Iterator[Finding]]


def remove_reservation(kind: str, namespace: str, name: str, index: int, uid: str) -> Fix:
    """Return the removal of one consumer of a claim."""
    path = f"/status/reservedFor/{index}"
    operations = ({"op": "test", "path": f"{path}/uid", "value": uid}, {"op": "remove", "path": path})
    return Fix(kind, namespace, name, operations)


def dead_pod_text(pod: Pod | None) -> str:
    """Return why a Pod does not use its claims any more."""
    return "has finished" if pod is not None else "does not exist"
