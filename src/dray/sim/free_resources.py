"""What is free on the nodes of a trial cluster, in units of devices, CPU and memory: a fast model for searches.

The model is simpler than the scheduler. It orders candidates and gives bounds; what a plan says is checked by the
scheduler's code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from dray.allocator import AllocatorError
from dray.allocator.fragmentation import FragmentationModel, NodeState
from dray.allocator.units import WHOLE, PodKind, UnitTable
from dray.allocator.view import NodeView
from dray.api.types.resource_v1 import ResourceClaim
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import FILTER, PRE_FILTER
from dray.framework.pod_info import PodInfo
from dray.sim.placer import PlacedPod
from dray.sim.trial_cluster import TrialCluster, TrialPod

# Missing devices in thousandths, CPU and memory of a node, for a Pod.
Lack: TypeAlias = tuple[int, int, int]
# Filters on free amounts, which the model replaces.
_AMOUNTS: Final = frozenset(("DynamicResources", "NodeResourcesFit", "ClassicResources", "OptionalClaims"))


class FreeResources:
    """The free amounts of every node, as they are when asked for."""

    def __init__(self, cluster: TrialCluster) -> None:
        self._placer = cluster.placer
        self._allocator = cluster.placer.devices.allocator
        self.table = UnitTable()
        self.model = FragmentationModel(self.table)
        # Node -> what its states were computed from, and the states: as it is, and without Pods.
        self._known: dict[str, tuple[NodeInfo, NodeView, tuple[int, ...], NodeState, NodeState]] = {}
        # The versions of the model, the devices and the allocations; and the nodes that were compared with them.
        self._known_at = (-1, -1, -1)
        self._checked: set[str] = set()

    # --- Pods. ---

    def kind_of(self, pod: TrialPod | PlacedPod) -> PodKind:
        """Return what a Pod requests; of alternatives, the first."""
        info = PodInfo(pod.pod)
        counts: dict[int, int] = {}
        for demand, count in self._demands(pod.claims):
            counts[demand] = counts.get(demand, 0) + count
        return PodKind(info.requests.milli_cpu, info.requests.memory, tuple(sorted(counts.items())))

    def _demands(self, claims: Sequence[ResourceClaim]) -> Iterator[tuple[int, int]]:
        try:
            requests = self._allocator.plan(claims).requests if claims else ()
        except AllocatorError:
            return
        for request in requests:
            wanted = request.alternatives[0]
            if not wanted.takes_all and not wanted.admin_access:
                yield self.table.demand(wanted), wanted.count

    def size_of(self, placed: PlacedPod) -> tuple[int, int, int, str]:
        """Return a key by which larger Pods come later."""
        kind = self.kind_of(placed)
        devices = self.taken(placed.pod.spec.node_name or "", kind)
        return devices, kind.milli_cpu, kind.memory, placed.pod.metadata.uid or ""

    # --- Nodes. ---

    def nodes(self) -> Sequence[NodeInfo]:
        """Return all nodes."""
        self._placer.update_snapshot()
        return self._placer.snapshot.nodes

    def state(self, node: NodeInfo) -> NodeState:
        """Return what is free on a node."""
        return self.states(node)[0]

    def empty_state(self, node: NodeInfo) -> NodeState:
        """Return what is free on a node without Pods."""
        return self.states(node)[1]

    def states(self, node: NodeInfo) -> tuple[NodeState, NodeState]:
        """Return what is free on a node, as it is and without Pods."""
        allocations, inventory, model = self._allocator.allocations, self._allocator.inventory, self.model
        model.refresh()
        versions = model.generation, inventory.version, allocations.version
        if self._known_at != versions:
            if self._known_at[0] != model.generation:
                self._known.clear()
            self._checked.clear()
            self._known_at = versions
        known = self._known.get(node.name)
        if known is not None and known[0] is node and node.name in self._checked:
            return known[3], known[4]
        view = inventory.node_view(node.node, self._allocator.gates)
        stamps = tuple([allocations.stamp(pool) for pool in view.pool_keys])
        if known is None or known[0] is not node or known[1] is not view or known[2] != stamps:
            known = self._known[node.name] = node, view, stamps, *self._read(node, view)
        self._checked.add(node.name)
        return known[3], known[4]

    def _read(self, node: NodeInfo, view: NodeView) -> tuple[NodeState, NodeState]:
        table, model = self.table, self.model
        layouts = table.layouts(view)
        units = [table.state(layout, self._allocator.allocations) for layout in layouts]
        empty_units = [table.empty_state(layout) for layout in layouts]
        return (
            model.state(units, node.free_milli_cpu, node.free_memory),
            model.state(empty_units, node.allocatable.milli_cpu, node.allocatable.memory),
        )

    def accepting(self, pod: TrialPod) -> list[NodeInfo]:
        """Return the nodes that no filter rejects, apart from those on free amounts."""
        state = CycleState(PodInfo(pod.pod))
        profile = self._placer.profile
        nodes = self.nodes()
        names: frozenset[str] | None = None
        for plugin in profile.at(PRE_FILTER):
            if plugin.name in _AMOUNTS:
                continue
            result, status = plugin.pre_filter(state, pod.pod)
            if not status.is_success:
                state.skip_filter.add(plugin.name)
                if status.is_rejected:
                    return []
            elif result is not None:
                names = result.node_names if names is None else names & result.node_names
        filters = [
            plugin
            for plugin in profile.at(FILTER)
            if plugin.name not in _AMOUNTS and plugin.name not in state.skip_filter
        ]
        return [
            node
            for node in nodes
            if (names is None or node.name in names)
            and all(plugin.filter(state, pod.pod, node).is_success for plugin in filters)
        ]

    def capacity(self, name: str) -> tuple[int, int, int]:
        """Return CPU, memory and devices in thousandths of a node without Pods."""
        empty = self.empty_state(self._node(name))
        return empty.milli_cpu, empty.memory, empty.free

    def free(self, name: str) -> tuple[int, int, int]:
        """Return what is free of CPU, memory and devices."""
        state = self.state(self._node(name))
        return max(state.milli_cpu, 0), max(state.memory, 0), state.free

    def taken(self, name: str, kind: PodKind) -> int:
        """Return how many thousandths of devices a Pod of the kind takes at least on a node without Pods."""
        empty, table = self.empty_state(self._node(name)), self.table
        total = 0
        for demand, count in kind.demands:
            amounts = [
                table.free[unit] - table.free[after]
                for unit in dict.fromkeys(empty.units)
                for _, after in table.options(unit, demand)
            ]
            # Parts of devices are rounded down in the table.
            least = min(amounts, default=0)
            total += count * (least if least in (0, WHOLE) else least - 1)
        return total

    def _node(self, name: str) -> NodeInfo:
        nodes = self.nodes()
        index = self._placer.snapshot.index_of(name)
        assert index is not None, f"there is no node {name}"
        return nodes[index]

    # --- Comparisons. ---

    def count(self, state: NodeState, kind: PodKind, most: int) -> int:
        """Return how many Pods of the kind fit on a node in this state."""
        found = 0
        while found < most and kind.milli_cpu <= state.milli_cpu and kind.memory <= state.memory:
            after = self.model.after(state, kind)
            if kind.demands and after is state:
                break
            state = after
            found += 1
        return found

    def lack(self, node: NodeInfo, kind: PodKind) -> Lack | None:
        """Return what the node lacks for one Pod of the kind; None if it would lack something without any Pods."""
        empty, state = self.empty_state(node), self.state(node)
        if kind.milli_cpu > empty.milli_cpu or kind.memory > empty.memory:
            return None
        devices = 0
        for demand, count in kind.demands:
            if self._matching(empty, demand) < count:
                return None
            devices += self._missing(state, demand, count)
        return devices, max(kind.milli_cpu - state.milli_cpu, 0), max(kind.memory - state.memory, 0)

    def _missing(self, state: NodeState, demand: int, count: int) -> int:
        """Return how many thousandths of devices must be freed at least so that enough units meet the demand."""
        table = self.table
        amounts: list[int] = []
        for unit in state.units:
            if table.options(unit, demand):
                amounts.append(0)
                continue
            empty = table.emptied(unit)
            after = [table.free[found] for _, found in table.options(empty, demand)]
            if after:
                amounts.append(max(table.free[empty] - max(after) - table.free[unit], 1))
        return sum(sorted(amounts)[:count])

    def _matching(self, state: NodeState, demand: int) -> int:
        options = self.table.options
        return sum(1 for unit in state.units if options(unit, demand))

    def lacking(self, pod: TrialPod) -> Iterator[tuple[str, Lack]]:
        """Yield the nodes on which a Pod fits if they are empty, with what they lack now."""
        kind = self.kind_of(pod)
        self.model.refresh()
        for node in self.accepting(pod):
            lack = self.lack(node, kind)
            if lack is not None:
                yield node.name, lack
