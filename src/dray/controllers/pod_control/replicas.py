"""Replica counts given as percentages, and the order in which Kubernetes deletes surplus Pods. Pure."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from dray.api.types.core_v1 import Pod
from dray.controllers.pod_control.pod_status import is_active, is_ready, ready_condition, restarts_max

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_PHASE_ORDER: Final = {"Pending": 0, "Unknown": 1, "Running": 2}
# The API server rejects other values; stored ones count as zero.
_COST: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,9})", re.ASCII)
_NANOSECONDS: Final = 1_000_000_000


def order_for_deletion(pods: Iterable[Pod], now: datetime, related: Iterable[Pod] = ()) -> list[Pod]:
    """Sort Pods by deletion order; Pods on nodes with many `related` Pods come first."""
    related_per_node = Counter(pod.spec.node_name for pod in related if pod.spec.node_name and is_active(pod))

    def rank(pod: Pod) -> tuple[bool, int, bool, int, int]:
        phase = _PHASE_ORDER.get(pod.status.phase or "", 0)
        node = pod.spec.node_name or ""
        return bool(node), phase, is_ready(pod), deletion_cost(pod), -related_per_node[node]

    compare = functools.cmp_to_key(functools.partial(_compare, now=now))
    # Ages are compared only among Pods of equal rank: otherwise the comparison would not be transitive.
    return sorted(pods, key=lambda pod: (rank(pod), compare(pod)))


def choose_for_deletion(pods: Sequence[Pod], count: int, now: datetime, related: Iterable[Pod] = ()) -> tuple[Pod, ...]:
    """Return as many Pods to delete."""
    if count >= len(pods):
        return tuple(pods)
    return tuple(order_for_deletion(pods, now, related)[:count])


def deletion_cost(pod: Pod) -> int:
    """Return the Pod's deletion cost annotation."""
    text = pod.metadata.annotations.get(DELETION_COST, "")
    return int(text) if _COST.fullmatch(text) else 0


def _compare(first: Pod, second: Pod, *, now: datetime) -> int:
    """Compare by age, younger first, in logarithmic steps; within one the uid decides, which is random."""
    ready = (ready_condition(first), ready_condition(second))
    if ready[0] is not None and ready[1] is not None:
        times = (ready[0].last_transition_time, ready[1].last_transition_time)
        if times[0] != times[1]:
            return _compare_ages(first, second, times, now)
    restarts = (restarts_max(first), restarts_max(second))
    if restarts[0] != restarts[1]:
        return -1 if restarts[0] > restarts[1] else 1
    created = (first.metadata.creation_timestamp, second.metadata.creation_timestamp)
    return _compare_ages(first, second, created, now) if created[0] != created[1] else 0


def _compare_ages(first: Pod, second: Pod, times: tuple[datetime | None, datetime | None], now: datetime) -> int:
    if times[0] is None or times[1] is None:
        return -1 if times[0] is None else 1
    difference = _magnitude(now, times[0]) - _magnitude(now, times[1])
    if difference:
        return difference
    return -1 if (first.metadata.uid or "") < (second.metadata.uid or "") else 1


def _magnitude(now: datetime, then: datetime) -> int:
    age = int((now - then).total_seconds() * _NANOSECONDS)
    return int(math.log2(age)) if age > 0 else -1


_HUNDRED: Final = 100


def scaled_value(value: int | str | None, total: int, *, round_up: bool) -> int:
    """Return the number, or the percentage of the total."""
    if isinstance(value, str):
        share = int(value.removesuffix("%")) * total
        return -(-share // _HUNDRED) if round_up else share // _HUNDRED
    return value or 0
