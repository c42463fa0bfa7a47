"""How long a Pod may stay on a node with NoExecute taints, and who is to go when; thinks only."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
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
    """The taints that make Pods leave."""
    return tuple(taint for taint in taints if taint.effect == NO_EXECUTE)


def stay_seconds(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> float | None:
    """How long the Pod may stay: 0 not at all, None for ever.

    Of several tolerations that matter the shortest time counts.
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
class Departure:
    """When a Pod goes, in monotonic seconds, and since when that is known."""

    known: float
    due: float


class Departures(Generic[K]):
    """The Pods that are to go."""

    def __init__(self) -> None:
        self._departures: dict[K, Departure] = {}

    def plan(self, key: K, stay: float, now: float) -> Departure:
        """Set when the Pod goes.

        A longer stay counts from when the first was known, so that a taint that changes does not keep a Pod for ever;
        a shorter one counts from now, and never makes the Pod go later.
        """
        old = self._departures.get(key)
        if old is None:
            departure = Departure(now, now + stay)
        else:
            due = max(old.known + stay, min(old.due, now + stay))
            departure = Departure(old.known, due if stay > 0 else now)
        self._departures[key] = departure
        return departure

    def cancel(self, key: K) -> bool:
        """The Pod stays or is gone; returns whether it was to go."""
        return self._departures.pop(key, None) is not None

    def __contains__(self, key: K) -> bool:
        return key in self._departures

    def __len__(self) -> int:
        return len(self._departures)
