"""Device usage by node, class, driver and namespace. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from dray.api import classic_claims as classic
from dray.api.document import Document
from dray.api.extended_resources import ClassResources
from dray.api.types.resource_v1 import DeviceClass
from dray.sim.devices import PLUGIN_DRIVER
from dray.sim.physical_devices import (
    CounterUse,
    PhysicalDevice,
    PhysicalState,
    plugin_resources,
    requested_resources,
    used_resources,
)
from dray.sim.snapshot import Snapshot

_SECONDS_PER_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Physical devices of one node, class or driver."""

    name: str
    total: int
    # Those of which a claim has at least a part.
    held: int
    # Those that a new Pod could use.
    free: int
    # Neither held nor free: tainted, unhealthy, in an unusable pool, or on a node that takes no Pods.
    out: int
    # The sum of the fractions in use.
    used: float = 0.0
    # How many are out for which reason.
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The fraction in use, from 0 to 1."""
        return self.used / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class ExtendedResourceRow:
    """The devices of a node that serve an extended resource, of one class of a driver or of a device plugin."""

    node: str
    resource: str
    # Empty for a device plugin.
    device_class: str
    driver: str
    total: int
    held: int
    free: int
    out: int

    @classmethod
    def of(cls, node: str, resource: str, device_class: str, driver: str, usage: UsageRow) -> ExtendedResourceRow:
        """Return the row of counted devices."""
        return cls(node, resource, device_class, driver, usage.total, usage.held, usage.free, usage.out)


@dataclass(frozen=True, slots=True)
class NamespaceRow:
    """Usage of one namespace; hours count from each allocation, or start of a Pod, until now."""

    namespace: str
    claims: int
    pending: int
    devices: int
    device_hours: float


@dataclass(frozen=True, slots=True)
class PoolRow:
    """Devices of one pool, counted as in a ResourcePoolStatusRequest; None where the pool could not be counted."""

    driver: str
    pool: str
    node: str
    total: int | None = None
    allocated: int | None = None
    available: int | None = None
    unavailable: int | None = None
    error: str = ""

    @classmethod
    def of(cls, status: Document) -> PoolRow:
        """Return the row of an entry in the status of a request."""
        return cls(
            driver=status["driver"],
            pool=status["poolName"],
            node=status.get("nodeName") or "",
            total=status.get("totalDevices"),
            allocated=status.get("allocatedDevices"),
            available=status.get("availableDevices"),
            unavailable=status.get("unavailableDevices"),
            error=status.get("validationError") or "",
        )


def by_pool(snapshot: Snapshot) -> list[PoolRow]:
    """Return one row per pool, by driver and name."""
    # Imported on use: other tables need no allocator.
    from dray.allocator.taints import TaintRule
    from dray.controllers.resource_pool_status import pools

    rules = [TaintRule.from_document(rule) for rule in snapshot.taint_rules]
    rows: list[PoolRow] = []
    for driver in sorted({item.spec.driver for item in snapshot.slices}):
        used = pools.consumption(snapshot.claims, driver)
        for pool in pools.pools_of(snapshot.slices, driver):
            if pool.is_complete:
                status = pools.identity(pool) | pools.counts(pool, used.get(pool.name) or {}, rules)
            else:
                status = pools.incomplete(pool)
            rows.append(PoolRow.of(status))
    return rows


def by_node(devices: Iterable[PhysicalDevice]) -> list[UsageRow]:
    """Return one row per node; devices that are not local to one node are under `*`."""
    return _grouped(_once(devices), lambda device: (device.node,))


def by_class(devices: Iterable[PhysicalDevice]) -> list[UsageRow]:
    """Return one row per class, and per resource of device plugins; a device counts in each class that it matches."""
    return _grouped(devices, lambda device: sorted(device.classes))


def by_extended_resource(
    devices: Iterable[PhysicalDevice], classes: Iterable[DeviceClass]
) -> list[ExtendedResourceRow]:
    """Return one row for each node, explicit resource name, and class of a driver or device plugin that offers it.

    A device that a driver and a plugin both offer is in the rows of both.
    """
    names = ClassResources(classes)
    groups: dict[tuple[str, str, str, str], list[PhysicalDevice]] = {}
    for device in devices:
        for name in device.classes:
            if device.driver == PLUGIN_DRIVER:
                groups.setdefault((device.node, name, "", device.driver), []).append(device)
            else:
                # The first name is the implicit one, which every class has.
                for resource in names.resources_of(name)[1:]:
                    groups.setdefault((device.node, resource, name, device.driver), []).append(device)
    return [ExtendedResourceRow.of(*key, _usage("", members)) for key, members in sorted(groups.items())]


def by_driver(devices: Iterable[PhysicalDevice]) -> list[UsageRow]:
    """Return one row per driver."""
    return _grouped(_once(devices), lambda device: (device.driver,))


def _once(devices: Iterable[PhysicalDevice]) -> Iterable[PhysicalDevice]:
    return (device for device in devices if not device.is_repeated)


def _grouped(devices: Iterable[PhysicalDevice], names: Callable[[PhysicalDevice], Sequence[str]]) -> list[UsageRow]:
    groups: dict[str, list[PhysicalDevice]] = {}
    for device in devices:
        for name in names(device):
            groups.setdefault(name, []).append(device)
    return [_usage(name, members) for name, members in sorted(groups.items())]


def _usage(name: str, devices: Sequence[PhysicalDevice]) -> UsageRow:
    counts = dict.fromkeys(PhysicalState, 0)
    reasons = Counter[str]()
    for device in devices:
        counts[device.state] += device.count
        if device.reason:
            reasons[device.reason] += device.count
    return UsageRow(
        name,
        total=sum(counts.values()),
        held=counts[PhysicalState.IN_USE],
        free=counts[PhysicalState.FREE],
        out=counts[PhysicalState.UNAVAILABLE],
        used=sum(device.used * device.count for device in devices),
        reasons=dict(reasons.most_common()),
    )


def counter_rows(devices: Iterable[PhysicalDevice]) -> list[CounterUse]:
    """Return the counters of all physical devices."""
    return [counter for device in devices for counter in device.counters]


def by_namespace(snapshot: Snapshot, now: datetime) -> list[NamespaceRow]:
    """Return one row per namespace with claims, of either group, or with Pods that use devices of device plugins."""
    totals: dict[str, list[float]] = {}
    for claim in snapshot.claims:
        total = totals.setdefault(claim.metadata.namespace or "", [0, 0, 0, 0.0])
        total[0] += 1
        allocation = claim.status.allocation
        if allocation is None:
            total[1] += 1
            continue
        devices = sum(1 for result in allocation.devices.results if not result.admin_access)
        total[2] += devices
        since = allocation.allocation_timestamp or claim.metadata.creation_timestamp
        total[3] += devices * _hours(since, now)
    for classic_claim in snapshot.classic_claims:
        total = totals.setdefault(classic_claim.metadata.namespace or "", [0, 0, 0, 0.0])
        total[0] += 1
        total[1] += not classic.is_allocated(classic_claim)
    resources = {resource.name for resource in plugin_resources(snapshot, used_resources(snapshot))}
    for pod in snapshot.pods if resources else ():
        devices = sum(amount for name, amount in requested_resources(pod).items() if name in resources)
        if devices:
            total = totals.setdefault(pod.metadata.namespace or "", [0, 0, 0, 0.0])
            total[2] += devices
            total[3] += devices * _hours(pod.status.start_time, now)
    return [
        NamespaceRow(namespace, int(claims), int(pending), int(devices), hours)
        for namespace, (claims, pending, devices, hours) in sorted(totals.items())
    ]


def _hours(since: datetime | None, now: datetime) -> float:
    return 0.0 if since is None else max((now - since).total_seconds(), 0.0) / _SECONDS_PER_HOUR
