"""The devices that plugins report, and their health. Pure; time is an argument.

A registration opens a *session*: one ListAndWatch stream of that plugin. Reports and the end of an older session do not
affect a newer one. When a session ends, the resource's devices are unhealthy; after the grace period the resource is
dropped, and its capacity is reported as zero.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NewType

from dray.node.topology.hints import mask_of

Session = NewType("Session", int)


@dataclass(frozen=True, slots=True)
class Device:
    """A device as last reported by its plugin."""

    id: str
    healthy: bool
    numa_nodes: tuple[int, ...] = ()

    @property
    def mask(self) -> int:
        """The device's NUMA nodes as a set."""
        return mask_of(self.numa_nodes)


@dataclass(slots=True)
class _Resource:
    devices: dict[str, Device] = field(default_factory=dict)
    session: Session | None = None
    endpoint: str = ""
    # The current session has sent its devices; until then those of the previous one are kept as unhealthy.
    listed: bool = False
    # The healthy devices in the order of names, computed on demand.
    healthy: tuple[Device, ...] | None = None
    healthy_ids: frozenset[str] = frozenset()
    has_topology: bool = False
    # Set exactly while there is no session.
    stopped_at: float | None = None


class TakenError(Exception):
    """Another plugin serves the resource."""


class Inventory:
    """All resources of device plugins; changed only by its methods."""

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._resources: dict[str, _Resource] = {}
        self._dropped: set[str] = set()
        self._sessions = 0

    # --- What happens. ---

    def restore(self, resources: Iterable[str], now: float) -> None:
        """Restore resources after an agent restart; their plugins have to register within the grace period."""
        for name in resources:
            self._resources[name] = _Resource(stopped_at=now)

    def check_free(self, resource: str, endpoint: str) -> None:
        """Raise when a plugin at another endpoint serves the resource."""
        found = self._resources.get(resource)
        if found is not None and found.session is not None and found.endpoint != endpoint:
            raise TakenError(f'the ResourceName "{resource}" is already registered by endpoint "{found.endpoint}"')

    def opened(self, resource: str, endpoint: str) -> Session:
        """Open a session for a plugin that has registered; it replaces the previous one."""
        self.check_free(resource, endpoint)
        self._sessions += 1
        found = self._resources.setdefault(resource, _Resource())
        found.session, found.endpoint = Session(self._sessions), endpoint
        found.listed, found.stopped_at = False, None
        self._dropped.discard(resource)
        return found.session

    def update_devices(self, resource: str, session: Session, devices: Iterable[Device]) -> frozenset[str] | None:
        """Set the devices of the resource; return the IDs whose health changed, or None for an old session."""
        found = self._resources.get(resource)
        if found is None or found.session != session:
            return None
        before = {name: self.is_healthy(resource, name) for name in found.devices}
        found.devices, found.healthy = {device.id: device for device in devices}, None
        found.has_topology = any(device.numa_nodes for device in found.devices.values())
        found.listed = True
        changed = {name for name, was in before.items() if self.is_healthy(resource, name) != was}
        return frozenset(changed | (found.devices.keys() - before.keys()))

    def closed(self, resource: str, session: Session, now: float) -> frozenset[str] | None:
        """End a session; return the IDs that became unhealthy, or None for an old session."""
        found = self._resources.get(resource)
        if found is None or found.session != session:
            return None
        healthy = self.healthy(resource)
        found.session, found.listed, found.stopped_at = None, False, now
        return healthy

    def expire(self, now: float) -> bool:
        """Drop the resources whose grace period is over; return whether there were any."""
        gone = {
            name
            for name, found in self._resources.items()
            if found.stopped_at is not None and now >= found.stopped_at + self._grace_seconds
        }
        for name in gone:
            del self._resources[name]
        self._dropped |= gone
        return bool(gone)

    # --- What is. ---

    @property
    def next_expiry(self) -> float | None:
        """When the next grace period is over."""
        stops = [found.stopped_at for found in self._resources.values() if found.stopped_at is not None]
        return min(stops) + self._grace_seconds if stops else None

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources whose plugin is registered or may register again."""
        return tuple(sorted(self._resources))

    def knows(self, resource: str) -> bool:
        """Whether the resource is one of device plugins."""
        return resource in self._resources

    def session(self, resource: str) -> Session | None:
        """Return the current session of the resource."""
        found = self._resources.get(resource)
        return None if found is None else found.session

    def devices(self, resource: str) -> Mapping[str, Device]:
        """Return the devices that were reported last, by ID."""
        found = self._resources.get(resource)
        return {} if found is None else found.devices

    def is_current(self, resource: str) -> bool:
        """Whether a plugin is connected and has reported its devices."""
        found = self._resources.get(resource)
        return found is not None and found.listed

    def is_healthy(self, resource: str, device_id: str) -> bool:
        """Whether the device is healthy."""
        found = self._resources.get(resource)
        if found is None or not found.listed:
            return False
        device = found.devices.get(device_id)
        return device is not None and device.healthy

    def healthy(self, resource: str) -> frozenset[str]:
        """Return the IDs of healthy devices."""
        found = self._resources.get(resource)
        if found is None or not found.listed:
            return frozenset()
        self._look(found)
        return found.healthy_ids

    def healthy_devices(self, resource: str) -> tuple[Device, ...]:
        """Return the healthy devices in the order of names."""
        found = self._resources.get(resource)
        return () if found is None or not found.listed else self._look(found)

    @staticmethod
    def _look(found: _Resource) -> tuple[Device, ...]:
        if found.healthy is None:
            names = in_order(name for name, device in found.devices.items() if device.healthy)
            found.healthy = tuple(found.devices[name] for name in names)
            found.healthy_ids = frozenset(names)
        return found.healthy

    def has_topology(self, resource: str) -> bool:
        """Whether any device has NUMA nodes."""
        found = self._resources.get(resource)
        return found is not None and found.has_topology

    def amounts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return capacity (all devices) and allocatable (healthy devices); zero for dropped resources."""
        capacity = dict.fromkeys(sorted(self._dropped), 0)
        allocatable = dict(capacity)
        for name in self.resources:
            capacity[name] = len(self.devices(name))
            allocatable[name] = len(self.healthy(name))
        return capacity, allocatable


_NUMBERS: Final = re.compile(r"([0-9]+)")
# The same devices are sorted repeatedly; a node has hundreds of them, seldom thousands.
NAMES_KEPT: Final = 16384


@functools.lru_cache(maxsize=NAMES_KEPT)
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that compares numbers in names by value: gpu2 before gpu10."""
    parts = _NUMBERS.split(name)
    return tuple((0, int(part), part) if index % 2 else (1, 0, part) for index, part in enumerate(parts))


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names in natural order."""
    return tuple(sorted(names, key=natural))
