"""The devices that plugins report, and their health. Pure; time is an argument.

A registration opens a *session*: one ListAndWatch stream of that plugin. Several plugins may serve a resource, during a
rolling update or for good: each has the devices that it listed, and the resource has all of them. A device that two
plugins list belongs to the first that listed it, until that one ends. While a plugin does not answer, its session is
suspended. When a session ends, the devices that no other plugin lists are unhealthy; after the grace period they are
dropped, and a resource without plugins is dropped with its capacity reported as zero.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NewType

from dray.node.topology.hints import mask_of

Session = NewType("Session", int)
# How many names of devices are kept, sorted and of those that have vanished; a node has hundreds, seldom thousands.
NAMES_KEPT: Final = 16384
# How many plugins of a resource that have ended are kept; one that always registers a new socket leaves many.
ENDED_KEPT: Final = 16


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
    # As the plugin reported them last; until it has listed its own, those of its predecessor at the endpoint.
    devices: dict[str, Device] = field(default_factory=dict)
    listed: bool = False
    # The IDs that it has reported, in order; one that is no longer in `devices` has vanished.
    reported: dict[str, None] = field(default_factory=dict)
    # It does not answer.
    suspended: bool = False
    # Set when the session has ended.
    stopped_at: float | None = None

    @property
    def current(self) -> bool:
        """Whether the devices are known to be as the plugin reported them."""
        return self.listed and not self.suspended and self.stopped_at is None

    def report(self, devices: dict[str, Device]) -> None:
        """Replace the devices."""
        self.devices, self.listed = devices, True
        self.reported |= dict.fromkeys(devices)
        for name in list(self.reported)[: max(len(self.reported) - NAMES_KEPT, 0)]:
            if name not in devices:
                del self.reported[name]


@dataclass(frozen=True, slots=True)
class _View:
    """What the plugins of a resource have together; computed when it is asked for."""

    # The plugin to which each device belongs, and the device as that plugin reported it.
    owners: Mapping[str, Session]
    devices: Mapping[str, Device]
    # The healthy devices in the order of names.
    healthy: tuple[Device, ...]
    healthy_ids: frozenset[str]
    has_topology: bool


@dataclass(slots=True)
class _Resource:
    # In the order in which they registered; those that have ended are kept for the grace period.
    plugins: dict[Session, _Plugin] = field(default_factory=dict)
    # Who listed a device first, of those that are connected and still list it.
    first: dict[str, Session] = field(default_factory=dict)
    # Set exactly while no plugin is connected.
    stopped_at: float | None = None
    view: _View | None = None

    @property
    def connected(self) -> Iterator[_Plugin]:
        """The plugins whose sessions are open."""
        return (plugin for plugin in self.plugins.values() if plugin.stopped_at is None)

    def health(self, device_id: str) -> bool | None:
        """Whether the device is healthy; None if no plugin has said so."""
        if not any(plugin.current for plugin in self.plugins.values()):
            return None
        owner = self.look().owners.get(device_id)
        if owner is not None:
            plugin = self.plugins[owner]
            return plugin.devices[device_id].healthy if plugin.current else None
        return False if any(device_id in plugin.reported for plugin in self.connected if plugin.current) else None

    def healths(self) -> dict[str, bool | None]:
        """Return the health of all devices that were ever reported."""
        names = {name for plugin in self.plugins.values() for name in plugin.devices.keys() | plugin.reported.keys()}
        return {name: self.health(name) for name in names}

    def note_first(self) -> None:
        """Update who listed a device first: a plugin that ends or gives a device up leaves it to the next."""
        listing = {
            session: plugin.devices
            for session, plugin in self.plugins.items()
            if plugin.stopped_at is None and plugin.listed
        }
        self.first = {name: owner for name, owner in self.first.items() if name in listing.get(owner, ())}
        for session, names in listing.items():
            for name in names:
                self.first.setdefault(name, session)
        self.view = None

    def look(self) -> _View:
        """Return what the plugins have together."""
        if self.view is None:
            self.view = self._merge()
        return self.view

    def _merge(self) -> _View:
        owners: dict[str, Session] = {}
        ranks: dict[str, tuple[bool, bool, bool]] = {}
        for session, plugin in self.plugins.items():
            for name in plugin.devices:
                # Of several that list a device: one that answers, or else one that is connected; of those the first.
                rank = (plugin.current, plugin.stopped_at is None, self.first.get(name) == session)
                if name not in ranks or rank > ranks[name]:
                    owners[name], ranks[name] = session, rank
        devices = {name: self.plugins[session].devices[name] for name, session in owners.items()}
        names = in_order(
            name for name, device in devices.items() if device.healthy and self.plugins[owners[name]].current
        )
        return _View(
            owners,
            devices,
            tuple(devices[name] for name in names),
            frozenset(names),
            any(device.numa_nodes for device in devices.values()),
        )


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
            plugin.endpoint == endpoint and not plugin.suspended for plugin in found.connected
        )

    def opened(self, resource: str, endpoint: str) -> Session:
        """Open a session for a plugin that has registered, beside those of other plugins; raises `ConnectedError`."""
        if self.is_connected(resource, endpoint):
            raise ConnectedError(f"device plugin already connected: {endpoint}")
        self._sessions += 1
        session = Session(self._sessions)
        found = self._resources.setdefault(resource, _Resource())
        kept: dict[str, Device] = {}
        for key, plugin in list(found.plugins.items()):
            if plugin.endpoint == endpoint:
                kept |= plugin.devices
                self._forget(found, key)
        found.plugins[session] = _Plugin(endpoint, kept)
        found.stopped_at = found.view = None
        self._dropped.discard(resource)
        return session

    def update_devices(self, resource: str, session: Session, devices: Iterable[Device]) -> frozenset[str] | None:
        """Set the plugin's devices; return the IDs whose health changed, or None for an old session.

        A device that the plugin lists twice is unhealthy if it is in one of the two places.
        """
        found = self._resources.get(resource)
        plugin = None if found is None else found.plugins.get(session)
        if found is None or plugin is None or plugin.stopped_at is not None:
            return None
        listed: dict[str, Device] = {}
        for device in devices:
            if device.id not in listed or not device.healthy:
                listed[device.id] = device
        before = {**dict.fromkeys(listed), **found.healths()}
        plugin.report(listed)
        found.note_first()
        self._drop_replaced(found)
        return frozenset(name for name, was in before.items() if found.health(name) != was)

    def closed(self, resource: str, session: Session, now: float) -> frozenset[str] | None:
        """End a session; return the IDs of the devices that belonged to the plugin or now do to none, None if old."""
        found = self._resources.get(resource)
        plugin = None if found is None else found.plugins.get(session)
        if found is None or plugin is None or plugin.stopped_at is not None:
            return None
        before = found.healths()
        plugin.stopped_at = now
        found.note_first()
        self._drop_replaced(found)
        if not list(found.connected):
            found.stopped_at = now
            return frozenset(found.look().devices)
        return frozenset(name for name, was in before.items() if found.health(name) != was)

    def suspend(self, resource: str, session: Session, *, suspended: bool) -> frozenset[str] | None:
        """Note whether the plugin answers; return the IDs whose health changed, or None without a change."""
        found = self._resources.get(resource)
        plugin = None if found is None else found.plugins.get(session)
        if found is None or plugin is None or plugin.stopped_at is not None or plugin.suspended == suspended:
            return None
        before = found.healths()
        plugin.suspended = suspended
        found.view = None
        return frozenset(name for name, was in before.items() if found.health(name) != was)

    def expire(self, now: float) -> bool:
        """Drop the plugins and resources whose grace period is over; return whether there were any."""
        changed = False
        for name, found in list(self._resources.items()):
            ended = [key for key, plugin in found.plugins.items() if self._is_over(plugin.stopped_at, now)]
            for key in ended:
                self._forget(found, key)
            changed = changed or bool(ended)
            if self._is_over(found.stopped_at, now):
                del self._resources[name]
                self._dropped.add(name)
                changed = True
        return changed

    def _is_over(self, stopped_at: float | None, now: float) -> bool:
        return stopped_at is not None and now >= stopped_at + self._grace_seconds

    def _drop_replaced(self, found: _Resource) -> None:
        """Drop the plugins that have ended and whose devices are all listed by others, and the oldest of too many."""
        ended = [key for key, plugin in found.plugins.items() if plugin.stopped_at is not None]
        replaced = [key for key in ended if found.plugins[key].devices.keys() <= found.first.keys()]
        for key in {*replaced, *ended[: max(len(ended) - ENDED_KEPT, 0)]}:
            self._forget(found, key)

    @staticmethod
    def _forget(found: _Resource, session: Session) -> None:
        del found.plugins[session]
        found.note_first()

    # --- What is. ---

    @property
    def next_expiry(self) -> float | None:
        """When the next grace period is over."""
        of_plugins = (plugin.stopped_at for found in self._resources.values() for plugin in found.plugins.values())
        stops = [*of_plugins, *(found.stopped_at for found in self._resources.values())]
        known = [stop for stop in stops if stop is not None]
        return min(known) + self._grace_seconds if known else None

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
        return {} if found is None else found.look().devices

    def endpoint_of(self, resource: str, device_id: str) -> str | None:
        """Return the endpoint of the plugin to which the device belongs; None if nobody lists it."""
        found = self._resources.get(resource)
        owner = None if found is None else found.look().owners.get(device_id)
        return None if found is None or owner is None else found.plugins[owner].endpoint

    def all_listed(self, resource: str) -> bool:
        """Whether every connected plugin of the resource has sent its devices, and there is one."""
        found = self._resources.get(resource)
        plugins = [] if found is None else list(found.connected)
        return bool(plugins) and all(plugin.listed for plugin in plugins)

    def listed_by_others(self, resource: str, session: Session) -> dict[str, str]:
        """Return the devices that the plugin lists and that belong to another one, with the other's endpoint."""
        found = self._resources.get(resource)
        plugin = None if found is None else found.plugins.get(session)
        if found is None or plugin is None:
            return {}
        owners = ((name, found.look().owners[name]) for name in in_order(plugin.devices))
        return {
            name: found.plugins[owner].endpoint
            for name, owner in owners
            if owner != session and found.plugins[owner].stopped_at is None
        }

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
        return frozenset() if found is None else found.look().healthy_ids

    def healthy_devices(self, resource: str) -> tuple[Device, ...]:
        """Return the healthy devices in the order of names."""
        found = self._resources.get(resource)
        return () if found is None else found.look().healthy

    def has_topology(self, resource: str) -> bool:
        """Whether any device has NUMA nodes."""
        found = self._resources.get(resource)
        return found is not None and found.look().has_topology

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
