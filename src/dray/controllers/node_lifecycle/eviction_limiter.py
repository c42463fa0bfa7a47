"""Whose turn it is to be emptied: first come, first served in each zone, at the zone's rate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

# As many nodes of a zone may be emptied at once after a quiet time.
_BURST: Final = 1.0


@dataclass(slots=True)
class _Line:
    """The nodes of one zone that wait, in order, and the turns saved up."""

    waiting: dict[str, None] = field(default_factory=dict)
    saved: float = _BURST
    counted: float | None = None


class Turns:
    """Time is an argument; a node has its turn until it is well again or gone."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._places: dict[str, str] = {}
        self._granted: set[str] = set()
        self._done: set[str] = set()

    def ask(self, name: str, zone: str) -> None:
        """Wait in the zone's line; asking again changes nothing."""
        if name in self._granted or name in self._done or self._places.get(name) == zone:
            return
        self.withdraw(name)
        self._places[name] = zone
        self._lines.setdefault(zone, _Line()).waiting[name] = None

    def withdraw(self, name: str) -> None:
        """The node is well or gone."""
        self._granted.discard(name)
        self._done.discard(name)
        zone = self._places.pop(name, None)
        if zone is not None:
            self._lines[zone].waiting.pop(name, None)

    def has_turn(self, name: str) -> bool:
        """Whether the node may be emptied now."""
        return name in self._granted

    def is_done(self, name: str) -> bool:
        """Whether the node has been emptied."""
        return name in self._done

    def done(self, name: str) -> None:
        """The node has been emptied."""
        self._granted.discard(name)
        self._done.add(name)

    def next(self, zone: str, rate: float, now: float) -> tuple[str | None, float | None]:
        """Who may go next, and in how many seconds to ask again; None when there is no one or no rate."""
        line = self._lines.get(zone)
        if line is None:
            return None, None
        if line.counted is not None:
            line.saved = min(_BURST, line.saved + (now - line.counted) * rate)
        line.counted = now
        granted = None
        # A turn that is due by now up to rounding is due.
        if line.waiting and rate > 0 and line.saved > 1.0 - 1e-9:
            granted = next(iter(line.waiting))
            del line.waiting[granted], self._places[granted]
            line.saved -= 1.0
            self._granted.add(granted)
        if not line.waiting or rate <= 0:
            return granted, None
        return granted, max((1.0 - line.saved) / rate, 0.0)

    @property
    def zones_waiting(self) -> tuple[str, ...]:
        """The zones with a line."""
        return tuple(sorted(zone for zone, line in self._lines.items() if line.waiting))
