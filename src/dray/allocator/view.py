"""The view of a node: the segments of devices that it can use, in search order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dray.allocator.content import CapacityKey
from dray.allocator.gates import Gates
from dray.allocator.segments import Segment, TaintRules
from dray.api.node_selection import local_selector
from dray.api.types.core_v1 import Node, NodeSelector
from dray.api.types.resource_v1 import DeviceTaint, DeviceToleration

if TYPE_CHECKING:
    from dray.allocator.allocations import AllocatedDevices
    from dray.allocator.pools import Pool, PoolDevice, SliceEntry
    from dray.allocator.selection import SelectorGroup


class NodeInputs(NamedTuple):
    """The parts of a node on which its view depends."""

    labels: bool
    features: bool

    def differ(self, before: Node, after: Node) -> bool:
        """Return whether one of these parts has changed."""
        if self.labels and before.metadata.labels != after.metadata.labels:
            return True
        return self.features and before.status.declared_features != after.status.declared_features


class NodeView:
    """The devices of a node, numbered from 0 across its segments; created by the inventory. Immutable."""

    __slots__ = (
        "_all",
        "_devices",
        "_inputs",
        "_local_selector",
        "_offsets",
        "_pools",
        "_versions",
        "capacity_groups",
        "consumers",
        "gates",
        "incomplete",
        "invalid",
        "name",
        "node",
        "pool_keys",
        "segments",
        "shared",
        "version",
    )

    def __init__(
        self,
        node: Node,
        gates: Gates,
        versions: tuple[int, int],
        found: Sequence[tuple[SliceEntry, Segment]],
        inputs: NodeInputs,
    ) -> None:
        self.node = node
        self.name = node.metadata.name or ""
        self.gates = gates
        self._versions = versions
        self._inputs = inputs
        # Of the inventory, when the view was last found to be current; set by the inventory.
        self.version = -1
        pools = {entry.pool.key: entry.pool for entry, _ in found}
        self._pools = tuple((pool, pool.refresh(gates)) for pool in pools.values())
        # Slices of an older generation are ignored, even while the latest one is incomplete.
        current = [item for item in found if item[0].pool.is_current(item[0])]
        # Of several slices of a pool any one will do: the node's own pool is the same for all of them.
        seen = [entry for _, entry in sorted({entry.pool.key: entry for entry, _ in current}.items())]
        self.incomplete: tuple[Pool, ...] = tuple(entry.pool for entry in seen if not entry.pool.is_complete(entry))
        self.invalid: tuple[Pool, ...] = tuple(
            entry.pool for entry in seen if entry.pool.is_complete(entry) and entry.pool.problem_of(entry) is not None
        )
        self.segments = _ordered(current)
        self.pool_keys: tuple[str, ...] = tuple(dict.fromkeys(segment.pool.key for segment in self.segments))
        self._offsets: list[int] = []
        self.consumers = self.shared = 0
        # The shareable devices by what they offer.
        self.capacity_groups: Sequence[tuple[CapacityKey | None, int]] = ()
        self._number()
        self._local_selector: NodeSelector | None = None
        self._devices: dict[str, PoolDevice] | None = None
        self._all: tuple[PoolDevice, ...] | None = None

    def _number(self) -> None:
        offset = 0
        for segment in self.segments:
            self._offsets.append(offset)
            self.consumers |= segment.consumers << offset
            self.shared |= segment.shared << offset
            offset += len(segment.devices)
        groups: dict[CapacityKey | None, int] = {}
        for offset, segment in zip(self._offsets, self.segments, strict=True):
            for key, devices in segment.capacity_groups:
                groups[key] = groups.get(key, 0) | devices << offset
        self.capacity_groups = tuple(groups.items())

    def is_current(self, node: Node, gates: Gates, versions: tuple[int, int]) -> bool:
        """Return whether nothing has changed since the view was created."""
        if self._versions != versions or (self.gates is not gates and self.gates != gates):
            return False
        if self.node is not node:
            if self._inputs.differ(self.node, node):
                return False
            self.node = node
        return all(pool.refresh(gates) == version for pool, version in self._pools)

    @property
    def devices(self) -> Sequence[PoolDevice]:
        """Return the devices by number."""
        if self._all is None:
            self._all = tuple(device for segment in self.segments for device in segment.devices)
        return self._all

    def device(self, index: int) -> PoolDevice:
        """Return the device with the number."""
        segment, position = self._locate(index)
        return segment.devices[position]

    def by_key(self) -> Mapping[str, PoolDevice]:
        """Return the devices by key."""
        if self._devices is None:
            self._devices = {device.key: device for segment in self.segments for device in segment.devices}
        return self._devices

    def is_local(self, device: PoolDevice) -> bool:
        """Return whether no other node can use the device."""
        return self.name in (device.entry.node_name, device.spec.node_name)

    def local_keys(self) -> frozenset[str]:
        """Return the keys of the devices that no other node can use."""
        name = self.name
        # As `is_local`, without a call for each device.
        return frozenset([item.key for item in self.devices if name in (item.entry.node_name, item.spec.node_name)])

    def _locate(self, index: int) -> tuple[Segment, int]:
        number = bisect_right(self._offsets, index) - 1
        return self.segments[number], index - self._offsets[number]

    def device_count(self) -> int:
        """Return the number of devices."""
        return self._offsets[-1] + len(self.segments[-1].devices) if self.segments else 0

    def matches(self, group: SelectorGroup) -> tuple[int, int]:
        """Return the devices that all selectors match, and those for which one fails."""
        found = [segment.matches(group) for segment in self.segments]
        return self._joined([matching for matching, _ in found]), self._joined([failing for _, failing in found])

    def blocked(self, allocations: AllocatedDevices) -> int:
        """Return the devices that are in use or lack counters."""
        return self._joined([segment.blocked(allocations) for segment in self.segments])

    def partly_consumed(self, allocations: AllocatedDevices) -> int:
        """Return the shareable devices of which claims have shares."""
        return self._joined([segment.partly_consumed(allocations) for segment in self.segments])

    def untolerated(self, tolerations: tuple[DeviceToleration, ...], rules: TaintRules) -> int:
        """Return the devices with untolerated taints."""
        if not self.gates.taint_rules:
            rules = NO_RULES
        return self._joined([segment.untolerated(tolerations, rules) for segment in self.segments])

    def _joined(self, parts: Sequence[int]) -> int:
        """Return devices by their numbers on the node, given those of each segment by their numbers in it."""
        joined = 0
        for offset, part in zip(self._offsets, parts, strict=True):
            joined |= part << offset
        return joined

    def taints(self, index: int, rules: TaintRules) -> tuple[DeviceTaint, ...]:
        """Return the blocking taints of a device."""
        segment, position = self._locate(index)
        return segment.taints(position, rules if self.gates.taint_rules else NO_RULES)

    def local_selector(self) -> NodeSelector:
        """Return a selector for this node only."""
        if self._local_selector is None:
            self._local_selector = local_selector(self.name)
        return self._local_selector


NO_RULES = TaintRules()


def _ordered(found: Sequence[tuple[SliceEntry, Segment]]) -> tuple[Segment, ...]:
    """Return the segments by pool (driver, name) and slice name; pools with binding conditions go last."""
    usable = [
        (entry, segment)
        for entry, segment in found
        if entry.pool.is_complete(entry) and entry.pool.problem_of(entry) is None
    ]
    last = {entry.pool.key for entry, segment in usable if segment.has_binding_conditions}

    def order(item: tuple[SliceEntry, Segment]) -> tuple[bool, str, str, str]:
        entry, _ = item
        return entry.pool.key in last, entry.pool.driver, entry.pool.name, entry.name

    return tuple(segment for _, segment in sorted(usable, key=order) if segment.devices)
