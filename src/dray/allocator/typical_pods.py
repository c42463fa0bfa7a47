"""Which kinds of Pods are typical, learnt from the Pods that were seen. Pure and deterministic."""

from __future__ import annotations

from collections import Counter
from typing import Final

from dray.allocator.fragmentation import MILLION
from dray.allocator.units import PodKind

# Typical kinds make up this share of the Pods.
TYPICAL_PERCENT: Final = 95
# What is typical is replaced when the shares of kinds differ by more than this in all.
CHANGE_PERCENT: Final = 10
# Between two comparisons this part more Pods are seen, and at least some.
_GROWTH: Final = 4
_MORE_MIN: Final = 8
# Pods that count fully: beyond that all counts are halved, so that what was long ago counts less and less.
SEEN_MAX: Final = 1 << 15
# Kinds that can be typical; computing a value takes time for each.
KINDS_MAX: Final = 256

_ALL_PERCENT: Final = 100


class TypicalPods:
    """Counts the kinds of Pods."""

    def __init__(self) -> None:
        self._counts: Counter[PodKind] = Counter()
        self._seen = 0
        self._compare_at = 1
        self._used: dict[PodKind, int] = {}

    def add(self, kind: PodKind) -> None:
        """Count a Pod."""
        self._counts[kind] += 1
        self._seen += 1
        if self._seen >= SEEN_MAX:
            self._halve()

    def _halve(self) -> None:
        self._counts = Counter({kind: count // 2 for kind, count in self._counts.items() if count > 1})
        self._seen = sum(self._counts.values())
        self._compare_at = min(self._compare_at, self._seen + 1)

    def changed(self) -> list[tuple[PodKind, int]] | None:
        """Return the typical kinds with their shares in millionths, if they differ enough from the last ones."""
        if self._seen < self._compare_at:
            return None
        self._compare_at = self._seen + max(self._seen // _GROWTH, _MORE_MIN)
        typical = self._typical()
        shares = dict(typical)
        kinds = shares.keys() | self._used.keys()
        difference = sum(abs(shares.get(kind, 0) - self._used.get(kind, 0)) for kind in kinds) // 2
        if difference * _ALL_PERCENT <= CHANGE_PERCENT * MILLION:
            return None
        self._used = shares
        return typical

    def _typical(self) -> list[tuple[PodKind, int]]:
        # The most frequent first; by their requests if equally frequent.
        ordered = sorted(
            self._counts.items(), key=lambda item: (-item[1], item[0].milli_cpu, item[0].memory, item[0].demands)
        )
        found: list[tuple[PodKind, int]] = []
        covered = 0
        for kind, count in ordered[:KINDS_MAX]:
            if covered * _ALL_PERCENT >= TYPICAL_PERCENT * self._seen:
                break
            found.append((kind, count))
            covered += count
        return [(kind, MILLION * count // covered) for kind, count in found]


def _order(kind: PodKind) -> tuple[object, ...]:
    return kind.milli_cpu, kind.memory, kind.demands
