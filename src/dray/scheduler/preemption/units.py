"""Units of preemption: the Pods that are evicted together, or not at all. Pure.

A Pod is a unit of its own, unless its PodGroup has the disruption mode `all`: then all scheduled Pods of the group are
one unit, on whatever nodes they are. Either way the priority is that of the group.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from dray.api.pod_groups import group_key_of, is_disrupted_as_a_whole, priority_of
from dray.framework.pod_info import PodInfo
from dray.scheduler.pod_groups import PodGroups

# Later than any start: a Pod that has not started.
_NOT_STARTED: Final = datetime.max.replace(tzinfo=UTC)


class Unit(msgspec.Struct, frozen=True, gc=False):
    """One Pod, or all Pods of a group."""

    pods: tuple[PodInfo, ...]
    priority: int
    is_group: bool = False

    def importance(self) -> tuple[int, bool, int, datetime]:
        """Return the key by which units are ordered, the most important first; a Pod without a start is the last.

        It does not depend on the time, so that the order of a cached dry run is that of a new one. With the time as
        the start of a Pod without one, Pods whose start is still to come, by a clock that is ahead, would pass it.
        """
        pods = self.pods
        started = pods[0].pod.status.start_time or _NOT_STARTED
        if len(pods) > 1:
            started = min([pod.pod.status.start_time or _NOT_STARTED for pod in pods])
        return -self.priority, not self.is_group, -len(pods), started


def unit_of(pod: PodInfo) -> Unit:
    """Return a Pod as a unit of its own."""
    return Unit((pod,), pod.priority)


def units_of(pods: Iterable[PodInfo], groups: PodGroups | None) -> list[Unit]:
    """Return the units that the Pods belong to, each once."""
    if groups is None:
        return [unit_of(pod) for pod in pods]
    units: list[Unit] = []
    whole: set[object] = set()
    for pod in pods:
        key = group_key_of(pod.pod)
        group = None if key is None else groups.get(key)
        if key is None or group is None:
            units.append(unit_of(pod))
        elif not is_disrupted_as_a_whole(group):
            units.append(Unit((pod,), priority_of(group)))
        elif key not in whole:
            whole.add(key)
            units.append(Unit(tuple(groups.scheduled(key).values()) or (pod,), priority_of(group), is_group=True))
    return units


def group_units(victims: Iterable[PodInfo], groups: PodGroups) -> int:
    """Return the number of units among the victims that belong to groups."""
    return sum(groups.group_of(unit.pods[0].pod) is not None for unit in units_of(victims, groups))
