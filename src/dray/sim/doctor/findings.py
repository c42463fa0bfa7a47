"""What the doctor finds. Values only."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class Severity(enum.StrEnum):
    """How bad it is."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Fix:
    """One guarded write that mends it: a JSON patch whose `test` operations make sure that nothing has changed."""

    kind: str
    namespace: str
    name: str
    operations: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    severity: Severity
    rule: str
    # `kind namespace/name`
    subject: str
    what: str
    # What to do about it, in words or as a command.
    advice: str
    fix: Fix | None = None
