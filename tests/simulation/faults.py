"""The faults that a simulation declares: how often each happens, and how often it has."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from types import MappingProxyType


class Faults:
    """Rates by the name of a fault, per chance to happen; `fired` counts those that happened."""

    def __init__(self, **rates: float) -> None:
        self._rates = MappingProxyType(rates)
        # Switches all of them.
        self.on = True
        # Operations, and events received.
        self.steps = 0
        self.fired: Counter[str] = Counter()
        # How often the run took paths that it is meant for.
        self.paths: Counter[str] = Counter()

    @property
    def declared(self) -> set[str]:
        return {name for name, rate in self._rates.items() if rate}

    def happens(self, name: str, rng: random.Random) -> bool:
        """Decide whether a fault happens now, and count it."""
        rate = self._rates[name]
        if not self.on or not rate or rng.random() >= rate:
            return False
        self.fired[name] += 1
        return True

    def choose(self, names: Iterable[str], rng: random.Random) -> str:
        """Return the one of the faults that happens now, and count it; empty if none does."""
        if not self.on:
            return ""
        point = rng.random()
        for name in names:
            point -= self._rates[name]
            if point < 0:
                self.fired[name] += 1
                return name
        return ""
