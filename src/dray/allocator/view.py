"""What one node can use: segments of devices in the order in which they are tried."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dray.allocator.gates import Gates
from dray.allocator.node_selection import local_selector
from dray.allocator.segments import Segment, TaintRules
from dray.api.types.core_v1 import Node, NodeSelector
from dray.api.types.resource_v1 import DeviceTaint, DeviceToleration

if TYPE_CHECKING:
    from dray.allocator.allocations import Allocations
    from dray.allocator.pools import Pool, PoolDevice, SliceEntry
    from dray.allocator.selection import SelectorGroup


class NodeView:
    """The devices of a node, numbered from 0 across its segments; made by the inventory, never changed."""

    __slots__ = (
        "_by_labels",
        "_local_selector",
        "_offsets",
        "_pools",
        "_versions",
        "consumers",
        "gates",
        "incomplete",
        "invalid",
        "name",
        "node",
        "pool_keys",
        "segments",
        "shared",
    )

    def __init__(
        self,
        node: Node,
        gates: Gates,
        versions: tuple[int, int],
        found: Sequence[tuple[SliceEntry, Segment]],
        by_labels: bool,  # noqa: FBT001 - internal to the room
    ) -> None:
        self.node = node
        self.name = node.metadata.name or ""
        self.gates = gates
        self._versions = versions
        self._by_labels = by_labels
        pools = {entry.pool.key: entry.pool for entry, _ in found}
        self._pools = tuple((pool, pool.refresh(counters=gates.partitionable)) for pool in pools.values())
        # Slices of an older generation are as good as gone, even while the newer one is incomplete.
        current = [item for item in found if item[0].generation == item[0].pool.generation]
        seen = sorted({entry.pool.key: entry.pool for entry, _ in current}.items())
        self.incomplete: tuple[Pool, ...] = tuple(pool for _, pool in seen if not pool.complete)
        self.invalid: tuple[Pool, ...] = tuple(pool for _, pool in seen if pool.complete and pool.problem is not None)
        self.segments = _ordered(current)
        self.pool_keys: tuple[str, ...] = tuple(dict.fromkeys(segment.pool.key for segment in self.segments))
        self._offsets: list[int] = []
        self.consumers = self.shared = 0
        self._number()
        self._local_selector: NodeSelector | None = None

    def _number(self) -> None:
        offset = 0
        for segment in self.segments:
            self._offsets.append(offset)
            self.consumers |= segment.consumers << offset
            self.shared |= segment.shared << offset
            offset += len(segment.devices)

    def is_current(self, node: Node, gates: Gates, versions: tuple[int, int]) -> bool:
        """Whether nothing of the node has changed since this was made."""
        if self._versions != versions or (self.gates is not gates and self.gates != gates):
            return False
        if self.node is not node:
            if self._by_labels and self.node.metadata.labels != node.metadata.labels:
                return False
            self.node = node
        for pool, version in self._pools:  # noqa: SIM110 - a generator costs twice as much here
            if pool.refresh(counters=gates.partitionable) != version:
                return False
        return True

    def device(self, index: int) -> PoolDevice:
        """The device with the number."""
        segment, place = self._place(index)
        return segment.devices[place]

    def _place(self, index: int) -> tuple[Segment, int]:
        number = bisect_right(self._offsets, index) - 1
        return self.segments[number], index - self._offsets[number]

    def device_count(self) -> int:
        """How many devices the node can use."""
        return self._offsets[-1] + len(self.segments[-1].devices) if self.segments else 0

    def matches(self, group: SelectorGroup) -> tuple[int, int]:
        """The devices that all selectors accept, and those where one gives no answer."""
        if len(self.segments) == 1:
            return self.segments[0].matches(group)
        matching = failing = 0
        for offset, segment in zip(self._offsets, self.segments, strict=True):
            matches, fails = segment.matches(group)
            matching |= matches << offset
            failing |= fails << offset
        return matching, failing

    def blocked(self, allocations: Allocations) -> int:
        """The devices that an ordinary request cannot have now."""
        if len(self.segments) == 1:
            return self.segments[0].blocked(allocations)
        blocked = 0
        for offset, segment in zip(self._offsets, self.segments, strict=True):
            blocked |= segment.blocked(allocations) << offset
        return blocked

    def untolerated(self, tolerations: tuple[DeviceToleration, ...], rules: TaintRules) -> int:
        """The devices whose taints keep a request with these tolerations away."""
        if not self.gates.taint_rules:
            rules = NO_RULES
        if len(self.segments) == 1:
            return self.segments[0].untolerated(tolerations, rules)
        untolerated = 0
        for offset, segment in zip(self._offsets, self.segments, strict=True):
            untolerated |= segment.untolerated(tolerations, rules) << offset
        return untolerated

    def taints(self, index: int, rules: TaintRules) -> tuple[DeviceTaint, ...]:
        """The blocking taints of a device."""
        segment, place = self._place(index)
        return segment.taints(place, rules if self.gates.taint_rules else NO_RULES)

    def local_selector(self) -> NodeSelector:
        """Only this node."""
        if self._local_selector is None:
            self._local_selector = local_selector(self.name)
        return self._local_selector


NO_RULES = TaintRules()


def _ordered(found: Sequence[tuple[SliceEntry, Segment]]) -> tuple[Segment, ...]:
    """Pools by driver and name, those with binding conditions last; in a pool the slices by name."""
    usable = [(entry, segment) for entry, segment in found if entry.pool.complete and entry.pool.problem is None]
    late = {entry.pool.key for entry, segment in usable if segment.has_binding_conditions}

    def order(item: tuple[SliceEntry, Segment]) -> tuple[bool, str, str, str]:
        entry, _ = item
        return entry.pool.key in late, entry.pool.driver, entry.pool.name, entry.name

    return tuple(segment for _, segment in sorted(usable, key=order) if segment.devices)
