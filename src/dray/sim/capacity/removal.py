"""Which nodes can be removed: all their Pods can be moved, and fit on the nodes that stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from dray.allocator.units import WHOLE
from dray.sim.capacity.bounds import removable_bound
from dray.sim.capacity.plans import KeptNode, Placement, RemovableNode, RemovalPlan
from dray.sim.free_resources import FreeResources
from dray.sim.movable_pods import DAEMON, STATIC, MoveRules, label
from dray.sim.placer import PlacedPod
from dray.sim.snapshot import Snapshot
from dray.sim.trial_cluster import TrialCluster, Unplaced, devices_of

# Pods that go with their node.
_OF_NODE: Final = frozenset((DAEMON, STATIC))

# Called with (done, total, description).
Progress = Callable[[int, int, str], None]


def plan_removal(
    make_cluster: Callable[[], TrialCluster], snapshot: Snapshot, *, jobs: bool, progress: Progress
) -> RemovalPlan:
    """Return the nodes that can be removed together; of several orders, the one that removes most."""
    rules = MoveRules(snapshot, jobs=jobs)
    obstacles = {pod.metadata.uid or "": rules.obstacle(pod) for pod in snapshot.pods}
    best: RemovalPlan | None = None
    for order in (_fewest_pods, _least_used):
        plan = _Removal(make_cluster(), obstacles, progress).plan(order)
        if best is None or len(plan.removable) > len(best.removable):
            best = plan
        if best.is_optimal:
            break
    assert best is not None, "there is an order"
    return best


def _fewest_pods(cluster: TrialCluster, _free_resources: FreeResources, name: str) -> tuple[object, ...]:
    return len(cluster.pods_on(name)), name


def _least_used(_cluster: TrialCluster, free_resources: FreeResources, name: str) -> tuple[object, ...]:
    """Return a key for the nodes of which most is free, the small ones first."""
    capacity, free = free_resources.capacity(name), free_resources.free(name)
    used = [1 - left / total if total else 0.0 for total, left in zip(capacity, free, strict=True)]
    return round(max(used, default=0.0), 6), capacity, name


class _Removal:
    """One order in which nodes are tried."""

    def __init__(self, cluster: TrialCluster, obstacles: dict[str, str], progress: Progress) -> None:
        self._cluster = cluster
        self._obstacles = obstacles
        self._progress = progress
        self._free_resources = FreeResources(cluster)

    def plan(self, key: Callable[[TrialCluster, FreeResources, str], tuple[object, ...]]) -> RemovalPlan:
        cluster = self._cluster
        kept = [KeptNode(name, why) for name in cluster.nodes if (why := self._stays(name))]
        staying = {node.name for node in kept}
        names = sorted(
            (name for name in cluster.nodes if name not in staying), key=lambda n: key(cluster, self._free_resources, n)
        )
        at_most = self._bound(names)
        removable: list[RemovableNode] = []
        for number, name in enumerate(names):
            self._progress(number + 1, len(names), "nodes tried")
            found = self._remove(name)
            if isinstance(found, RemovableNode):
                removable.append(found)
            else:
                kept.append(found)
        return RemovalPlan(
            tuple(removable), tuple(sorted(kept, key=lambda node: node.name)), at_most, len(cluster.pending)
        )

    def _stays(self, name: str) -> str:
        """Return why a node must stay; empty if its Pods can be moved."""
        for placed in self._cluster.pods_on(name):
            obstacle = self._obstacles.get(placed.pod.metadata.uid or "", "")
            if obstacle and obstacle not in _OF_NODE:
                return f"pod {label(placed.pod)} must stay: {obstacle}"
        return ""

    def _bound(self, names: Sequence[str]) -> int:
        """Return how many nodes can be removed at most, by the sums of what is free."""
        free = [
            sum(amounts)
            for amounts in zip(*(self._free_resources.free(name) for name in self._cluster.nodes), strict=True)
        ]
        return removable_bound([self._moving_capacity(name) for name in names], free)

    def _moving_capacity(self, name: str) -> tuple[int, ...]:
        """Return what a node has apart from what goes with it."""
        capacity = self._free_resources.capacity(name)
        for placed in self._cluster.pods_on(name):
            if self._obstacles.get(placed.pod.metadata.uid or "", "") in _OF_NODE:
                kind = self._free_resources.kind_of(placed)
                taken = kind.milli_cpu, kind.memory, WHOLE * len(devices_of(placed))
                capacity = (capacity[0] - taken[0], capacity[1] - taken[1], capacity[2] - taken[2])
        return capacity

    def _remove(self, name: str) -> RemovableNode | KeptNode:
        """Move all Pods of a node, and remove it; or leave all where they are."""
        cluster = self._cluster
        own = [
            placed
            for placed in cluster.pods_on(name)
            if self._obstacles.get(placed.pod.metadata.uid or "", "") not in _OF_NODE
        ]
        cluster.hold(name)
        moved: list[tuple[PlacedPod, PlacedPod]] = []
        # The largest first: small Pods fill what is left.
        for placed in sorted(own, key=self._free_resources.size_of, reverse=True):
            cluster.remove(placed.pod.metadata.uid or "")
            after = cluster.place(cluster.replacement(placed))
            if isinstance(after, Unplaced) or after.pod.spec.node_name == name:
                why = after.why if isinstance(after, Unplaced) else "it tolerates every taint"
                if isinstance(after, PlacedPod):
                    cluster.remove(after.pod.metadata.uid or "")
                cluster.restore(placed)
                self._undo(name, moved)
                return KeptNode(name, f"pod {label(placed.pod)} would be pending: {why}")
            moved.append((placed, after))
        for placed in cluster.pods_on(name):
            cluster.remove(placed.pod.metadata.uid or "")
        cluster.remove_node(name, [item for item in cluster.snapshot.slices if item.spec.node_name == name])
        placements = (
            Placement(label(after.pod), after.pod.spec.node_name or "", devices=devices_of(after)) for _, after in moved
        )
        return RemovableNode(name, tuple(placements))

    def _undo(self, name: str, moved: Sequence[tuple[PlacedPod, PlacedPod]]) -> None:
        for _, after in moved:
            self._cluster.remove(after.pod.metadata.uid or "")
        for before, _ in moved:
            self._cluster.restore(before)
        self._cluster.release(name)
