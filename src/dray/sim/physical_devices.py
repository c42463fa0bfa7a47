"""Physical devices and how much of each is used: by partitions, by shares, or as a whole. Pure.

The devices of a ResourceSlice that consume counters of the same set are partitions of one physical device. It is used
as far as its most used counter: a card whose memory is all taken is full, whatever its number of partitions. A device
without counters is a physical device of its own; one that claims share is used as far as its most consumed capacity.
Devices of device plugins have no names in the API: they are counted for each node and resource.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from dray.api.extended_resources import ClassResources
from dray.api.pod_claims import is_pod_done
from dray.api.types.core_v1 import Node, Pod
from dray.sim.devices import PLUGIN_DRIVER, DeviceRow, DeviceState, DeviceSurvey, Holder, binary_text, device_rows
from dray.sim.double_offers import DoubleOffer, double_offers
from dray.sim.snapshot import Snapshot
from dray.sim.usable_nodes import UsableNodes

if TYPE_CHECKING:
    from dray.allocator.pools import Pool, PoolDevice

# A device of a slice, with its state.
Published: TypeAlias = "tuple[PoolDevice, DeviceRow]"
# Amounts by node, resource, and `namespace/name` of the Pod. Reading the requests of all Pods is most of the work.
UsedResources: TypeAlias = Mapping[str, Mapping[str, Mapping[str, int]]]
# Resources of nodes with such names are no devices.
_NO_DEVICES: Final = ("kubernetes.io/", "attachable-volumes-", "hugepages-")
_OUT: Final = frozenset({DeviceState.TAINTED, DeviceState.UNHEALTHY, DeviceState.UNUSABLE, DeviceState.WITHHELD})


class PhysicalState(enum.StrEnum):
    """Whether a physical device can be used; the first that applies, in this order."""

    # A claim has a part of it or all of it.
    IN_USE = "in use"
    # Nobody uses it, and no new Pod can: it is tainted, unhealthy, in an unusable pool, or its node takes no Pods.
    UNAVAILABLE = "unavailable"
    # A new Pod could use it.
    FREE = "free"


class CounterUse(msgspec.Struct, frozen=True, gc=False):
    """A counter of a physical device."""

    driver: str
    pool: str
    counter_set: str
    counter: str
    total: str
    used: str
    # From 0 to 1.
    share: float


class PhysicalDevice(msgspec.Struct, frozen=True, gc=False):
    """A physical device, or several of a device plugin on one node."""

    driver: str
    pool: str
    # The counter set, the device, or the resource of a device plugin.
    name: str
    node: str
    classes: frozenset[str]
    state: PhysicalState
    # The fraction in use, from 0 to 1.
    used: float
    # The devices of the slice that it is published as.
    published: tuple[str, ...] = ()
    # More than one for a device plugin.
    count: int = 1
    counters: tuple[CounterUse, ...] = ()
    # Why it is unavailable, in few words.
    reason: str = ""
    # Whether a driver offers the same devices: then they count as those of the driver.
    is_repeated: bool = False


def physical_devices(snapshot: Snapshot) -> list[PhysicalDevice]:
    """Return all physical devices, by node, driver, pool and name."""
    survey = DeviceSurvey.of(snapshot)
    found: list[PhysicalDevice] = []
    rows: list[DeviceRow] = []
    for pool in survey.inventory.pools():
        for device, parts in devices_of_pool(survey, pool):
            found.append(device)
            rows += [row for _, row in parts]
    found = with_plugin_devices(snapshot, found, rows, used_resources(snapshot))
    return sorted(found, key=lambda item: (item.node, item.driver, item.pool, item.name))


def offers_of(snapshot: Snapshot, rows: Iterable[DeviceRow], used: UsedResources) -> list[DoubleOffer]:
    """Return which of the devices of drivers, given as rows, a device plugin offers too."""
    unique = {row.key: row for row in rows}
    return double_offers(unique.values(), plugin_resources(snapshot, used), snapshot.classes, snapshot.pods)


def _held_back(snapshot: Snapshot, used: UsedResources) -> dict[tuple[str, str], tuple[str, int]]:
    """Return, by node and class, the resource and number of devices that Pods have through a plugin that is gone.

    It is unknown which ones they are: the scheduler keeps as many free devices of the class from others.
    """
    names = ClassResources(snapshot.classes)
    found: dict[tuple[str, str], tuple[str, int]] = {}
    for node in snapshot.nodes:
        on_node = node.metadata.name or ""
        for resource, amounts in used.get(on_node, {}).items():
            name = names.class_of(resource)
            if name is not None and node.status.allocatable.get(resource, "0") == "0":
                key = on_node, name
                found[key] = resource, found.get(key, ("", 0))[1] + sum(amounts.values())
    return found


def with_plugin_devices(
    snapshot: Snapshot, of_drivers: Sequence[PhysicalDevice], rows: Iterable[DeviceRow], used: UsedResources
) -> list[PhysicalDevice]:
    """Return the devices of drivers, given with their rows, and of plugins; those of both count once.

    The devices are those of the driver. What Pods have by the plugin is not free for claims, and the other way round.
    """
    held_back = _held_back(snapshot, used)
    held: dict[tuple[str, str], int] = {}
    taken: dict[str, str] = {}
    for offer in offers_of(snapshot, rows, used):
        key = offer.node, offer.resource
        held[key] = held.get(key, 0) + len(offer.held)
        taken |= dict.fromkeys(offer.taken_through_plugin(), f"in use as {offer.resource}")
    found: list[PhysicalDevice] = []
    for device in (*of_drivers, *_plugin_devices(snapshot, used)):
        if device.driver == PLUGIN_DRIVER and (device.node, device.name) in held:
            found += _repeated(device, held[device.node, device.name])
        elif device.state is PhysicalState.FREE and (reason := _taken(device, taken) or _held(device, held_back)):
            found.append(msgspec.structs.replace(device, state=PhysicalState.UNAVAILABLE, reason=reason))
        else:
            found.append(device)
    return found


def _held(device: PhysicalDevice, left: dict[tuple[str, str], tuple[str, int]]) -> str:
    """Return why the device is held back, and count it; empty if it is not."""
    for name in device.classes:
        resource, count = left.get((device.node, name), ("", 0))
        if count:
            left[device.node, name] = resource, count - 1
            return f"held back for {resource}"
    return ""


def _repeated(device: PhysicalDevice, held: int) -> Iterator[PhysicalDevice]:
    """Yield the devices of a plugin that a driver offers too: as many are not free as claims have."""
    out = min(held, device.count) if device.state is PhysicalState.FREE else 0
    if out < device.count:
        yield msgspec.structs.replace(device, count=device.count - out, is_repeated=True)
    if out:
        state, reason = PhysicalState.UNAVAILABLE, "in use by claims"
        yield msgspec.structs.replace(device, count=out, state=state, reason=reason, is_repeated=True)


def _taken(device: PhysicalDevice, taken: Mapping[str, str]) -> str:
    keys = (f"{device.driver}/{device.pool}/{name}" for name in device.published)
    return next((taken[key] for key in keys if key in taken), "")


def devices_of_pool(survey: DeviceSurvey, pool: Pool) -> Iterator[tuple[PhysicalDevice, Sequence[Published]]]:
    """Yield the physical devices of a pool, each with the devices of its slices that it is published as."""
    members: dict[str, list[Published]] = {}
    for device, row in survey.rows(pool):
        for name in physical_names(device):
            members.setdefault(name, []).append((device, row))
    by_set = _counters_by_set(pool, pool.used_counters(survey.allocations))
    for name, parts in members.items():
        counters = tuple(by_set.get(name, ())) if parts[0][0].consumes else ()
        rows = [row for _, row in parts]
        if counters:
            fraction = max([counter.share for counter in counters])
        else:
            fraction = max([_share_of(survey, device, row) for device, row in parts])
        state = _state(rows, fraction)
        physical = PhysicalDevice(
            driver=pool.driver,
            pool=pool.name,
            name=name,
            node=rows[0].node,
            classes=frozenset().union(*[row.classes for row in rows]),
            state=state,
            used=fraction,
            published=tuple([row.name for row in rows]),
            counters=counters,
            reason=_reason(rows) if state is PhysicalState.UNAVAILABLE else "",
        )
        yield physical, parts


def physical_names(device: PoolDevice) -> Iterable[str]:
    """Return the physical devices that a device of a slice is a part of; counters may be of several sets."""
    return dict.fromkeys([name for (name, _), _ in device.consumes]) if device.consumes else (device.name,)


def _counters_by_set(pool: Pool, used: Mapping[tuple[str, str], int]) -> Mapping[str, Sequence[CounterUse]]:
    found: dict[str, list[CounterUse]] = {}
    for (counter_set, counter), total in pool.counters.items():
        taken = used.get((counter_set, counter), 0)
        share = min(taken / total, 1.0) if total else 0.0
        use = CounterUse(pool.driver, pool.name, counter_set, counter, binary_text(total), binary_text(taken), share)
        found.setdefault(counter_set, []).append(use)
    return found


def _share_of(survey: DeviceSurvey, device: PoolDevice, row: DeviceRow) -> float:
    """Return the fraction of a device without counters that is in use."""
    if not row.holders or all(holder.admin_access for holder in row.holders):
        return 0.0
    if not device.spec.allow_multiple_allocations:
        return 1.0
    capacity = {name: survey.nanos(item.value) for name, item in device.spec.capacity.items()}
    consumed = survey.allocations.consumed(device.key)
    shares = [amount / capacity[name] for name, amount in consumed.items() if capacity.get(name)]
    return min(max(shares, default=1.0), 1.0)


def _state(rows: Sequence[DeviceRow], used: float) -> PhysicalState:
    if used or any(not holder.admin_access for row in rows for holder in row.holders):
        return PhysicalState.IN_USE
    return PhysicalState.UNAVAILABLE if all(row.state in _OUT for row in rows) else PhysicalState.FREE


def _reason(rows: Sequence[DeviceRow]) -> str:
    """Return why a physical device is unavailable, without what differs from one device to the next."""
    row = rows[0]
    if row.state is DeviceState.WITHHELD:
        return row.note.partition(" Pod ")[0]
    if row.state is DeviceState.TAINTED:
        return f"device taint {row.note.removeprefix('tainted: ').partition(':')[0]}"
    return "unhealthy" if row.state is DeviceState.UNHEALTHY else row.note.partition(":")[0].removeprefix("its ")


def _plugin_devices(snapshot: Snapshot, used: UsedResources) -> list[PhysicalDevice]:
    """Return the devices of device plugins, an entry for those of a node and resource in each state."""
    nodes = UsableNodes.of(snapshot)
    return [
        PhysicalDevice(
            PLUGIN_DRIVER,
            resource.node,
            resource.name,
            resource.node,
            frozenset({resource.name}),
            state,
            share,
            count=count,
            reason=reason,
        )
        for resource in plugin_resources(snapshot, used)
        for state, share, count, reason in (
            (PhysicalState.IN_USE, 1.0, resource.used, ""),
            (PhysicalState.UNAVAILABLE, 0.0, resource.unhealthy, "unhealthy"),
            (_free(nodes.obstacle(resource.node)), 0.0, resource.left, nodes.obstacle(resource.node)),
        )
        if count > 0
    ]


def _free(obstacle: str) -> PhysicalState:
    return PhysicalState.UNAVAILABLE if obstacle else PhysicalState.FREE


@dataclass(frozen=True, slots=True)
class PluginResource:
    """A resource of a device plugin on a node."""

    node: str
    name: str
    allocatable: int
    # Devices that the plugin has and reports as unhealthy.
    unhealthy: int
    used: int
    # The Pods that use it.
    pods: tuple[str, ...]

    @property
    def left(self) -> int:
        """Return how many are not in use."""
        return max(self.allocatable - self.used, 0)


def used_resources(snapshot: Snapshot) -> UsedResources:
    """Return what Pods use of the scalar resources of their nodes."""
    used: dict[str, dict[str, dict[str, int]]] = {}
    for pod in snapshot.pods:
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        for resource, amount in requested_resources(pod).items():
            used.setdefault(pod.spec.node_name or "", {}).setdefault(resource, {})[name] = amount
    return used


def plugin_resources(snapshot: Snapshot, used: UsedResources) -> list[PluginResource]:
    """Return the resources of device plugins, with what Pods on the node request."""
    return [
        item for node in snapshot.nodes for item in plugin_resources_of(node, used.get(node.metadata.name or "", {}))
    ]


def plugin_resources_of(node: Node, used: Mapping[str, Mapping[str, int]]) -> list[PluginResource]:
    """Return the resources of device plugins on a node; `used` has the amounts of its Pods by resource and Pod."""
    found = []
    for resource, text in sorted(node.status.allocatable.items()):
        capacity = node.status.capacity.get(resource, text)
        if "/" not in resource or resource.startswith(_NO_DEVICES) or not (text.isdigit() and capacity.isdigit()):
            continue
        pods = used.get(resource, {})
        amount = sum(pods.values())
        # Without its plugin, no device is healthy, and those that Pods have are in use all the same.
        unhealthy = max(int(capacity) - max(int(text), amount), 0)
        if int(capacity):
            name = node.metadata.name or ""
            found.append(PluginResource(name, resource, int(text), unhealthy, amount, tuple(pods)))
    return found


def requested_resources(pod: Pod) -> Mapping[str, int]:
    """Return what the Pod uses of the scalar resources of its node, without what devices of drivers serve."""
    # Imported on use: files of slices and claims need nothing of the scheduler's framework.
    from dray.framework.pod_info import PodInfo

    return PodInfo(pod).requests.scalars if pod.spec.node_name and not is_pod_done(pod) else {}


def all_rows(snapshot: Snapshot) -> list[DeviceRow]:
    """Return the rows of drivers and of device plugins; what both offer has both claimants."""
    rows = device_rows(snapshot)
    used = used_resources(snapshot)
    offers = offers_of(snapshot, rows, used)
    also: dict[str, list[str]] = {}
    drivers: dict[tuple[str, str], list[str]] = {}
    for offer in offers:
        drivers.setdefault((offer.node, offer.resource), []).append(f"driver {offer.driver}")
        for row in offer.rows:
            also.setdefault(row.key, []).append(offer.claimant(row))
    own = [msgspec.structs.replace(row, also=", ".join(also[row.key])) if row.key in also else row for row in rows]
    of_plugins = [
        msgspec.structs.replace(row, also=", ".join(dict.fromkeys(drivers.get((row.node, row.name), ()))))
        for row in plugin_rows(snapshot, used)
    ]
    return [*own, *of_plugins]


def plugin_rows(snapshot: Snapshot, used: UsedResources) -> list[DeviceRow]:
    """Return a row for each resource of a device plugin, as for devices of drivers."""
    nodes = UsableNodes.of(snapshot)
    starts = {f"{pod.metadata.namespace}/{pod.metadata.name}": pod.status.start_time for pod in snapshot.pods}
    return [
        _plugin_row(resource, nodes.obstacle(resource.node), starts) for resource in plugin_resources(snapshot, used)
    ]


def _plugin_row(resource: PluginResource, obstacle: str, starts: Mapping[str, datetime | None]) -> DeviceRow:
    state = DeviceState.SHARED if resource.used else DeviceState.FREE
    if resource.used >= resource.allocatable:
        state = DeviceState.HELD if resource.used else DeviceState.UNHEALTHY
    if state is DeviceState.FREE and obstacle:
        state = DeviceState.WITHHELD
    unhealthy = f", {resource.unhealthy} unhealthy" if resource.unhealthy else ""
    total = max(resource.allocatable, resource.used)
    return DeviceRow(
        driver=PLUGIN_DRIVER,
        pool=resource.node,
        name=resource.name,
        node=resource.node,
        state=state,
        note=f"{resource.used} of {total} in use{unhealthy}{f', {obstacle}' if obstacle else ''}",
        classes=(resource.name,),
        holders=tuple(Holder("", resource.name, (pod,), starts.get(pod)) for pod in resource.pods),
        attributes={},
        capacity={"devices": str(resource.allocatable)},
        taints=(),
    )
