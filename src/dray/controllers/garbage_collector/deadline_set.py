"""Objects with a common grace period, all served by one timer. Pure, time is an argument."""

from __future__ import annotations

from dray.api.document import UID


class DeadlineSet:
    """Objects that are due after the same delay; most are removed before, which costs one dictionary lookup."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # Uid -> deadline; in this order, since all have the same delay.
        self._deadlines: dict[UID, float] = {}

    def add(self, uid: UID, now: float) -> bool:
        """Add an object, unless it is in the set; return whether the set was empty."""
        first = not self._deadlines
        self._deadlines.setdefault(uid, now + self._seconds)
        return first

    def discard(self, uid: UID) -> None:
        """Remove an object."""
        self._deadlines.pop(uid, None)

    def pop_expired(self, now: float) -> tuple[UID, ...]:
        """Remove and return the objects whose deadline has passed."""
        expired = []
        for uid, deadline in self._deadlines.items():
            if deadline > now:
                break
            expired.append(uid)
        for uid in expired:
            del self._deadlines[uid]
        return tuple(expired)

    def next_seconds(self, now: float) -> float | None:
        """Return the seconds until the next deadline; None if the set is empty."""
        deadline = next(iter(self._deadlines.values()), None)
        return max(0.0, deadline - now) if deadline is not None else None
