"""The devices, classes and taint rules of a cluster, updated incrementally.

The view of a node is cached until its slices, slices for several nodes, the state of one of its pools, its labels or
its declared features change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from dray.allocator.compatibility import has_groups
from dray.allocator.content import ContentTable
from dray.allocator.gates import Gates
from dray.allocator.pools import Pool, PoolDevice, SliceEntry, pool_key
from dray.allocator.segments import Segment, TaintRules
from dray.allocator.taints import TaintRule
from dray.allocator.view import NodeInputs, NodeView
from dray.api.document import Document
from dray.api.node_selection import matching_term
from dray.api.types.core_v1 import Node
from dray.api.types.resource_v1 import Device, DeviceClass, DeviceRequestAllocationResult, ResourceSlice

# A feature that nodes declare.
OPTIONAL_NODE_OPERATIONS: Final = "DRAOptionalNodeOperations"


class _NodeSlices:
    """The slices of one node."""

    __slots__ = ("entries", "version")

    def __init__(self) -> None:
        self.entries: dict[str, SliceEntry] = {}
        self.version = 0


class Inventory:
    """The allocatable devices."""

    def __init__(self) -> None:
        self._contents = ContentTable()
        self._pools: dict[str, Pool] = {}
        self._entries: dict[str, SliceEntry] = {}
        self._local: dict[str, _NodeSlices] = {}
        # Slices that do not name a node.
        self._wide = _NodeSlices()
        self._views: dict[str, NodeView] = {}
        self._classes: dict[str, DeviceClass] = {}
        # Grows with each change of a class.
        self.classes_version = 0
        # Grows with each change of a slice or a rule.
        self.version = 0
        # The number of slices with devices that use resources of their node.
        self.node_allocatable_slices = 0
        self._rules: dict[str, TaintRule] = {}
        self.taint_rules = TaintRules()
        # Called with the name of a node that is removed.
        self._node_listeners: list[Callable[[str], None]] = []

    def on_node_removed(self, listener: Callable[[str], None]) -> None:
        """Call a function with the name of each node that is removed; it is kept as long as the inventory."""
        self._node_listeners.append(listener)

    # --- Changes. ---

    def apply_slice(self, resource_slice: ResourceSlice) -> None:
        """Add or update a slice."""
        name = resource_slice.metadata.name or ""
        # The new slice is added first, so that shared contents keep their cached verdicts.
        entry = self._entry(name, resource_slice)
        self.remove_slice(name)
        # The removed slice may have been the only one of the pool.
        self._pools.setdefault(entry.pool.key, entry.pool).add(entry)
        self._entries[name] = entry
        self.node_allocatable_slices += entry.is_node_allocatable
        home = self._home(entry)
        home.entries[name] = entry
        home.version += 1
        self.version += 1

    def remove_slice(self, name: str) -> None:
        """Remove a slice, if it exists."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        self.node_allocatable_slices -= entry.is_node_allocatable
        home = self._home(entry)
        del home.entries[name]
        home.version += 1
        self.version += 1
        entry.pool.remove(entry)
        if not entry.pool:
            del self._pools[entry.pool.key]
        for device in entry.devices:
            self._contents.release(device.content)

    def remove_node(self, name: str) -> None:
        """Drop the cached view of a node; its slices stay."""
        self._views.pop(name, None)
        local = self._local.get(name)
        if local is not None and not local.entries:
            del self._local[name]
        for listener in self._node_listeners:
            listener(name)

    def apply_class(self, device_class: DeviceClass) -> None:
        """Add or update a class."""
        self._classes[device_class.metadata.name or ""] = device_class
        self.classes_version += 1

    def remove_class(self, name: str) -> None:
        """Remove a class."""
        if self._classes.pop(name, None) is not None:
            self.classes_version += 1

    def apply_taint_rule(self, document: Document) -> None:
        """Add or update a DeviceTaintRule of any API version."""
        rule = TaintRule.from_document(document)
        if self._rules.get(rule.name) != rule:
            self._rules[rule.name] = rule
            self._replace_rules()

    def remove_taint_rule(self, name: str) -> None:
        """Remove a rule."""
        if self._rules.pop(name, None) is not None:
            self._replace_rules()

    # --- Lookups. ---

    def device_class(self, name: str) -> DeviceClass | None:
        """Return the class with the name."""
        return self._classes.get(name)

    @property
    def classes(self) -> Mapping[str, DeviceClass]:
        """Return all classes by name."""
        return self._classes

    def pools(self) -> Iterable[Pool]:
        """Return all pools, by driver and name."""
        return (self._pools[key] for key in sorted(self._pools))

    def pool(self, key: str) -> Pool | None:
        """Return the pool with the key, see `pool_key`."""
        return self._pools.get(key)

    @property
    def content_count(self) -> int:
        """Return the number of distinct device contents."""
        return len(self._contents)

    def node_view(self, node: Node, gates: Gates) -> NodeView:
        """Return the node's view; the same object until it changes."""
        name = node.metadata.name or ""
        view = self._views.get(name)
        if view is not None and view.version == self.version and view.node is node and view.gates is gates:
            return view
        local = self._local.get(name)
        versions = (0 if local is None else local.version, self._wide.version)
        if view is None or not view.is_current(node, gates, versions):
            entries = [] if local is None else list(local.entries.values())
            segments, inputs = self._gather(node, entries, gates)
            view = self._views[name] = NodeView(node, gates, versions, segments, inputs)
        view.version = self.version
        return view

    def find_device(self, node: Node, gates: Gates, result: DeviceRequestAllocationResult) -> Device | None:
        """Return the device of a result, as the node sees it now; also one of a pool that is being updated."""
        key = pool_key(result.driver, result.pool)
        found = self.node_view(node, gates).by_key().get(f"{key}/{result.device}")
        if found is None and key in self._pools:
            devices = (device for entry in self._pools[key].entries() for device in entry.devices)
            found = next((device for device in devices if device.name == result.device), None)
        return None if found is None else found.spec

    def devices_of(self, node: Node, gates: Gates) -> Iterator[PoolDevice]:
        """Return all devices of the latest generations for the node, including unusable ones."""
        local = self._local.get(node.metadata.name or "")
        for entry in () if local is None else local.entries.values():
            if entry.pool.is_current(entry):
                yield from entry.devices
        for entry, reached in self.wide_entries(node, gates):
            yield from (device for device in entry.devices if device.key in reached)

    def wide_entries(self, node: Node, gates: Gates) -> Iterator[tuple[SliceEntry, frozenset[str]]]:
        """Yield the slices of the latest generations without a node name, each with its devices for this node."""
        for entry in self._wide.entries.values():
            # No node view has refreshed this pool yet.
            entry.pool.refresh(gates)
            if entry.generation != entry.pool.generation:
                continue
            if entry.per_device and gates.partitionable:
                reached = frozenset(device.key for device in entry.devices if device_reaches(device.spec, node))
            elif _wide_segment(entry, node, gates) is not None:
                reached = frozenset(device.key for device in entry.devices)
            else:
                reached = frozenset()
            yield entry, reached

    # ---- taking in

    def _entry(self, name: str, resource_slice: ResourceSlice) -> SliceEntry:
        spec = resource_slice.spec
        key = pool_key(spec.driver, spec.pool.name)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = Pool(spec.driver, spec.pool.name)
        entry = SliceEntry(name, pool, spec.pool.generation, spec.pool.resource_slice_count)
        entry.node_name = spec.node_name or None
        entry.node_selector = spec.node_selector
        entry.all_nodes = bool(spec.all_nodes)
        entry.per_device = bool(spec.per_device_node_selection)
        entry.counter_sets = spec.shared_counters
        entry.has_groups = any(device.consumes_counters and has_groups(device) for device in spec.devices)
        entry.skip_node_operations = spec.skip_node_operations
        entry.is_node_allocatable = any(device.node_allocatable_resources for device in spec.devices)
        acquire = self._contents.acquire
        entry.devices = tuple(PoolDevice(entry, device, acquire(spec.driver, device)) for device in spec.devices)
        return entry

    def _home(self, entry: SliceEntry) -> _NodeSlices:
        if entry.node_name is None:
            return self._wide
        return self._local.setdefault(entry.node_name, _NodeSlices())

    def _replace_rules(self) -> None:
        self.version += 1
        self.taint_rules = TaintRules([self._rules[name] for name in sorted(self._rules)])

    # --- Building node views. ---

    def _gather(
        self, node: Node, entries: list[SliceEntry], gates: Gates
    ) -> tuple[list[tuple[SliceEntry, Segment]], NodeInputs]:
        found = [(entry, entry.segment(gates)) for entry in entries]
        by_labels = False
        for entry in self._wide.entries.values():
            by_labels = by_labels or not entry.all_nodes
            segment = _wide_segment(entry, node, gates)
            if segment is not None:
                found.append((entry, segment))
        by_features = any(entry.skip_node_operations for entry, _ in found)
        if by_features:
            # The slices are still part of their pools.
            found = [
                (entry, segment if can_skip_operations(entry, node, gates) else entry.segment(gates, 0))
                for entry, segment in found
            ]
        return found, NodeInputs(by_labels, by_features)


def can_skip_operations(entry: SliceEntry, node: Node, gates: Gates) -> bool:
    """Return whether the node can use devices that need no calls to their driver."""
    if not entry.skip_node_operations:
        return True
    return gates.optional_node_operations and OPTIONAL_NODE_OPERATIONS in node.status.declared_features


def _wide_segment(entry: SliceEntry, node: Node, gates: Gates) -> Segment | None:
    """Return the node's devices of a slice without a node name; unknown kinds of selection match no node."""
    if entry.all_nodes:
        return entry.segment(gates)
    if entry.node_selector is not None:
        labels = node.metadata.labels
        reached = matching_term(entry.node_selector, node.metadata.name or "", labels) is not None
        return entry.segment(gates) if reached else None
    if entry.per_device and gates.partitionable:
        return entry.segment(gates, _members(entry.devices, node))
    return None


def _members(devices: Iterable[PoolDevice], node: Node) -> int:
    members = 0
    for index, device in enumerate(devices):
        members |= device_reaches(device.spec, node) << index
    return members


def device_reaches(spec: Device, node: Node) -> bool:
    """Return whether a device with its own node selection can be used from the node."""
    name = node.metadata.name or ""
    if spec.node_name:
        return spec.node_name == name
    if spec.all_nodes:
        return True
    return spec.node_selector is not None and matching_term(spec.node_selector, name, node.metadata.labels) is not None
