"""Rate limit of NoExecute taints: one FIFO queue of nodes per zone. Pure, time is an argument."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

# How many permits of a zone can accumulate.
_BURST: Final = 1.0


@dataclass(slots=True)
class _ZoneQueue:
    """The waiting nodes of one zone, in order, and its token bucket."""

    waiting: dict[str, None] = field(default_factory=dict)
    tokens: float = _BURST
    # When tokens were last added.
    refilled: float | None = None


class EvictionLimiter:
    """Permits to taint a node; a node keeps its permit until it is healthy or deleted."""

    def __init__(self) -> None:
        self._queues: dict[str, _ZoneQueue] = {}
        # Waiting node -> its zone.
        self._zones: dict[str, str] = {}
        self._permitted: set[str] = set()
        self._done: set[str] = set()

    def enqueue(self, name: str, zone: str) -> None:
        """Queue a node for a permit, unless it is queued or has had one."""
        if name in self._permitted or name in self._done or self._zones.get(name) == zone:
            return
        self.remove(name)
        self._zones[name] = zone
        self._queues.setdefault(zone, _ZoneQueue()).waiting[name] = None

    def remove(self, name: str) -> None:
        """Forget a node that is healthy or deleted."""
        self._permitted.discard(name)
        self._done.discard(name)
        zone = self._zones.pop(name, None)
        if zone is not None:
            self._queues[zone].waiting.pop(name, None)

    def is_permitted(self, name: str) -> bool:
        """Return whether the node may be tainted now."""
        return name in self._permitted

    def is_done(self, name: str) -> bool:
        """Return whether the node's permit was used."""
        return name in self._done

    def done(self, name: str) -> None:
        """Mark the node's permit as used."""
        self._permitted.discard(name)
        self._done.add(name)

    def next(self, zone: str, rate: float, now: float) -> tuple[str | None, float | None]:
        """Return the node that gets a permit, if any, and the seconds until the next, if a node waits for one."""
        queue = self._queues.get(zone)
        if queue is None:
            return None, None
        if queue.refilled is not None:
            queue.tokens = min(_BURST, queue.tokens + (now - queue.refilled) * rate)
        queue.refilled = now
        permitted = None
        # Tolerate rounding errors of a token that is due now.
        if queue.waiting and rate > 0 and queue.tokens > 1.0 - 1e-9:
            permitted = next(iter(queue.waiting))
            del queue.waiting[permitted], self._zones[permitted]
            queue.tokens -= 1.0
            self._permitted.add(permitted)
        if not queue.waiting or rate <= 0:
            return permitted, None
        return permitted, max((1.0 - queue.tokens) / rate, 0.0)

    @property
    def waiting_zones(self) -> tuple[str, ...]:
        """The zones with waiting nodes."""
        return tuple(sorted(zone for zone, queue in self._queues.items() if queue.waiting))
