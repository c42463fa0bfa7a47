"""Finds the fewest moves that make room for one Pod, by trying them in a trial cluster.

Pods of one node move to where there is room. If there is none for one of them, room is made for it first, on another
node: a chain of moves. The search is bounded by how many nodes are tried, so that it gives the same answer everywhere.
"""

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
# Nodes that are tried for a Pod with chains, and for each Pod of a chain.
CHAIN_CANDIDATES_MAX: Final = 4


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
    # Made before, in this order: room for Pods of `relocations` that would fit nowhere.
    prerequisites: tuple[Prerequisite, ...] = ()

    @property
    def all_relocations(self) -> tuple[Relocation, ...]:
        """Return the relocations in their order, those of the prerequisites first."""
        return (*(item for prerequisite in self.prerequisites for item in prerequisite.relocations), *self.relocations)

    @property
    def cost(self) -> tuple[int, int, str]:
        """Return what is compared: moves, then moved devices, then the name of the node."""
        devices = sum(
            len(claim.status.allocation.devices.results)
            for item in self.all_relocations
            for claim in item.before.claims
            if claim.status.allocation is not None
        )
        return len(self.all_relocations), devices, self.node


@dataclass(frozen=True, slots=True)
class Prerequisite:
    """The relocations that make room on a node for a Pod that moves next."""

    pod: PlacedPod
    node: str
    relocations: tuple[Relocation, ...]


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
        self._may_move = is_movable
        self._free_resources = free_resources
        # Pods of the chain that is tried: a Pod is moved once.
        self._in_chain: set[str] = set()
        # Nodes with room for Pods that are not there yet, in order; no Pod is moved to them.
        self.reserved: dict[str, None] = {}

    def find(self, pod: TrialPod, victims_max: int = VICTIMS_MAX) -> RelocationPlan | None:
        """Return the cheapest room for a Pod that fits nowhere; None if none was found."""
        found = self._find_direct(pod, victims_max, self._candidates_max)
        # A chain has two moves at least.
        return found if found is not None or victims_max == 1 else self._find_chain(pod, victims_max)

    def _is_movable(self, placed: PlacedPod) -> bool:
        return placed.pod.metadata.uid not in self._in_chain and self._may_move(placed)

    def _find_direct(self, pod: TrialPod, victims_max: int, candidates_max: int) -> RelocationPlan | None:
        """Return the cheapest room by moves to where there is room already."""
        best: RelocationPlan | None = None
        for name in self._candidates(pod)[:candidates_max]:
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
        return [name for _, name in sorted(lacking)]

    def _on(self, pod: TrialPod, name: str, victims_max: int) -> RelocationPlan | None:
        """Return the room on one node; the cluster is as before."""
        plans: list[RelocationPlan] = []
        for victims in self._victim_sets(pod, name, victims_max):
            relocations = self._relocate(pod, name, victims)
            if relocations is not None:
                plans.append(RelocationPlan(name, relocations))
        return min(plans, key=lambda plan: plan.cost, default=None)

    def _victim_sets(self, pod: TrialPod, name: str, victims_max: int) -> list[list[PlacedPod]]:
        """Return sets of Pods without which the Pod would fit on the node."""
        movable = [
            placed
            for placed in self._cluster.pods_on(name)
            if self._is_movable(placed) and (placed.pod.spec.priority or 0) <= pod.priority
        ]
        if not movable:
            return []
        found: list[list[PlacedPod]] = []
        # Keeping the large Pods moves small ones, which are placed easily; keeping the small ones moves fewer.
        by_size = sorted(movable, key=self._free_resources.size_of, reverse=True)
        for order in (by_size, by_size[::-1]) if len(movable) > 1 else (by_size,):
            victims = self._victims(pod, name, order)
            if victims is None:
                break
            if 0 < len(victims) <= victims_max:
                found.append(victims)
        return found

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
        moved = self._move(name, victims)
        works = len(moved) == len(victims) and self._cluster.fits(pod, on=name)
        undo(self._cluster, moved)
        return tuple(moved) if works else None

    # --- Chains. ---

    def _find_chain(self, pod: TrialPod, victims_max: int) -> RelocationPlan | None:
        """Return the cheapest chain on the nodes that lack least; the cluster is as before."""
        best: RelocationPlan | None = None
        for name in self._candidates(pod)[:CHAIN_CANDIDATES_MAX]:
            limit = victims_max if best is None else len(best.all_relocations) - 1
            # One move more is needed for at least one of the victims.
            for victims in self._victim_sets(pod, name, limit - 1):
                self._in_chain = {placed.pod.metadata.uid or "" for placed in victims}
                prerequisites = self._prerequisites(name, victims, limit - len(victims))
                self._in_chain = set()
                plan = None if not prerequisites else self._in_order(pod, name, victims, prerequisites)
                if plan is not None and (best is None or plan.cost < best.cost):
                    best = plan
        return best

    def _prerequisites(self, name: str, victims: Sequence[PlacedPod], moves_max: int) -> list[Prerequisite] | None:
        """Return the prerequisites of victims that fit nowhere while the node is held; None if one has none."""
        cluster = self._cluster
        prerequisites: list[Prerequisite] = []
        missing = False
        done: list[Relocation] = []
        for placed in victims:
            cluster.remove(placed.pod.metadata.uid or "")
        with cluster.holding((name, *self.reserved)):
            for placed in victims:
                pod = cluster.replacement(placed)
                after = cluster.place(pod)
                if isinstance(after, Unplaced):
                    plan = self._find_direct(pod, moves_max, CHAIN_CANDIDATES_MAX) if moves_max > 0 else None
                    if plan is None:
                        missing = True
                        break
                    prerequisites.append(Prerequisite(placed, plan.node, plan.relocations))
                    moves_max -= len(plan.relocations)
                    done += plan.relocations
                    self._in_chain |= {item.before.pod.metadata.uid or "" for item in plan.relocations}
                    carry_out(cluster, plan)
                    after = cluster.place(pod, on=plan.node)
                    assert isinstance(after, PlacedPod), "there is room now"
                done.append(Relocation(placed, after))
        gone = {item.before.pod.metadata.uid for item in done}
        undo(cluster, done)
        _restore(cluster, [placed for placed in victims if placed.pod.metadata.uid not in gone])
        return None if missing else prerequisites

    def _in_order(
        self, pod: TrialPod, name: str, victims: Sequence[PlacedPod], prerequisites: Sequence[Prerequisite]
    ) -> RelocationPlan | None:
        """Carry a chain out in its order, one node held after the other; None if the scheduler decides otherwise."""
        cluster = self._cluster
        done: list[Relocation] = []
        made: list[Prerequisite] = []
        works = True
        for prerequisite in prerequisites:
            moved = self._move(prerequisite.node, [item.before for item in prerequisite.relocations])
            done += moved
            made.append(Prerequisite(prerequisite.pod, prerequisite.node, tuple(moved)))
            works = works and len(moved) == len(prerequisite.relocations)
        moved = self._move(name, victims) if works else []
        done += moved
        works = works and len(moved) == len(victims) and cluster.fits(pod, on=name)
        undo(cluster, done)
        return RelocationPlan(name, tuple(moved), tuple(made)) if works else None

    def _move(self, name: str, pods: Iterable[PlacedPod]) -> list[Relocation]:
        """Move Pods from a node while it is held, until one does not fit elsewhere."""
        cluster = self._cluster
        moved: list[Relocation] = []
        with cluster.holding((name, *self.reserved)):
            for placed in pods:
                cluster.remove(placed.pod.metadata.uid or "")
                after = cluster.place(cluster.replacement(placed))
                # Pods that tolerate every taint may come back.
                if isinstance(after, PlacedPod) and after.pod.spec.node_name not in (name, *self.reserved):
                    moved.append(Relocation(placed, after))
                    continue
                if isinstance(after, PlacedPod):
                    cluster.remove(after.pod.metadata.uid or "")
                cluster.restore(placed)
                break
        return moved


def carry_out(cluster: TrialCluster, plan: RelocationPlan) -> None:
    """Move the Pods of a room in the trial cluster."""
    for item in plan.all_relocations:
        cluster.remove(item.before.pod.metadata.uid or "")
    for item in plan.all_relocations:
        cluster.restore(item.after)


def undo(cluster: TrialCluster, done: Sequence[Relocation]) -> None:
    """Put Pods back to where they were."""
    for item in done:
        cluster.remove(item.after.pod.metadata.uid or "")
    for item in done:
        cluster.restore(item.before)


def _restore(cluster: TrialCluster, pods: Iterable[PlacedPod]) -> None:
    for placed in pods:
        cluster.restore(placed)
