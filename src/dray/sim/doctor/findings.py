"""Findings of `dray doctor`, and what its rules have in common. Pure."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from dray.api.document import Document
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
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
    # What to apply, if the advice says so.
    manifest: Document | None = None


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """Findings that differ only in names and numbers."""

    first: Finding
    # The subjects of the others.
    others: tuple[str, ...] = ()


_NAME_OR_NUMBER: Final = re.compile(r"[\w./:-]*\d[\w./:-]*")


def grouped(findings: Iterable[Finding]) -> list[FindingGroup]:
    """Group near-identical findings, in the order of the first of each group."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.rule, _shape(finding)), []).append(finding)
    return [FindingGroup(first, tuple(item.subject for item in others)) for first, *others in groups.values()]


def _shape(finding: Finding) -> str:
    """Return the finding without what differs from one object to the next."""
    text = f"{finding.what} {finding.advice}"
    namespace, _, name = finding.subject.rpartition(" ")[2].rpartition("/")
    for part in filter(None, (f"{namespace}/{name}", name)):
        text = text.replace(part, "*")
    return _NAME_OR_NUMBER.sub("#", text)


# Controllers need seconds; what lasts longer than this is stuck.
STUCK_AFTER: Final = timedelta(minutes=2)
Rule = Callable[[Snapshot, datetime], Iterator[Finding]]


def free_claim(claim: ResourceClaim) -> Fix:
    """Return the removal of the last consumer of a claim with its allocation, as the claim controller writes it."""
    (user,) = claim.status.reserved_for
    operations: list[dict[str, Any]] = [
        {"op": "test", "path": "/status/reservedFor/0/uid", "value": user.uid},
        {"op": "remove", "path": "/status/reservedFor"},
    ]
    if claim.status.allocation is not None:
        operations.append({"op": "remove", "path": "/status/allocation"})
    if claim.status.devices:
        operations.append({"op": "remove", "path": "/status/devices"})
    return Fix("ResourceClaim", claim.metadata.namespace or "", claim.metadata.name or "", tuple(operations))


def remove_reservation(kind: str, namespace: str, name: str, index: int, uid: str) -> Fix:
    """Return the removal of one consumer of a claim."""
    path = f"/status/reservedFor/{index}"
    operations = ({"op": "test", "path": f"{path}/uid", "value": uid}, {"op": "remove", "path": path})
    return Fix(kind, namespace, name, operations)


def dead_pod_text(pod: Pod | None) -> str:
    """Return why a Pod does not use its claims any more."""
    return "has finished" if pod is not None else "does not exist"
