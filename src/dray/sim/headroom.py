"""Fragmentation in Pods: how many more Pods of each typical kind fit, and how many at most if all were packed ideally.

What fits now is counted node by node, equal nodes once. What would fit at most is a bound: it adds up what is free on
all nodes, as if no device, processor or memory were on the wrong node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from dray.allocator.fragmentation import NodeState
from dray.allocator.typical_pods import TypicalPods
from dray.allocator.units import WHOLE, PodKind
from dray.api.quantity import Quantity
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.sim.free_resources import FreeResources
from dray.sim.movable_pods import label
from dray.sim.placer import PlacedPod
from dray.sim.snapshot import Snapshot
from dray.sim.trial_cluster import TrialCluster, TrialPod

# Typical kinds that are counted, the most frequent first.
KINDS_MAX: Final = 8
# Pods of a kind that are counted on one node.
PER_NODE_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class KindHeadroom:
    """Pods of one kind: what one requests, how many there are, and how many more fit."""

    requests: str
    # A Pod of the kind.
    example: str
    pods: int
    fit: int
    # At least what fits: no packing lets more of them fit.
    at_most: int

    @property
    def stranded(self) -> int:
        """Return how many more might fit if Pods were moved."""
        return self.at_most - self.fit


@dataclass(frozen=True, slots=True)
class TypicalKind:
    """A kind of Pod that is frequent in the cluster."""

    kind: PodKind
    pods: int
    example: TrialPod


def headroom(snapshot: Snapshot) -> tuple[KindHeadroom, ...]:
    """Return the typical kinds of Pods with devices in a snapshot, and how many more of each fit."""
    cluster = TrialCluster(snapshot)
    free_resources = FreeResources(cluster)
    return tuple(kind_headroom(free_resources, item) for item in typical_kinds(cluster, free_resources))


def typical_kinds(cluster: TrialCluster, free_resources: FreeResources) -> tuple[TypicalKind, ...]:
    """Return the most frequent kinds of Pods that request devices, running and pending."""
    examples: dict[PodKind, TrialPod | PlacedPod] = {}
    counts: dict[PodKind, int] = {}
    typical = TypicalPods()
    pods: list[TrialPod | PlacedPod] = [*cluster.placer.placed.values(), *cluster.pending]
    for pod in pods:
        kind = free_resources.kind_of(pod)
        typical.add(kind)
        counts[kind] = counts.get(kind, 0) + 1
        known = examples.setdefault(kind, pod)
        if label(pod.pod) < label(known.pod):
            examples[kind] = pod
    frequent = typical.changed() or ()
    free_resources.model.set_typical(frequent)
    kinds = [kind for kind, _ in frequent if kind.demands][:KINDS_MAX]
    return tuple(TypicalKind(kind, counts[kind], _example(cluster, examples[kind])) for kind in kinds)


def _example(cluster: TrialCluster, pod: TrialPod | PlacedPod) -> TrialPod:
    return cluster.replacement(pod) if isinstance(pod, PlacedPod) else pod


def kind_headroom(free_resources: FreeResources, item: TypicalKind) -> KindHeadroom:
    """Return how many more Pods of the kind fit, and how many at most."""
    groups = _equal_nodes(free_resources, free_resources.accepting(item.example))
    fit = sum(
        nodes * min(free_resources.count(group.state, item.kind, PER_NODE_MAX), group.free_pods)
        for group, nodes in groups.items()
    )
    at_most = max(_bound(free_resources, groups, item.kind), fit)
    return KindHeadroom(requests_text(item.example), label(item.example.pod), item.pods, fit, at_most)


class _NodeGroup(NamedTuple):
    """Nodes with the same free resources: as they are, and without Pods."""

    state: NodeState
    empty: NodeState
    free_pods: int


def _equal_nodes(free_resources: FreeResources, nodes: Iterable[NodeInfo]) -> Mapping[_NodeGroup, int]:
    """Return how many nodes there are of each group: in a large cluster many are equal."""
    return Counter(_NodeGroup(*free_resources.states(node), node.free_pods) for node in nodes)


def _bound(free_resources: FreeResources, groups: Mapping[_NodeGroup, int], kind: PodKind) -> int:
    """Return how many Pods fit at most: on empty nodes, and in the sums of what is free."""
    most = {group: free_resources.count(group.empty, kind, PER_NODE_MAX) for group in groups}
    suitable = [(group, nodes) for group, nodes in groups.items() if most[group]]
    bounds = [sum(nodes * most[group] for group, nodes in suitable)]
    if kind.milli_cpu:
        bounds.append(sum(nodes * max(group.state.milli_cpu, 0) for group, nodes in suitable) // kind.milli_cpu)
    if kind.memory:
        bounds.append(sum(nodes * max(group.state.memory, 0) for group, nodes in suitable) // kind.memory)
    for demand, count in kind.demands:
        taken = _least_taken(free_resources, (group.empty for group, _ in suitable), demand)
        if taken:
            free = sum(nodes * _usable(free_resources, group.state, group.empty, demand) for group, nodes in suitable)
            bounds.append(free // (taken * count))
    return min(bounds)


def _least_taken(free_resources: FreeResources, states: Iterable[NodeState], demand: int) -> int:
    """Return what the demand takes at least of a unit, in thousandths; parts are rounded down."""
    table = free_resources.table
    taken = [
        table.free[unit] - table.free[after]
        for unit in dict.fromkeys(unit for state in states for unit in state.units)
        for _, after in table.options(unit, demand)
    ]
    least = min(taken, default=WHOLE)
    return least if least == WHOLE else max(least - 1, 0)


def _usable(free_resources: FreeResources, state: NodeState, empty: NodeState, demand: int) -> int:
    """Return what is free on the node, in thousandths, at most of as many units as could meet the demand."""
    table = free_resources.table
    possible = sum(1 for unit in empty.units if table.options(unit, demand))
    # A part that is free is rounded down in the table.
    parts = (free + (0 < free < WHOLE) for free in (table.free[unit] for unit in state.units))
    return sum(sorted(parts, reverse=True)[:possible])


def requests_text(pod: TrialPod) -> str:
    """Return what a Pod requests, in one line."""
    parts: list[str] = []
    for claim in pod.claims:
        for request in claim.spec.devices.requests:
            wanted = request.exactly or (request.first_available[0] if request.first_available else None)
            if wanted is None:
                continue
            capacity = wanted.capacity.requests if wanted.capacity is not None else {}
            amounts = ", ".join(f"{name} {value}" for name, value in sorted(capacity.items()))
            count = "all" if wanted.allocation_mode == "All" else str(wanted.count or 1)
            parts.append(f"{count} {wanted.device_class_name}" + (f" ({amounts})" if amounts else ""))
    requests = PodInfo(pod.pod).requests
    parts += [f"{amount} {name}" for name, amount in sorted(requests.scalars.items())]
    if requests.milli_cpu:
        parts.append(f"{Quantity.parse(f'{requests.milli_cpu}m')} cpu")
    if requests.memory:
        parts.append(f"{_bytes(requests.memory)} memory")
    return ", ".join(parts) or "nothing"


def _bytes(amount: int) -> str:
    for unit, size in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if amount % size == 0:
            return f"{amount // size}{unit}"
    return str(amount)
