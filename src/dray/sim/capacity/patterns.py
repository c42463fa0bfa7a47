"""Which Pods fit on one node together: patterns, found by placing Pods with the scheduler's code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

import msgspec

from dray.api.types.core_v1 import Pod
from dray.sim.capacity.demand import DemandKind
from dray.sim.capacity.shapes import NodeShape
from dray.sim.trial_cluster import TrialCluster, TrialPod, Unplaced

# How many Pods of each kind.
Counts: TypeAlias = tuple[int, ...]
# Placements that are tried to find all patterns of one plan; beyond that, only some patterns are found.
STEPS_MAX: Final = 3_000
# Patterns of one plan that a solver chooses from.
PATTERNS_MAX: Final = 2_000
TRIAL_NODE: Final = "dray-plan-trial"
replace = msgspec.structs.replace


class PatternFinder:
    """Finds patterns of the kinds on nodes of a trial cluster, which is unchanged afterwards."""

    def __init__(self, cluster: TrialCluster, kinds: Sequence[DemandKind], steps_max: int = STEPS_MAX) -> None:
        self._cluster = cluster
        self._kinds = kinds
        self._left = steps_max
        self._daemons = list(_daemon_pods(cluster))
        # Whether all maximal patterns of all nodes so far were found.
        self.is_complete = True

    @contextmanager
    def trial_node(self, shape: NodeShape) -> Iterator[str]:
        """Add a node of the shape, with the Pods of DaemonSets, for the time of the block."""
        name = TRIAL_NODE
        node, slices = shape.named(name)
        self._cluster.add_node(node, slices)
        daemons = self.place_daemons(name)
        yield name
        for uid in daemons:
            self._cluster.remove(uid)
        self._cluster.remove_node(name, slices)

    def place_daemons(self, node_name: str) -> list[str]:
        """Place the Pods of DaemonSets on a new node; return the uids of those that fit."""
        copies = [pod.copy(node_name) for pod in self._daemons]
        return [pod.uid for pod in copies if not isinstance(self._cluster.place(pod, on=node_name), Unplaced)]

    def why_not(self, kind: int, node_name: str) -> str:
        """Return why no Pod of the kind fits on the node; empty if one fits."""
        found = self._cluster.place(self._kinds[kind].sample, on=node_name)
        if isinstance(found, Unplaced):
            return self._cluster.why_not_on(found, node_name)
        self._cluster.remove(self._kinds[kind].sample.uid)
        return ""

    def fill(self, node_name: str, order: Sequence[int], limits: Sequence[int]) -> Counts:
        """Return how many of each kind fit if they come in this order."""
        counts = [0] * len(self._kinds)
        for kind in order:
            counts[kind] = self._place_many(kind, node_name, limits[kind])
        self._take_away(counts)
        return tuple(counts)

    def _place_many(self, kind: int, node_name: str, limit: int) -> int:
        for number, pod in enumerate(self._kinds[kind].pods[:limit]):
            self._left -= 1
            if isinstance(self._cluster.place(pod, on=node_name), Unplaced):
                return number
        return min(limit, len(self._kinds[kind].pods))

    def _take_away(self, counts: Sequence[int]) -> None:
        for kind, count in zip(self._kinds, counts, strict=True):
            for pod in kind.pods[:count]:
                self._cluster.remove(pod.uid)

    def maximal(self, node_name: str, order: Sequence[int]) -> list[Counts]:
        """Return the patterns to which no Pod can be added; some of them if there are too many."""
        found: dict[Counts, None] = {}
        self._extend(node_name, order, 0, [0] * len(self._kinds), found)
        if self._left <= 0 or len(found) > PATTERNS_MAX:
            self.is_complete = False
        return _undominated(list(found))

    def _extend(
        self, node_name: str, order: Sequence[int], position: int, counts: list[int], found: dict[Counts, None]
    ) -> None:
        """Place as many as possible of one kind, then one fewer at a time, each with what fits of the later kinds."""
        if position == len(order):
            found[tuple(counts)] = None
            return
        kind = order[position]
        pods = self._kinds[kind].pods
        counts[kind] = self._place_many(kind, node_name, len(pods))
        while True:
            self._extend(node_name, order, position + 1, counts, found)
            # Fewer of the last kind would not be maximal.
            if not counts[kind] or (position + 1 == len(order) or self._left <= 0):
                break
            counts[kind] -= 1
            self._cluster.remove(pods[counts[kind]].uid)
        for pod in pods[: counts[kind]]:
            self._cluster.remove(pod.uid)
        counts[kind] = 0


def _undominated(patterns: list[Counts]) -> list[Counts]:
    """Return the patterns that are not part of another one."""
    kept: list[Counts] = []
    for pattern in sorted(patterns, key=lambda counts: (-sum(counts), counts)):
        if any(pattern) and not any(all(a <= b for a, b in zip(pattern, other, strict=True)) for other in kept):
            kept.append(pattern)
    return kept


def _daemon_pods(cluster: TrialCluster) -> Iterator[TrialPod]:
    """Yield a Pod of each DaemonSet: new nodes run them too."""
    seen: set[str] = set()
    for pod in cluster.snapshot.pods:
        owner = next((item for item in pod.metadata.owner_references if item.controller), None)
        if owner is None or owner.kind != "DaemonSet" or owner.uid in seen or not pod.spec.node_name:
            continue
        placed = cluster.find(pod.metadata.uid or "")
        if placed is not None:
            seen.add(owner.uid)
            yield _for_any_node(cluster.replacement(placed))


def _for_any_node(pod: TrialPod) -> TrialPod:
    """Return the Pod without the affinity by which its DaemonSet binds it to one node."""
    spec = pod.pod.spec
    affinity = None if spec.affinity is None else replace(spec.affinity, node_affinity=None)
    changed: Pod = replace(pod.pod, spec=replace(spec, affinity=affinity))
    return TrialPod(changed, pod.claims)
