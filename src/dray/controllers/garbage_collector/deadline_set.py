"""Who is looked at later, all by one timer; pure."""

from __future__ import annotations

from dray.api.document import UID


class Patience:
    """Objects that are given the same time; most are gone before it is over, and then cost nothing more."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # Uid -> when its time is over; in that order, since all have the same time.
        self._until: dict[UID, float] = {}

    def begin(self, uid: UID, now: float) -> bool:
        """Give the object time, unless it has some already; returns whether nobody was waiting."""
        first = not self._until
        self._until.setdefault(uid, now + self._seconds)
        return first

    def forget(self, uid: UID) -> None:
        """The object is gone."""
        self._until.pop(uid, None)

    def ended(self, now: float) -> tuple[UID, ...]:
        """Those whose time is over; told once."""
        over = []
        for uid, until in self._until.items():
            if until > now:
                break
            over.append(uid)
        for uid in over:
            del self._until[uid]
        return tuple(over)

    def left(self, now: float) -> float | None:
        """How long the next one has; None when nobody waits."""
        until = next(iter(self._until.values()), None)
        return max(0.0, until - now) if until is not None else None
