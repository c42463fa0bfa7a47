"""Pools of devices: the slices of the latest generation, and whether they are complete and valid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from dray.allocator.bits import indices
from dray.allocator.compatibility import NO_GROUPS, CommonGroups, DeviceGroups, device_groups, with_device
from dray.allocator.content import Content
from dray.allocator.gates import Gates
from dray.allocator.segments import Segment
from dray.api.quantity import Quantity
from dray.api.types.core_v1 import NodeSelector
from dray.api.types.resource_v1 import CounterSet, Device, DeviceTaint

if TYPE_CHECKING:
    from dray.allocator.allocations import UsedDevices

# One shared counter, and how much of it, in nano units.
CounterName = tuple[str, str]
Consumption = tuple[tuple[CounterName, int], ...]

_NOTHING: Final[Mapping[CounterName, int]] = {}
# The slices of a single node are one pool anyway.
_NODES_MIN: Final = 2


def pool_key(driver: str, pool: str) -> str:
    """Return the pool's name in errors and tables; driver names have no slash."""
    return f"{driver}/{pool}"


class PoolDevice:
    """A device in its pool; immutable."""

    __slots__ = ("consumes", "content", "entry", "groups", "key", "name", "spec")

    def __init__(self, entry: SliceEntry, spec: Device, content: Content) -> None:
        self.entry = entry
        self.spec = spec
        self.content = content
        self.name = spec.name
        # A string, because its hash is cached.
        self.key = f"{entry.pool.key}/{spec.name}"
        self.consumes: Consumption = ()
        self.groups: DeviceGroups = ()
        if spec.consumes_counters:
            self.consumes = _consumption(spec)
            self.groups = device_groups(spec)

    @property
    def taints(self) -> tuple[DeviceTaint, ...]:
        """Return the taints in the slice; rules add others."""
        return self.spec.taints


def _consumption(spec: Device) -> Consumption:
    return tuple(
        ((consumed.counter_set, counter), Quantity.parse(amount.value).nanos)
        for consumed in spec.consumes_counters
        for counter, amount in sorted(consumed.counters.items())
    )


class SliceEntry:
    """A slice in the inventory. Immutable."""

    __slots__ = (
        "_segments",
        "all_nodes",
        "counter_sets",
        "devices",
        "generation",
        "has_groups",
        "is_node_allocatable",
        "name",
        "node_name",
        "node_selector",
        "per_device",
        "pool",
        "skip_node_operations",
        "slice_count",
    )

    def __init__(self, name: str, pool: Pool, generation: int, slice_count: int) -> None:
        self.name = name
        self.pool = pool
        self.generation = generation
        self.slice_count = slice_count
        self.node_name: str | None = None
        self.node_selector: NodeSelector | None = None
        self.all_nodes = False
        self.per_device = False
        self.devices: tuple[PoolDevice, ...] = ()
        self.counter_sets: tuple[CounterSet, ...] = ()
        # Whether a device has compatibility groups.
        self.has_groups = False
        self.skip_node_operations: tuple[str, ...] = ()
        # Whether a device uses resources of the node.
        self.is_node_allocatable = False
        # By devices: usually one, more if devices select nodes themselves.
        self._segments: dict[tuple[Gates, int], Segment] = {}

    def segment(self, gates: Gates, members: int = -1) -> Segment:
        """Return the usable devices among the members, shared by all nodes with the same ones."""
        segment = self._segments.get((gates, members))
        if segment is None:
            chosen = self.devices if members < 0 else [self.devices[index] for index in indices(members)]
            segment = Segment(self.pool, [device for device in chosen if usable(device.spec, gates)], gates)
            self._segments[gates, members] = segment
        return segment


def usable(spec: Device, gates: Gates) -> bool:
    """Return whether the device uses no disabled feature."""
    if spec.consumes_counters and not gates.partitionable:
        return False
    return gates.binding_conditions or not spec.binding_conditions


class NodePool(msgspec.Struct, frozen=True):
    """The slices of one node that are a pool of their own: their generation, and why they are invalid."""

    generation: int
    problem: str | None


class Pool:
    """All slices of one pool, of all generations; changed by the inventory only.

    Drivers may use one pool name on several nodes. A node whose own slices are as many as they say has a pool of its
    own, whatever other nodes have (`node_pools`). Its devices still have the identity of the common name.
    """

    __slots__ = (
        "_common_groups",
        "_counters",
        "_dirty",
        "_generations",
        "_grouped",
        "_problem",
        "_spanning",
        "_state",
        "_used",
        "_used_at",
        "complete",
        "driver",
        "generation",
        "index",
        "key",
        "name",
        "node_pools",
        "version",
    )

    def __init__(self, driver: str, name: str) -> None:
        self.driver = driver
        self.name = name
        self.key = pool_key(driver, name)
        self._generations: dict[int, dict[str, SliceEntry]] = {}
        self._dirty = True
        # Of the latest generation, at the last refresh.
        self.generation = -1
        self.complete = False
        self.node_pools: Mapping[str, NodePool] = {}
        # The newest generation among the slices of nodes without a pool of their own; -1 if there are none.
        self._spanning = -1
        self.index: dict[str, PoolDevice] = {}
        self._problem: str | None = None
        self._counters: dict[CounterName, int] = {}
        self._grouped = False
        # Grows with each change that affects nodes other than the one whose slice has changed.
        self.version = 0
        self._state: object = None
        self._used: Mapping[CounterName, int] = _NOTHING
        self._common_groups: CommonGroups = NO_GROUPS
        self._used_at: tuple[object, int, int] | None = None

    def add(self, entry: SliceEntry) -> None:
        """Add a slice."""
        self._generations.setdefault(entry.generation, {})[entry.name] = entry
        self._dirty = True

    def remove(self, entry: SliceEntry) -> None:
        """Remove a slice."""
        entries = self._generations[entry.generation]
        del entries[entry.name]
        if not entries:
            del self._generations[entry.generation]
        self._dirty = True

    def __bool__(self) -> bool:
        return bool(self._generations)

    @property
    def problem(self) -> str | None:
        """Return why the complete pool is invalid; None if it is valid."""
        if self._problem is not None or not self.node_pools:
            return self._problem
        return next((pool.problem for pool in self.node_pools.values() if pool.problem is not None), None)

    def is_current(self, entry: SliceEntry) -> bool:
        """Return whether the slice is of the latest generation that counts for its nodes."""
        own = self.node_pools.get(entry.node_name or "")
        return entry.generation == (self.generation if own is None else own.generation)

    def is_complete(self, entry: SliceEntry) -> bool:
        """Return whether all slices of the pool, or of the node's own pool, are known."""
        return self.complete or (entry.node_name or "") in self.node_pools

    def problem_of(self, entry: SliceEntry) -> str | None:
        """Return why the slice's devices cannot be used although the pool is complete."""
        own = self.node_pools.get(entry.node_name or "")
        return self._problem if own is None else own.problem

    @property
    def counters(self) -> Mapping[CounterName, int]:
        """Return the shared counters, in nano units."""
        return self._counters

    def entries(self) -> Iterator[SliceEntry]:
        """Return the slices of the latest generation, by name; of each node if nodes have pools of their own."""
        if self.node_pools:
            entries = (entry for slices in self._generations.values() for entry in slices.values())
            return iter(sorted(filter(self.is_current, entries), key=lambda entry: entry.name))
        newest = self._generations.get(max(self._generations, default=-1), {})
        return (newest[name] for name in sorted(newest))

    def refresh(self, gates: Gates) -> int:
        """Refresh the pool's state and return its version."""
        if self._dirty:
            self._dirty = False
            self._judge(gates)
            # With shared counters a change of one device may affect all.
            if self._state != (state := self._common_state()) or self._counters:
                self._state = state
                self.version += 1
        return self.version

    def _common_state(self) -> object:
        """Return everything on which nodes depend apart from their own slices."""
        if self.node_pools and self._spanning < 0:
            # No node depends on another one.
            return None
        return self.generation, self.complete, self._problem, self._counters, self._spanning

    def _judge(self, gates: Gates) -> None:
        self.generation = max(self._generations, default=-1)
        newest = self._generations.get(self.generation, {})
        self.index, self._problem, self._counters = {}, None, {}
        self.node_pools, self._spanning = _node_pools(self._generations)
        all_alone = bool(self.node_pools) and self._spanning < 0
        self.complete = all_alone or all(entry.slice_count == len(newest) for entry in newest.values())
        self._grouped = any(entry.has_groups for entry in newest.values())
        if self._grouped and not gates.compatibility_groups:
            # Slices with groups are ignored, so that the pool lacks some.
            self.complete = False
        # An incomplete pool is not used, so it is not validated.
        if all_alone or not self.complete:
            return
        self._problem = _duplicate_device(newest.values())
        for entry in newest.values():
            for device in entry.devices:
                self.index.setdefault(device.name, device)
        if gates.partitionable:
            self._judge_counters(newest.values())

    def _judge_counters(self, entries: Iterable[SliceEntry]) -> None:
        names: set[str] = set()
        for entry in entries:
            for counter_set in entry.counter_sets:
                if counter_set.name in names:
                    self._problem = f"duplicate counter set {counter_set.name}"
                names.add(counter_set.name)
                for counter, amount in counter_set.counters.items():
                    self._counters[counter_set.name, counter] = Quantity.parse(amount.value).nanos
        for device in self.index.values():
            if device.spec.consumes_counters:
                self._problem = self._problem or self._unknown_counter(device, names)

    def _unknown_counter(self, device: PoolDevice, names: set[str]) -> str | None:
        for consumed in device.spec.consumes_counters:
            if consumed.counter_set not in names:
                return f"device {device.name} consumes unknown counter set {consumed.counter_set}"
        for (counter_set, counter), _ in device.consumes:
            if (counter_set, counter) not in self._counters:
                return f"device {device.name} consumes unknown counter {counter} of counter set {counter_set}"
        return None

    def used_counters(self, allocations: UsedDevices) -> Mapping[CounterName, int]:
        """Return what the allocated devices, on all nodes, consume of the counters."""
        if not self._counters:
            return _NOTHING
        at = (allocations, allocations.stamp(self.key), self.version)
        if self._used_at != at:
            self._used_at = at
            self._sum_used(allocations)
        return self._used

    def common_groups(self, allocations: UsedDevices) -> CommonGroups:
        """Return the compatibility groups of the allocated devices, on all nodes, by counter set."""
        if not self._grouped:
            return NO_GROUPS
        self.used_counters(allocations)
        return self._common_groups

    def _sum_used(self, allocations: UsedDevices) -> None:
        used: dict[CounterName, int] = {}
        common = NO_GROUPS
        prefix = len(self.key) + 1
        for key in allocations.keys_in_use(self.key):
            device = self.index.get(key[prefix:])
            if device is None:
                continue
            for counter, amount in device.consumes:
                used[counter] = used.get(counter, 0) + amount
            if self._grouped:
                common = with_device(common, device.groups)
        self._used, self._common_groups = used, common

    @property
    def is_grouped(self) -> bool:
        """Return whether devices of the pool have compatibility groups."""
        return self._grouped

    def lacking_counter(self, device: PoolDevice, used: Mapping[CounterName, int]) -> CounterName | None:
        """Return the first counter that is insufficient for the device."""
        for counter, amount in device.consumes:
            if used.get(counter, 0) + amount > self._counters.get(counter, 0):
                return counter
        return None


def _duplicate_device(entries: Iterable[SliceEntry]) -> str | None:
    """Return the problem of two devices with one name; slices of different nodes may have equal names."""
    nodes_of: dict[str, set[str | None]] = {}
    for entry in entries:
        for device in entry.devices:
            nodes = nodes_of.setdefault(device.name, set())
            # A slice that names no node may be seen by any.
            if nodes and (entry.node_name is None or entry.node_name in nodes or None in nodes):
                return f"duplicate device {device.name}"
            nodes.add(entry.node_name)
    return None


def _node_pools(generations: Mapping[int, Mapping[str, SliceEntry]]) -> tuple[dict[str, NodePool], int]:
    """Return the nodes whose own slices are a whole pool, and the newest generation of the other slices or -1.

    There are none if only one node has slices, or if slices have counters or do not name a node: then all slices are
    one pool. An older pool of a node is obsolete if newer slices span several nodes.
    """
    by_node: dict[str, list[SliceEntry]] = {}
    for generation in sorted(generations, reverse=True):
        for entry in generations[generation].values():
            if entry.node_name is None or entry.counter_sets:
                return {}, -1
            own = by_node.setdefault(entry.node_name, [])
            if not own or own[0].generation == generation:
                own.append(entry)
    if len(by_node) < _NODES_MIN:
        return {}, -1
    alone = {name: own for name, own in by_node.items() if all(entry.slice_count == len(own) for entry in own)}
    spanning = max((own[0].generation for name, own in by_node.items() if name not in alone), default=-1)
    pools = {
        name: NodePool(own[0].generation, _duplicate_device(own))
        for name, own in alone.items()
        if own[0].generation >= spanning
    }
    return pools, spanning
