"""Pools of devices: the slices of the latest generation, and whether they are complete and valid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from dray.allocator.bits import indices
from dray.allocator.content import Content
from dray.allocator.gates import Gates
from dray.allocator.segments import Segment
from dray.api.quantity import Quantity
from dray.api.types.core_v1 import NodeSelector
from dray.api.types.resource_v1 import CounterSet, Device, DeviceTaint

if TYPE_CHECKING:
    from dray.allocator.allocations import Allocations

# One shared counter, and how much of it, in nano units.
CounterName = tuple[str, str]
Consumption = tuple[tuple[CounterName, int], ...]

_NOTHING: Final[Mapping[CounterName, int]] = {}


def pool_key(driver: str, pool: str) -> str:
    """Return the pool's name in errors and tables; driver names have no slash."""
    return f"{driver}/{pool}"


class PoolDevice:
    """A device in its pool; immutable."""

    __slots__ = ("consumes", "content", "entry", "key", "name", "spec")

    def __init__(self, entry: SliceEntry, spec: Device, content: Content) -> None:
        self.entry = entry
        self.spec = spec
        self.content = content
        self.name = spec.name
        # A string, because its hash is cached.
        self.key = f"{entry.pool.key}/{spec.name}"
        self.consumes: Consumption = _consumption(spec) if spec.consumes_counters else ()

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
        "name",
        "node_name",
        "node_selector",
        "per_device",
        "pool",
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


class Pool:
    """All slices of one pool, of all generations; changed by the inventory only."""

    __slots__ = (
        "_counters",
        "_dirty",
        "_generations",
        "_problem",
        "_used",
        "_used_at",
        "complete",
        "driver",
        "generation",
        "index",
        "key",
        "name",
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
        self.index: dict[str, PoolDevice] = {}
        self._problem: str | None = None
        self._counters: dict[CounterName, int] = {}
        # Grows with each change that affects nodes.
        self.version = 0
        self._used: Mapping[CounterName, int] = _NOTHING
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
        return self._problem

    @property
    def counters(self) -> Mapping[CounterName, int]:
        """Return the shared counters, in nano units."""
        return self._counters

    def entries(self) -> Iterator[SliceEntry]:
        """Return the slices of the latest generation, by name."""
        newest = self._generations.get(max(self._generations, default=-1), {})
        return (newest[name] for name in sorted(newest))

    def refresh(self, *, counters: bool) -> int:
        """Refresh the pool's state and return its version."""
        if self._dirty:
            self._dirty = False
            before = (self.generation, self.complete, self._problem, self._counters)
            self._judge(counters=counters)
            after = (self.generation, self.complete, self._problem, self._counters)
            # With shared counters a change of one device may affect all.
            if before != after or self._counters:
                self.version += 1
        return self.version

    def _judge(self, *, counters: bool) -> None:
        self.generation = max(self._generations, default=-1)
        newest = self._generations.get(self.generation, {})
        self.complete = all(entry.slice_count == len(newest) for entry in newest.values())
        self.index, self._problem, self._counters = {}, None, {}
        # An incomplete pool is not used, so it is not validated.
        if not self.complete:
            return
        for entry in newest.values():
            for device in entry.devices:
                if self.index.setdefault(device.name, device) is not device:
                    self._problem = f"duplicate device {device.name}"
        if counters:
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

    def used_counters(self, allocations: Allocations) -> Mapping[CounterName, int]:
        """Return what the allocated devices, on all nodes, consume of the counters."""
        if not self._counters:
            return _NOTHING
        at = (allocations, allocations.stamp(self.key), self.version)
        if self._used_at != at:
            self._used_at, self._used = at, self._sum_used(allocations)
        return self._used

    def _sum_used(self, allocations: Allocations) -> dict[CounterName, int]:
        used: dict[CounterName, int] = {}
        prefix = len(self.key) + 1
        for key in allocations.keys_in_use(self.key):
            device = self.index.get(key[prefix:])
            for counter, amount in () if device is None else device.consumes:
                used[counter] = used.get(counter, 0) + amount
        return used

    def lacking_counter(self, device: PoolDevice, used: Mapping[CounterName, int]) -> CounterName | None:
        """Return the first counter that is insufficient for the device."""
        for counter, amount in device.consumes:
            if used.get(counter, 0) + amount > self._counters.get(counter, 0):
                return counter
        return None
