"""How soon a failed daemon may be replaced: the more often it failed, the later; pure, time is an argument."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 15 * 60.0
# Keys that were not used for longer than twice the longest wait are dropped when there are more than this.
KEYS_MAX: Final = 10_000


@dataclass(slots=True)
class _Wait:
    seconds: float
    since: float


class FailureBackoff:
    """One wait per key, doubled each time it is served."""

    def __init__(self) -> None:
        self._waits: dict[Hashable, _Wait] = {}

    def remaining(self, key: Hashable, now: float) -> float:
        """How long the key must still wait."""
        wait = self._waits.get(key)
        return 0.0 if wait is None else max(wait.since + wait.seconds - now, 0.0)

    def served(self, key: Hashable, now: float) -> None:
        """The key was served; next time it waits longer, unless that is long ago."""
        wait = self._waits.pop(key, None)
        fresh = wait is not None and now - wait.since <= 2 * LONGEST_SECONDS
        seconds = min(wait.seconds * 2, LONGEST_SECONDS) if wait is not None and fresh else FIRST_SECONDS
        self._waits[key] = _Wait(seconds, now)
        if len(self._waits) > KEYS_MAX:
            self._forget(now)

    def _forget(self, now: float) -> None:
        self._waits = {key: wait for key, wait in self._waits.items() if now - wait.since <= 2 * LONGEST_SECONDS}
