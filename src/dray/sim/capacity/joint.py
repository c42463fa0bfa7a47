"""Places Pods together where one by one fails: by other orders, and by the exact solver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dray.sim.capacity.addition import VERDICTS_MAX, PlanOptions
from dray.sim.capacity.demand import DemandKind, grouped, scheduling_order
from dray.sim.capacity.patterns import PatternFinder
from dray.sim.capacity.plans import JointPlan, PendingPod, Placement
from dray.sim.capacity.solver import MISSING, Column, is_installed, solve_cover
from dray.sim.free_resources import FreeResources
from dray.sim.movable_pods import label
from dray.sim.placer import PlacedPod
from dray.sim.trial_cluster import TrialCluster, TrialPod, Unplaced, devices_of

# Nodes with room that the solver looks at.
NODES_MAX: Final = 64


class JointPlanner:
    """Plans for one trial cluster, in which the Pods are placed afterwards, if all fit."""

    def __init__(self, cluster: TrialCluster, options: PlanOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._verdicts_left = VERDICTS_MAX

    def plan(self, pods: Sequence[TrialPod]) -> JointPlan:
        """Return where the Pods go together; all of them, or as many as one by one."""
        ordered = scheduling_order(pods)
        alone, failed = self._place_in_order(ordered)
        pending = tuple(PendingPod(label(item.pod.pod), self._why(item)) for item in failed)
        if not failed:
            return JointPlan(_placements(alone), (), (), is_order=True)
        self._take_away(alone)
        for order in self._orders(ordered):
            placed, unplaced = self._place_in_order(order)
            if not unplaced:
                return JointPlan(_placements(placed), pending, (), is_order=True)
            self._take_away(placed)
        return self._solve(ordered, pending, alone)

    def _why(self, unplaced: Unplaced) -> str:
        self._verdicts_left -= 1
        return self._cluster.why(unplaced) if self._verdicts_left >= 0 else unplaced.why

    def _orders(self, pods: Sequence[TrialPod]) -> Iterator[list[TrialPod]]:
        """Yield other orders: the largest first, then those that fit on the fewest nodes first."""
        free_resources = FreeResources(self._cluster)
        sizes = {pod.uid: free_resources.kind_of(pod) for pod in pods}

        def size(pod: TrialPod) -> tuple[int, int, int]:
            kind = sizes[pod.uid]
            return sum(count for _, count in kind.demands), kind.milli_cpu, kind.memory

        yield sorted(pods, key=size, reverse=True)
        choices = {pod.uid: sum(1 for _, lack in free_resources.lacking(pod) if not any(lack)) for pod in pods}
        yield sorted(pods, key=lambda pod: (choices[pod.uid], *(-amount for amount in size(pod))))

    def _place_in_order(self, pods: Sequence[TrialPod]) -> tuple[list[PlacedPod], list[Unplaced]]:
        placed: list[PlacedPod] = []
        failed: list[Unplaced] = []
        for pod in pods:
            found = self._cluster.place(pod)
            if isinstance(found, Unplaced):
                failed.append(found)
            else:
                placed.append(found)
        return placed, failed

    def _take_away(self, pods: Sequence[PlacedPod]) -> None:
        for placed in pods:
            self._cluster.remove(placed.pod.metadata.uid or "")

    # --- The solver. ---

    def _solve(
        self, pods: Sequence[TrialPod], pending: tuple[PendingPod, ...], alone: Sequence[PlacedPod]
    ) -> JointPlan:
        kinds = grouped(pods)
        names = self._nodes_with_room(kinds)
        notes: tuple[str, ...] = ()
        proved = False
        if not is_installed() or not self._options.uses_solver:
            notes = (MISSING,) if self._options.uses_solver else ()
        elif len(names) > NODES_MAX:
            notes = (f"{len(names)} nodes have room, more than the solver looks at",)
        else:
            finder = PatternFinder(self._cluster, kinds)
            order = self._largest_first(kinds)
            columns = [
                Column(site, 0.0, counts) for site, name in enumerate(names) for counts in finder.maximal(name, order)
            ]
            demand = [len(kind.pods) for kind in kinds]
            cover = solve_cover(columns, demand, [1] * len(names), self._options.seconds) if columns else None
            proved = cover is None and finder.is_complete
            if cover is not None and cover.uses:
                placed = self._realize(kinds, order, names, [c for c, n in zip(columns, cover.uses, strict=True) if n])
                if len(placed) == len(pods):
                    return JointPlan(_placements(placed), pending, ())
                self._take_away(placed)
        for found in alone:
            self._cluster.restore(found)
        return JointPlan(_placements(alone), pending, pending, is_proved=proved, notes=notes)

    def _nodes_with_room(self, kinds: Sequence[DemandKind]) -> list[str]:
        free_resources = FreeResources(self._cluster)
        return sorted({name for kind in kinds for name, lack in free_resources.lacking(kind.sample) if not any(lack)})

    def _largest_first(self, kinds: Sequence[DemandKind]) -> list[int]:
        free_resources = FreeResources(self._cluster)
        sizes = [free_resources.kind_of(kind.sample) for kind in kinds]
        return sorted(
            range(len(kinds)),
            key=lambda n: (-sum(c for _, c in sizes[n].demands), -sizes[n].milli_cpu, -sizes[n].memory),
        )

    def _realize(
        self, kinds: Sequence[DemandKind], order: Sequence[int], names: Sequence[str], columns: Sequence[Column]
    ) -> list[PlacedPod]:
        left = [list(kind.pods) for kind in kinds]
        placed: list[PlacedPod] = []
        for column in columns:
            for kind in order:
                for pod in left[kind][: column.counts[kind]]:
                    found = self._cluster.place(pod, on=names[column.site])
                    if not isinstance(found, Unplaced):
                        placed.append(found)
                        left[kind].remove(pod)
        return placed


def _placements(pods: Sequence[PlacedPod]) -> tuple[Placement, ...]:
    return tuple(
        Placement(label(placed.pod), placed.pod.spec.node_name or "", devices=devices_of(placed)) for placed in pods
    )
