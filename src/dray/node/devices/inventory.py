"""The devices that plugins report, and their health. Pure; time is an argument.

A registration opens a *session*: one ListAndWatch stream of that plugin. During a rolling update several plugins have
sessions for one resource, and each report replaces its devices. When the last session ends, the resource's devices are
unhealthy; after the grace period the resource is dropped, and its capacity is reported as zero. While a plugin does not
answer, its session is suspended.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NewType

from dray.node.topology.hints import mask_of

Session = NewType("Session", int)
# How many names of devices are kept, sorted and of those that have vanished; a node has hundreds, seldom thousands.
NAMES_KEPT: Final = 16384


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
class _Plugin:
    endpoint: str
    # It does not answer.
    suspended: bool = False


@dataclass(slots=True)
class _Resource:
    devices: dict[str, Device] = field(default_factory=dict)
    # The connected plugins, oldest first.
    plugins: dict[Session, _Plugin] = field(default_factory=dict)
    # One of the plugins has sent its devices; until then those of the previous session are kept as unhealthy.
    listed: bool = False
    # The IDs that the plugins have reported, in order; one that is no longer in `devices` has vanished.
    reported: dict[str, None] = field(default_factory=dict)
    # The healthy devices in the order of names, computed on demand.
    healthy: tuple[Device, ...] | None = None
    healthy_ids: frozenset[str] = frozenset()
    has_topology: bool = False
    # Set exactly while there is no session.
    stopped_at: float | None = None

    @property
    def current(self) -> bool:
        """Whether the devices are known to be as the plugin reported them."""
        return self.listed and not all(plugin.suspended for plugin in self.plugins.values())

    def health(self, device_id: str) -> bool | None:
        """Whether the device is healthy; None if the plugin has not said so."""
        if not self.current:
            return None
        device = self.devices.get(device_id)
        if device is not None:
            return device.healthy
        return False if device_id in self.reported else None


class ConnectedError(Exception):
    """The plugin at the endpoint is connected already."""


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

    def is_connected(self, resource: str, endpoint: str) -> bool:
        """Whether a plugin at the endpoint serves the resource and answers."""
        found = self._resources.get(resource)
        return found is not None and any(
            plugin.endpoint == endpoint and not plugin.suspended for plugin in found.plugins.values()
        )

    def opened(self, resource: str, endpoint: str) -> Session:
        """Open a session for a plugin that has registered, beside those of other plugins; raises `ConnectedError`."""
        if self.is_connected(resource, endpoint):
            raise ConnectedError(f"device plugin already connected: {endpoint}")
        self._sessions += 1
        session = Session(self._sessions)
        found = self._resources.setdefault(resource, _Resource())
        found.plugins = {key: plugin for key, plugin in found.plugins.items() if plugin.endpoint != endpoint}
        if not found.plugins:
            found.listed, found.stopped_at, found.reported = False, None, {}
        found.plugins[session] = _Plugin(endpoint)
        self._dropped.discard(resource)
        return session

    def update_devices(self, resource: str, session: Session, devices: Iterable[Device]) -> frozenset[str] | None:
        """Set the devices of the resource; return the IDs whose health changed, or None for an old session."""
        found = self._resources.get(resource)
        if found is None or session not in found.plugins:
            return None
        listed = {device.id: device for device in devices}
        before = {name: found.health(name) for name in found.devices.keys() | found.reported.keys() | listed.keys()}
        found.devices, found.healthy = listed, None
        found.has_topology = any(device.numa_nodes for device in listed.values())
        found.listed = True
        found.reported |= dict.fromkeys(listed)
        for name in list(found.reported)[: max(len(found.reported) - NAMES_KEPT, 0)]:
            if name not in listed:
                del found.reported[name]
        return frozenset(name for name, was in before.items() if found.health(name) != was)

    def closed(self, resource: str, session: Session, now: float) -> frozenset[str] | None:
        """End a session; return the IDs of devices whose health changed, all with the last session, or None if old."""
        found = self._resources.get(resource)
        if found is None or session not in found.plugins:
            return None
        was_current = found.current
        del found.plugins[session]
        if not found.plugins:
            found.listed, found.stopped_at = False, now
            return frozenset(found.devices)
        return frozenset(found.devices if found.current != was_current else ())

    def suspend(self, resource: str, session: Session, *, suspended: bool) -> frozenset[str] | None:
        """Note whether the plugin answers; return the IDs whose health changed, or None without a change."""
        found = self._resources.get(resource)
        plugin = None if found is None else found.plugins.get(session)
        if found is None or plugin is None or plugin.suspended == suspended:
            return None
        was_current = found.current
        plugin.suspended = suspended
        return frozenset(found.devices if found.current != was_current else ())

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
        """Return the newest session of the resource."""
        found = self._resources.get(resource)
        return None if found is None else next(reversed(found.plugins), None)

    def devices(self, resource: str) -> Mapping[str, Device]:
        """Return the devices that were reported last, by ID."""
        found = self._resources.get(resource)
        return {} if found is None else found.devices

    def is_healthy(self, resource: str, device_id: str) -> bool:
        """Whether the device is healthy."""
        return bool(self.health(resource, device_id))

    def health(self, resource: str, device_id: str) -> bool | None:
        """Whether the device is healthy; None if that is unknown.

        A device that its plugin no longer lists is unhealthy. A plugin that has started anew may list its devices one
        after the other: until it has listed the device once, its health is unknown.
        """
        found = self._resources.get(resource)
        return None if found is None else found.health(device_id)

    def healthy(self, resource: str) -> frozenset[str]:
        """Return the IDs of healthy devices."""
        found = self._resources.get(resource)
        if found is None or not found.current:
            return frozenset()
        self._look(found)
        return found.healthy_ids

    def healthy_devices(self, resource: str) -> tuple[Device, ...]:
        """Return the healthy devices in the order of names."""
        found = self._resources.get(resource)
        return () if found is None or not found.current else self._look(found)

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


@functools.lru_cache(maxsize=NAMES_KEPT)
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that compares numbers in names by value: gpu2 before gpu10."""
    parts = _NUMBERS.split(name)
    return tuple((0, int(part), part) if index % 2 else (1, 0, part) for index, part in enumerate(parts))


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names in natural order."""
    return tuple(sorted(names, key=natural))
