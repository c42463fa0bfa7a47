"""A bound on requests: so many a second, and so many at once. Pure."""

from __future__ import annotations


class Limiter:
    """A bucket that fills with time; each request takes one out."""

    def __init__(self, per_second: float, burst: int, now: float) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._tokens = float(burst)
        self._filled_at = now

    def allow(self, now: float) -> bool:
        """Whether a request may pass now."""
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_second)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
