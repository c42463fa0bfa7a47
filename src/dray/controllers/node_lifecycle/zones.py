"""Health of each zone, which determines its eviction rate. Pure.

When no zone has a healthy node, the controller is more likely disconnected than every node broken: evictions stop.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

# Fewer unhealthy nodes than this do not count as a disruption of the zone.
_UNHEALTHY_MIN: Final = 3


@dataclass(frozen=True, slots=True)
class Rates:
    """Eviction rates in nodes per second, with the defaults of Kubernetes."""

    primary: float = 0.1
    secondary: float = 0.01
    unhealthy_zone_threshold: float = 0.55
    large_cluster_size: int = 50


class ZoneState(enum.StrEnum):
    """Health of a zone."""

    INITIAL = "Initial"
    NORMAL = "Normal"
    PARTIAL_DISRUPTION = "PartialDisruption"
    FULL_DISRUPTION = "FullDisruption"


class Change(enum.Enum):
    """How an evaluation changed whether evictions are stopped."""

    NOTHING = enum.auto()
    STOPPED = enum.auto()
    RESUMED = enum.auto()


@dataclass(slots=True)
class Zone:
    """The nodes of one failure domain that have posted a status."""

    healthy: set[str] = field(default_factory=set)
    unhealthy: set[str] = field(default_factory=set)
    state: ZoneState = ZoneState.INITIAL

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.healthy) + len(self.unhealthy)


class Zones:
    """All zones; updated per node, evaluated by `evaluate`."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._zones: dict[str, Zone] = {}
        # Node -> its zone.
        self._zone_of: dict[str, str] = {}
        # Set while every zone is fully disrupted.
        self.stopped = False

    def put(self, name: str, zone: str, *, healthy: bool | None) -> None:
        """Record whether the node is healthy; None excludes it from the zone's health."""
        self.remove(name)
        self._zone_of[name] = zone
        if healthy is None:
            return
        members = self._zones.setdefault(zone, Zone())
        (members.healthy if healthy else members.unhealthy).add(name)

    def remove(self, name: str) -> None:
        """Remove a deleted Node."""
        zone = self._zones.get(self._zone_of.pop(name, ""))
        if zone is not None:
            zone.healthy.discard(name)
            zone.unhealthy.discard(name)

    def zone_of(self, name: str) -> str:
        """Return the node's zone."""
        return self._zone_of.get(name, "")

    def evaluate(self) -> Change:
        """Update the state of every zone."""
        for name in [name for name, zone in self._zones.items() if not zone.size]:
            del self._zones[name]
        for zone in self._zones.values():
            zone.state = self._state(zone)
        stopped = bool(self._zones) and all(zone.state is ZoneState.FULL_DISRUPTION for zone in self._zones.values())
        before, self.stopped = self.stopped, stopped
        if before == stopped:
            return Change.NOTHING
        return Change.STOPPED if stopped else Change.RESUMED

    def rate(self, name: str) -> float:
        """Return how many nodes per second may be tainted in the zone."""
        zone = self._zones.get(name)
        if self.stopped:
            return 0.0
        if zone is None or zone.state is not ZoneState.PARTIAL_DISRUPTION:
            return self._rates.primary
        return self._rates.secondary if zone.size > self._rates.large_cluster_size else 0.0

    def items(self) -> tuple[tuple[str, Zone], ...]:
        """Return every zone by name."""
        return tuple(sorted(self._zones.items()))

    def _state(self, zone: Zone) -> ZoneState:
        if not zone.healthy:
            return ZoneState.FULL_DISRUPTION
        unhealthy = len(zone.unhealthy)
        if unhealthy >= _UNHEALTHY_MIN and unhealthy / zone.size >= self._rates.unhealthy_zone_threshold:
            return ZoneState.PARTIAL_DISRUPTION
        return ZoneState.NORMAL
