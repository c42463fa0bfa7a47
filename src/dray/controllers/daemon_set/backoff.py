"""Exponential backoff before failed daemon Pods are replaced. Pure, time is an argument."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

INITIAL_SECONDS: Final = 1.0
MAX_SECONDS: Final = 15 * 60.0
# Above this number, keys unused for longer than twice the maximum are dropped.
KEYS_MAX: Final = 10_000


@dataclass(slots=True)
class _Backoff:
    seconds: float
    since: float


class FailureBackoff:
    """One backoff per key, doubled by each call of `next`."""

    def __init__(self) -> None:
        self._backoffs: dict[Hashable, _Backoff] = {}

    def remaining(self, key: Hashable, now: float) -> float:
        """Return the remaining backoff of the key."""
        wait = self._backoffs.get(key)
        return 0.0 if wait is None else max(wait.since + wait.seconds - now, 0.0)

    def next(self, key: Hashable, now: float) -> None:
        """Start the key's next backoff; it restarts at the minimum after a long pause."""
        wait = self._backoffs.pop(key, None)
        fresh = wait is not None and now - wait.since <= 2 * MAX_SECONDS
        seconds = min(wait.seconds * 2, MAX_SECONDS) if wait is not None and fresh else INITIAL_SECONDS
        self._backoffs[key] = _Backoff(seconds, now)
        if len(self._backoffs) > KEYS_MAX:
            self._drop_unused(now)

    def _drop_unused(self, now: float) -> None:
        self._backoffs = {key: wait for key, wait in self._backoffs.items() if now - wait.since <= 2 * MAX_SECONDS}
