"""How many nodes of each zone are well, and so how fast nodes may be emptied.

When nothing is well anywhere, the fault is more likely the controller's view than every machine: emptying stops.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

# Fewer silent nodes than this are no sign of trouble with the zone itself.
_UNWELL_MIN: Final = 3


@dataclass(frozen=True, slots=True)
class Rates:
    """Kubernetes' numbers; rates are nodes a second."""

    primary: float = 0.1
    secondary: float = 0.01
    unhealthy_zone_threshold: float = 0.55
    large_cluster_size: int = 50


class ZoneState(enum.StrEnum):
    """How much of a zone is well."""

    INITIAL = "Initial"
    NORMAL = "Normal"
    PARTIAL_DISRUPTION = "PartialDisruption"
    FULL_DISRUPTION = "FullDisruption"


class Change(enum.Enum):
    """What an evaluation found."""

    NOTHING = enum.auto()
    STOPPED = enum.auto()
    RESUMED = enum.auto()


@dataclass(slots=True)
class Zone:
    """The nodes of one failure domain that have ever said how they are."""

    well: set[str] = field(default_factory=set)
    unwell: set[str] = field(default_factory=set)
    state: ZoneState = ZoneState.INITIAL

    @property
    def size(self) -> int:
        """How many nodes count."""
        return len(self.well) + len(self.unwell)


class Zones:
    """All zones; changed as nodes are heard of, judged when `evaluate` is called."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._zones: dict[str, Zone] = {}
        # Name of a node -> its zone.
        self._places: dict[str, str] = {}
        # Set while every zone is fully disrupted.
        self.stopped = False

    def put(self, name: str, zone: str, *, well: bool | None) -> None:
        """The node is well or not; None when it does not count."""
        self.remove(name)
        self._places[name] = zone
        if well is None:
            return
        members = self._zones.setdefault(zone, Zone())
        (members.well if well else members.unwell).add(name)

    def remove(self, name: str) -> None:
        """The Node is gone."""
        zone = self._zones.get(self._places.pop(name, ""))
        if zone is not None:
            zone.well.discard(name)
            zone.unwell.discard(name)

    def zone_of(self, name: str) -> str:
        """Where the node is."""
        return self._places.get(name, "")

    def evaluate(self) -> Change:
        """Judge every zone anew."""
        for name in [name for name, zone in self._zones.items() if not zone.size]:
            del self._zones[name]
        for zone in self._zones.values():
            zone.state = self._judge(zone)
        stopped = bool(self._zones) and all(zone.state is ZoneState.FULL_DISRUPTION for zone in self._zones.values())
        before, self.stopped = self.stopped, stopped
        if before == stopped:
            return Change.NOTHING
        return Change.STOPPED if stopped else Change.RESUMED

    def rate(self, name: str) -> float:
        """How many nodes of the zone may be emptied a second."""
        zone = self._zones.get(name)
        if self.stopped:
            return 0.0
        if zone is None or zone.state is not ZoneState.PARTIAL_DISRUPTION:
            return self._rates.primary
        return self._rates.secondary if zone.size > self._rates.large_cluster_size else 0.0

    def items(self) -> tuple[tuple[str, Zone], ...]:
        """Every zone by its name."""
        return tuple(sorted(self._zones.items()))

    def _judge(self, zone: Zone) -> ZoneState:
        if not zone.well:
            return ZoneState.FULL_DISRUPTION
        unwell = len(zone.unwell)
        if unwell >= _UNWELL_MIN and unwell / zone.size >= self._rates.unhealthy_zone_threshold:
            return ZoneState.PARTIAL_DISRUPTION
        return ZoneState.NORMAL
