"""Rules about PodGroups that wait, or run with too few Pods. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from dray.api.pod_groups import INITIALLY_SCHEDULED
from dray.sim.doctor.findings import STUCK_AFTER, Finding, Rule, Severity
from dray.sim.explain.pod_group import Group, all_pod_groups, too_few_pods
from dray.sim.snapshot import Snapshot


def waiting_groups(snapshot: Snapshot, now: datetime) -> Iterator[Finding]:
    """Yield gangs that have been waiting for a while: for Pods that do not exist, or for nodes and devices."""
    for group in all_pod_groups(snapshot):
        created = group.group.metadata.creation_timestamp
        if created is None or now - created < STUCK_AFTER or not group.pods or group.placed:
            continue
        missing = too_few_pods(group)
        if missing is not None:
            yield Finding(Severity.WARNING, "incomplete-gang", _subject(group), missing.text, missing.action)
            continue
        why = f": {_message(group)}" if _message(group) else ""
        what = f"has been waiting with {len(group.waiting)} Pods since {created:%Y-%m-%d %H:%M} UTC{why}"
        yield Finding(Severity.NOTE, "long-wait", _subject(group), what, _advice(group))


def half_placed_groups(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield gangs of which fewer Pods than they need have a node: those hold devices, and cannot do their work."""
    for group in all_pod_groups(snapshot):
        placed = len(group.placed)
        if 0 < placed < group.needed:
            what = f"has {placed} Pods on nodes and needs {group.needed}: what those hold is of no use alone"
            yield Finding(Severity.WARNING, "half-placed-gang", _subject(group), what, _advice(group))


def _subject(group: Group) -> str:
    return f"podgroup {group.key}"


def _advice(group: Group) -> str:
    return f"dray explain podgroup {group.key.name} -n {group.key.namespace}"


def _message(group: Group) -> str:
    return next((item.message for item in group.group.status.conditions if item.type == INITIALLY_SCHEDULED), "")


GROUP_RULES: Final[tuple[Rule, ...]] = (waiting_groups, half_placed_groups)
