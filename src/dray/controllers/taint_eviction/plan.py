"""How long Pods tolerate NoExecute taints, and when they are evicted. Pure."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from dray.api.tolerations import tolerates
from dray.api.types.core_v1 import Taint, Toleration

K = TypeVar("K", bound=Hashable)

NO_EXECUTE: Final = "NoExecute"
EVENT_REASON: Final = "TaintManagerEviction"
CONDITION_REASON: Final = "DeletionByTaintManager"
CONDITION_MESSAGE: Final = "Taint manager: deleting due to NoExecute taint"


def no_execute_taints(taints: Iterable[Taint]) -> tuple[Taint, ...]:
    """Return the taints that evict Pods."""
    return tuple(taint for taint in taints if taint.effect == NO_EXECUTE)


def tolerated_seconds(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> float | None:
    """Return how long the taints are tolerated: 0 not at all, None forever.

    Of several matching tolerations the shortest time counts.
    """
    used: list[Toleration] = []
    for taint in taints:
        matching = [toleration for toleration in tolerations if tolerates(toleration, taint)]
        if not matching:
            return 0.0
        # One toleration is enough for a taint; Kubernetes takes the first.
        used.append(matching[0])
    limits = [toleration.toleration_seconds for toleration in used if toleration.toleration_seconds is not None]
    return float(max(min(limits), 0)) if limits else None


@dataclass(frozen=True, slots=True)
class ScheduledEviction:
    """When a Pod is evicted and when that was first scheduled, in monotonic seconds."""

    scheduled: float
    due: float


class EvictionSchedule(Generic[K]):
    """The Pods that are to be evicted."""

    def __init__(self) -> None:
        self._evictions: dict[K, ScheduledEviction] = {}

    @property
    def pods(self) -> Collection[K]:
        """The Pods, as a collection that follows the schedule."""
        return self._evictions

    def schedule(self, key: K, seconds: float, now: float) -> ScheduledEviction:
        """Set when the Pod is evicted.

        A longer toleration counts from when the eviction was first scheduled, so that changing taints cannot delay it
        forever. A shorter one counts from now and never delays it.
        """
        old = self._evictions.get(key)
        if old is None:
            eviction = ScheduledEviction(now, now + seconds)
        else:
            due = max(old.scheduled + seconds, min(old.due, now + seconds))
            eviction = ScheduledEviction(old.scheduled, due if seconds > 0 else now)
        self._evictions[key] = eviction
        return eviction

    def cancel(self, key: K) -> bool:
        """Drop the eviction; return whether there was one."""
        return self._evictions.pop(key, None) is not None

    def __contains__(self, key: K) -> bool:
        return key in self._evictions

    def __len__(self) -> int:
        return len(self._evictions)
