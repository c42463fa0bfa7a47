"""What packing needs to know of the cluster: typical Pods, and the state of every node. One per scheduler.

A placement changes one node's state. What is typical, and for whom devices are scarce, is computed anew only when it
has changed noticeably.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from dray.allocator import Allocator, AllocatorError
from dray.allocator.fragmentation import FragmentationModel, NodeState
from dray.allocator.typical_pods import TypicalPods
from dray.allocator.units import WHOLE, PodKind, UnitTable
from dray.allocator.view import NodeView
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot

# Weights are computed anew when this part of the free devices was allocated or freed, or this part of all devices.
_FREE_PART: Final = 10
_ALL_PART: Final = 100


class DevicePacking:
    """Values nodes by what typical Pods could use of their devices."""

    def __init__(self, allocator: Allocator, claims_of: Callable[[Pod], Sequence[ResourceClaim]]) -> None:
        self._allocator = allocator
        self._claims_of = claims_of
        self._table = UnitTable()
        self.model = FragmentationModel(self._table)
        self._typical = TypicalPods()
        # Pods that exist and are counted, by uid; and Pods that were found running, whose claims are read later.
        self._counted: set[str] = set()
        self._unread: dict[str, Pod] = {}
        # The state of each node by index and by name, at these versions.
        self._states: list[NodeState] = []
        self._by_name: dict[str, NodeState] = {}
        self._snapshot_version = self._allocations_version = self._inventory_version = self._generation = -1
        self._by_pool: dict[str, set[str]] = {}
        # Node -> what its state was computed from, and the state.
        self._known: dict[str, tuple[NodeInfo, NodeView, tuple[int, ...], NodeState]] = {}
        # Thousandths of all devices: those that exist, those that are free, and those that were at the last weighing.
        self._capacity = self._free = self._weighed_free = 0

    # --- Pods. ---

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Handle a change of a Pod; one that runs already is counted before the next Pod is placed."""
        pod = new or old
        assert pod is not None, "an event has an object"
        uid = pod.metadata.uid or ""
        if new is None:
            self._counted.discard(uid)
            self._unread.pop(uid, None)
        elif new.spec.node_name and uid not in self._counted:
            self._unread[uid] = new

    def observe(self, info: PodInfo, claims: Sequence[ResourceClaim]) -> PodKind:
        """Count a Pod once, and return its kind."""
        for pod in self._unread.values():
            self._count(PodInfo(pod), self._claims_of(pod))
        self._unread.clear()
        return self._count(info, claims)

    def _count(self, info: PodInfo, claims: Sequence[ResourceClaim]) -> PodKind:
        kind = self._kind(info, claims)
        if info.uid not in self._counted:
            self._counted.add(info.uid)
            self._typical.add(kind)
        return kind

    def _kind(self, info: PodInfo, claims: Sequence[ResourceClaim]) -> PodKind:
        counts: dict[int, int] = {}
        try:
            requests = self._allocator.plan(claims).requests if claims else ()
        except AllocatorError:
            requests = ()
        for request in requests:
            wanted = request.alternatives[0]
            # "All" depends on the node, and admin access takes nothing.
            if not wanted.takes_all and not wanted.admin_access:
                demand = self._table.demand(wanted)
                counts[demand] = counts.get(demand, 0) + wanted.count
        return PodKind(info.requests.milli_cpu, info.requests.memory, tuple(sorted(counts.items())))

    # --- Nodes. ---

    def losses(self, snapshot: Snapshot, kind: PodKind, nodes: Iterable[NodeInfo]) -> list[int]:
        """Return by how many thousandths of devices the Pod would make each node's value worse."""
        self.refresh(snapshot)
        by_name, loss = self._by_name, self.model.loss
        states = [by_name[node.name] for node in nodes]
        # Many nodes are in the same state.
        losses = {state: loss(state, kind) for state in dict.fromkeys(states)}
        return [losses[state] for state in states]

    def refresh(self, snapshot: Snapshot) -> None:
        """Bring states, typical Pods and weights up to date."""
        typical = self._typical.changed()
        if typical is not None:
            self.model.set_typical(typical)
        self._table.check_size()
        self.model.refresh()
        if not self._update(snapshot):
            self._update_all(snapshot)
        noticeable = max(self._weighed_free // _FREE_PART, self._capacity // _ALL_PART)
        if typical is not None or abs(self._free - self._weighed_free) > noticeable:
            self._weighed_free = self._free
            self.model.weigh(self._states)

    def _update(self, snapshot: Snapshot) -> bool:
        """Update the nodes that have changed; False if all must be read."""
        inventory, allocations = self._allocator.inventory, self._allocator.allocations
        if self._inventory_version != inventory.version or self._generation != self.model.generation:
            return False
        nodes = snapshot.changed_since(self._snapshot_version)
        pools = allocations.changed_since(self._allocations_version)
        if nodes is None or pools is None:
            return False
        names = set(nodes)
        for pool in pools:
            names |= self._by_pool.get(pool, set())
        self._snapshot_version, self._allocations_version = snapshot.version, allocations.version
        for name in names:
            index = snapshot.index_of(name)
            if index is not None:
                state = self._state(snapshot.nodes[index])
                self._free += state.free - self._states[index].free
                self._states[index] = self._by_name[name] = state
        return True

    def _update_all(self, snapshot: Snapshot) -> None:
        self._by_pool.clear()
        if self._generation != self.model.generation:
            self._known.clear()
        else:
            for name in [name for name in self._known if snapshot.index_of(name) is None]:
                del self._known[name]
                self._table.forget(name)
        self._by_name = {node.name: self._state(node) for node in snapshot.nodes}
        self._states = list(self._by_name.values())
        self._free = sum(state.free for state in self._states)
        self._capacity = WHOLE * sum(len(state.units) for state in self._states)
        self._snapshot_version, self._allocations_version = snapshot.version, self._allocator.allocations.version
        self._inventory_version, self._generation = self._allocator.inventory.version, self.model.generation

    def _state(self, node: NodeInfo) -> NodeState:
        allocations = self._allocator.allocations
        view = self._allocator.inventory.node_view(node.node, self._allocator.gates)
        stamps = tuple([allocations.stamp(pool) for pool in view.pool_keys])
        known = self._known.get(node.name)
        if known is not None and known[0] is node and known[1] is view and known[2] == stamps:
            state = known[3]
        else:
            units = [self._table.state(layout, allocations) for layout in self._table.layouts(view)]
            state = self.model.state(units, node.free_milli_cpu, node.free_memory)
            self._known[node.name] = node, view, stamps, state
        for pool in view.pool_keys:
            self._by_pool.setdefault(pool, set()).add(node.name)
        return state
