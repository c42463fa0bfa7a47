"""Finds the fewest moves that make room for one Pod, by trying them in a trial cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dray.sim.free_resources import FreeResources
from dray.sim.placer import PlacedPod
from dray.sim.trial_cluster import TrialCluster, TrialPod, Unplaced

# Nodes that are tried for one Pod, the ones first that lack the least.
CANDIDATES_MAX: Final = 32
# Pods that are moved for one Pod.
VICTIMS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Relocation:
    """A Pod before and after its move."""

    before: PlacedPod
    after: PlacedPod


@dataclass(frozen=True, slots=True)
class RelocationPlan:
    """The relocations that make room for a Pod on a node."""

    node: str
    relocations: tuple[Relocation, ...]

    @property
    def cost(self) -> tuple[int, int, str]:
        """Return what is compared: moves, then moved devices, then the name of the node."""
        devices = sum(
            len(claim.status.allocation.devices.results)
            for item in self.relocations
            for claim in item.before.claims
            if claim.status.allocation is not None
        )
        return len(self.relocations), devices, self.node


class RelocationFinder:
    """Searches a trial cluster, which is unchanged after each search."""

    def __init__(
        self,
        cluster: TrialCluster,
        is_movable: Callable[[PlacedPod], bool],
        free_resources: FreeResources,
        candidates_max: int = CANDIDATES_MAX,
    ) -> None:
        self._cluster = cluster
        self._candidates_max = candidates_max
        self._is_movable = is_movable
        self._free_resources = free_resources

    def find(self, pod: TrialPod, victims_max: int = VICTIMS_MAX) -> RelocationPlan | None:
        """Return the cheapest room for a Pod that fits nowhere; None if none was found."""
        best: RelocationPlan | None = None
        for name in self._candidates(pod):
            limit = victims_max if best is None else len(best.relocations)
            plan = self._on(pod, name, limit)
            if plan is not None and (best is None or plan.cost < best.cost):
                best = plan
                if len(plan.relocations) == 1:
                    break
        return best

    def _candidates(self, pod: TrialPod) -> list[str]:
        """Return the nodes on which the Pod would fit if they were empty, those that lack least first."""
        lacking = [
            (lack, name)
            for name, lack in self._free_resources.lacking(pod)
            if any(self._is_movable(placed) for placed in self._cluster.pods_on(name))
        ]
        return [name for _, name in sorted(lacking)[: self._candidates_max]]

    def _on(self, pod: TrialPod, name: str, victims_max: int) -> RelocationPlan | None:
        """Return the room on one node; the cluster is as before."""
        movable = [
            placed
            for placed in self._cluster.pods_on(name)
            if self._is_movable(placed) and (placed.pod.spec.priority or 0) <= pod.priority
        ]
        if not movable:
            return None
        plans: list[RelocationPlan] = []
        # Keeping the large Pods moves small ones, which are placed easily; keeping the small ones moves fewer.
        by_size = sorted(movable, key=self._free_resources.size_of, reverse=True)
        for order in (by_size, by_size[::-1]) if len(movable) > 1 else (by_size,):
            victims = self._victims(pod, name, order)
            if victims is None:
                return None
            if 0 < len(victims) <= victims_max:
                relocations = self._relocate(pod, name, victims)
                if relocations is not None:
                    plans.append(RelocationPlan(name, relocations))
        return min(plans, key=lambda plan: plan.cost, default=None)

    def _victims(self, pod: TrialPod, name: str, order: Sequence[PlacedPod]) -> list[PlacedPod] | None:
        """Return the Pods that must go, if as many as possible of the first ones stay; None if none would be enough."""
        cluster = self._cluster
        for placed in order:
            cluster.remove(placed.pod.metadata.uid or "")
        victims: list[PlacedPod] = []
        if not cluster.fits(pod, on=name):
            _restore(cluster, order)
            return None
        for placed in order:
            cluster.restore(placed)
            if not cluster.fits(pod, on=name):
                victims.append(cluster.remove(placed.pod.metadata.uid or ""))
        _restore(cluster, victims)
        return victims

    def _relocate(self, pod: TrialPod, name: str, victims: Sequence[PlacedPod]) -> tuple[Relocation, ...] | None:
        """Return where the victims go while the node is held; None if one of them fits nowhere else."""
        cluster = self._cluster
        for placed in victims:
            cluster.remove(placed.pod.metadata.uid or "")
        cluster.hold(name)
        moved: list[Relocation] = []
        for placed in victims:
            after = cluster.place(cluster.replacement(placed))
            if isinstance(after, Unplaced) or after.pod.spec.node_name == name:
                if isinstance(after, PlacedPod):
                    cluster.remove(after.pod.metadata.uid or "")
                break
            moved.append(Relocation(placed, after))
        cluster.release(name)
        works = len(moved) == len(victims) and cluster.fits(pod, on=name)
        for item in moved:
            cluster.remove(item.after.pod.metadata.uid or "")
        _restore(cluster, victims)
        return tuple(moved) if works else None


def carry_out(cluster: TrialCluster, plan: RelocationPlan) -> None:
    """Move the Pods of a room in the trial cluster."""
    for item in plan.relocations:
        cluster.remove(item.before.pod.metadata.uid or "")
    for item in plan.relocations:
        cluster.restore(item.after)


def _restore(cluster: TrialCluster, pods: Iterable[PlacedPod]) -> None:
    for placed in pods:
        cluster.restore(placed)
