"""Which nodes to add so that Pods fit, at the lowest price.

The Pods are placed by the scheduler first. For those that stay pending, patterns of Pods on one new node are found by
trial, and the cheapest patterns are chosen: by the exact solver if it is installed, else greedily. If all patterns of
new and existing nodes are known, the choice is the optimum; else the price is compared with a bound. The chosen nodes
are then added, and the scheduler's code places every Pod.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dray.allocator.units import PodKind
from dray.sim.capacity.bounds import Need, price_bound
from dray.sim.capacity.demand import DemandKind, grouped, scheduling_order
from dray.sim.capacity.patterns import Counts, PatternFinder
from dray.sim.capacity.plans import AddedNode, CapacityPlan, PendingPod, Placement
from dray.sim.capacity.shapes import NodeShape
from dray.sim.capacity.solver import MISSING, Column, Cover, is_installed, solve_cover
from dray.sim.explain.similar_names import listed
from dray.sim.free_resources import FreeResources
from dray.sim.movable_pods import label
from dray.sim.placer import PlacedPod
from dray.sim.trial_cluster import TrialCluster, TrialPod, Unplaced, devices_of

# Nodes that a plan adds at most.
NODES_MAX: Final = 5_000
# With more Pods or more existing nodes with room, existing nodes are filled by the scheduler alone.
EXACT_PODS_MAX: Final = 60
EXACT_NODES_MAX: Final = 12
# Kinds of Pods on which there is a verdict of all filters; on more, there is the scheduler's message.
VERDICTS_MAX: Final = 64
# Added nodes that are tried to be left out.
DROPS_MAX: Final = 16
# How often nodes are added for Pods that the scheduler leaves pending with those of the patterns.
ROUNDS_MAX: Final = 8
ORDER: Final = "the Pods fit as listed, but the scheduler may place them in another way, with which not all of them fit"
BY_HAND: Final = (
    "{fewer} fewer would be enough if each Pod were put on its node by hand: the scheduler places one Pod after the "
    "other"
)
_EPSILON: Final = 1e-6

# Called with (done, total, description).
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """How to plan."""

    # For the solver.
    seconds: float = 10.0
    uses_solver: bool = True


class AdditionPlanner:
    """Plans additions to one trial cluster, which has them afterwards."""

    def __init__(
        self, cluster: TrialCluster, shapes: Sequence[NodeShape], options: PlanOptions, progress: Progress
    ) -> None:
        self._cluster = cluster
        self._shapes = shapes
        self._options = options
        self._progress = progress
        self._solves = options.uses_solver and is_installed()
        self._notes: list[str] = [] if self._solves or not options.uses_solver else [MISSING]
        self._added: dict[str, NodeShape] = {}
        # The last number in the names of added nodes, by stem.
        self._numbers: dict[str, int] = {}
        self._why: dict[str, str] = {}

    def plan(self, pods: Sequence[TrialPod]) -> CapacityPlan:
        """Return the nodes to add so that all Pods fit."""
        ordered = scheduling_order(pods)
        pending = self._place_all(ordered)
        impossible: tuple[PendingPod, ...] = ()
        bound = 0.0
        if pending:
            kinds, impossible = self._possible(grouped(pending))
            if kinds:
                hopeless = {item.pod for item in impossible}
                bound = self._add_nodes([pod for pod in ordered if label(pod.pod) not in hopeless], kinds)
                if sum(shape.price for shape in self._added.values()) > bound + _EPSILON:
                    self._drop_unneeded()
                self._add_until_scheduled(ordered, PatternFinder(self._cluster, kinds))
        return self._result(ordered, impossible, bound)

    def _place_all(self, pods: Sequence[TrialPod]) -> list[TrialPod]:
        """Place Pods where the scheduler does; return those that fit nowhere."""
        left: list[TrialPod] = []
        kinds = {pod.uid: number for number, kind in enumerate(grouped(pods)) for pod in kind.pods}
        # Later Pods of a kind find less room, unless they want to be near others.
        failed: dict[int, str] = {}
        for number, pod in enumerate(pods):
            self._progress(number + 1, len(pods), "Pods placed on existing nodes")
            kind = kinds[pod.uid]
            if kind not in failed or pod.pod.spec.affinity is not None:
                found = self._cluster.place(pod)
                if not isinstance(found, Unplaced):
                    continue
                failed[kind] = self._cluster.why(found) if len(failed) < VERDICTS_MAX else found.why
            self._why[pod.uid] = failed[kind]
            left.append(pod)
        return left

    def _possible(self, kinds: Sequence[DemandKind]) -> tuple[list[DemandKind], tuple[PendingPod, ...]]:
        """Return the kinds that fit on some shape, and the Pods that do not, with the reason of each shape."""
        finder = PatternFinder(self._cluster, kinds)
        reasons: list[dict[str, str]] = [{} for _ in kinds]
        for shape in self._shapes:
            with finder.trial_node(shape) as name:
                for number in range(len(kinds)):
                    reasons[number][shape.name] = finder.why_not(number, name) if shape.limit != 0 else "none is left"
        possible = [kind for kind, found in zip(kinds, reasons, strict=True) if not all(found.values()) and found]
        impossible = [
            PendingPod(label(pod.pod), _no_shape(found, self._why[pod.uid]))
            for kind, found in zip(kinds, reasons, strict=True)
            if all(found.values()) or not found
            for pod in kind.pods
        ]
        return possible, tuple(impossible)

    # --- Choosing nodes. ---

    def _add_nodes(self, pods: Sequence[TrialPod], pending: Sequence[DemandKind]) -> float:
        """Add nodes for the pending kinds; return what any nodes for them cost at least."""
        exact = self._solve_with_existing_nodes(pods, pending)
        if exact is not None:
            return exact
        bound = self._bound(pods, self._shapes)
        columns, finder = self._columns(pending)
        demand = [len(kind.pods) for kind in pending]
        limits = [shape.limit for shape in self._shapes]
        cover = solve_cover(columns, demand, limits, self._options.seconds) if self._solves else None
        if cover is None or not cover.uses:
            cover = Cover(_greedy(columns, demand, limits), 0.0, is_optimal=False)
        self._realize(finder, columns, cover.uses, pending)
        return bound

    def _columns(self, kinds: Sequence[DemandKind]) -> tuple[list[Column], PatternFinder]:
        """Return patterns on nodes of each shape."""
        finder = PatternFinder(self._cluster, kinds)
        order = self._by_size(kinds)
        columns: list[Column] = []
        for site, shape in enumerate(self._shapes):
            self._progress(site + 1, len(self._shapes), "node shapes tried")
            if shape.limit == 0:
                continue
            with finder.trial_node(shape) as name:
                columns += [Column(site, shape.price, counts) for counts in finder.maximal(name, order)]
                columns += [Column(site, shape.price, counts) for counts in _fills(finder, name, order, kinds)]
        return list(dict.fromkeys(columns)), finder

    def _by_size(self, kinds: Sequence[DemandKind]) -> list[int]:
        """Return the kinds, the largest first: small Pods fill what is left."""
        free_resources = FreeResources(self._cluster)
        sizes = [free_resources.kind_of(kind.sample) for kind in kinds]
        return sorted(
            range(len(kinds)),
            key=lambda number: (
                -sum(count for _, count in sizes[number].demands),
                -sizes[number].milli_cpu,
                -sizes[number].memory,
                number,
            ),
        )

    def _solve_with_existing_nodes(self, pods: Sequence[TrialPod], pending: Sequence[DemandKind]) -> float | None:
        """Find the optimum over existing and new nodes, and return its price; None if there are too many."""
        waiting = {pod.uid for kind in pending for pod in kind.pods}
        placed = [pod for pod in pods if self._cluster.find(pod.uid) is not None]
        if not self._solves or len(placed) + len(waiting) > EXACT_PODS_MAX:
            return None
        before = [self._cluster.remove(pod.uid) for pod in placed]
        kinds = grouped([*placed, *(pod for kind in pending for pod in kind.pods)])
        names = self._nodes_with_room(kinds)
        cover = None
        if len(names) <= EXACT_NODES_MAX:
            columns, finder = self._columns(kinds)
            order = self._by_size(kinds)
            for number, name in enumerate(names):
                site = len(self._shapes) + number
                columns += [Column(site, 0.0, counts) for counts in finder.maximal(name, order)]
            limits = [shape.limit for shape in self._shapes] + [1] * len(names)
            demand = [len(kind.pods) for kind in kinds]
            if finder.is_complete:
                cover = solve_cover(columns, demand, limits, self._options.seconds)
        if cover is None or not cover.uses:
            for found in before:
                self._cluster.restore(found)
            return None
        self._realize(finder, columns, cover.uses, kinds, names)
        return cover.bound

    def _nodes_with_room(self, kinds: Sequence[DemandKind]) -> list[str]:
        """Return the existing nodes on which a Pod of some kind fits now."""
        free_resources = FreeResources(self._cluster)
        names: dict[str, None] = {}
        for kind in kinds:
            names |= dict.fromkeys(name for name, lack in free_resources.lacking(kind.sample) if not any(lack))
            if len(names) > EXACT_NODES_MAX:
                break
        return sorted(names)

    def _bound(self, pods: Sequence[TrialPod], shapes: Sequence[NodeShape]) -> float:
        """Return what new nodes cost at least: for the Pods of each kind that existing nodes cannot take."""
        cluster = self._cluster
        before = [cluster.remove(pod.uid) for pod in pods if cluster.find(pod.uid) is not None]
        kinds = grouped(pods)
        free_resources = FreeResources(cluster)
        types = [free_resources.kind_of(kind.sample) for kind in kinds]
        beyond = [
            max(len(kind.pods) - _fitting(free_resources, kind, found), 0)
            for kind, found in zip(kinds, types, strict=True)
        ]
        finder = PatternFinder(cluster, kinds)
        limits = [len(kind.pods) for kind in kinds]
        per_shape: list[list[int]] = []
        devices: list[int | None] = [None] * len(kinds)
        for shape in shapes:
            with finder.trial_node(shape) as name:
                most = [finder.fill(name, [kind], limits)[kind] if beyond[kind] else 0 for kind in range(len(kinds))]
                per_shape.append([*most, *free_resources.capacity(name)])
                for kind in (number for number, count in enumerate(most) if count):
                    taken, known = free_resources.taken(name, types[kind]), devices[kind]
                    devices[kind] = taken if known is None else min(taken, known)
        for placed in before:
            cluster.restore(placed)
        each = [(found.milli_cpu, found.memory, taken or 0) for found, taken in zip(types, devices, strict=True)]
        sums = [
            sum(count * amount for count, amount in zip(beyond, column, strict=True))
            for column in zip(*each, strict=True)
        ]
        amounts = [*beyond, *sums]
        needs = [
            Need(amount, tuple(float(given[number]) for given in per_shape)) for number, amount in enumerate(amounts)
        ]
        return price_bound(needs, [shape.price for shape in shapes])

    # --- Carrying out. ---

    def _realize(
        self,
        finder: PatternFinder,
        columns: Sequence[Column],
        uses: Sequence[int],
        kinds: Sequence[DemandKind],
        existing: Sequence[str] = (),
    ) -> None:
        """Add the nodes of the chosen columns, and place the Pods on them as the patterns say."""
        sites: list[tuple[str, Column]] = []
        for column, count in zip(columns, uses, strict=True):
            for _ in range(count):
                is_new = column.site < len(self._shapes)
                old = "" if is_new else existing[column.site - len(self._shapes)]
                sites.append((old or self._add(self._shapes[column.site]), column))
        for name in self._added:
            finder.place_daemons(name)
        left = [list(reversed(kind.pods)) for kind in kinds]
        order = self._by_size(kinds)
        for number, (name, column) in enumerate(sites):
            self._progress(number + 1, len(sites), "nodes filled")
            for kind in order:
                self._place_some(left[kind], column.counts[kind], name)
        self._place_rest(finder, [pod for kind in order for pod in left[kind]])

    def _place_some(self, pods: list[TrialPod], count: int, name: str) -> None:
        """Place the last Pods of a list on a node, as many as the pattern says and the scheduler accepts."""
        for _ in range(min(count, len(pods))):
            if isinstance(self._cluster.place(pods[-1], on=name), Unplaced):
                return
            pods.pop()

    def _add(self, shape: NodeShape) -> str:
        stem = re.sub(r"[^a-z0-9-]+", "-", shape.name.lower()).strip("-") or "node"
        number = self._numbers.get(stem, 0)
        name = ""
        while not name or name in self._cluster.nodes:
            number += 1
            name = f"{stem}-{number}"
        self._numbers[stem] = number
        self._cluster.add_node(*shape.named(name))
        self._added[name] = shape
        return name

    def _place_rest(self, finder: PatternFinder, pods: Sequence[TrialPod]) -> None:
        """Place what the patterns left, for example because of affinity between nodes; add nodes while that helps."""
        for pod in pods:
            if not isinstance(self._cluster.place(pod), Unplaced):
                continue
            for shape in sorted(self._shapes, key=lambda item: (item.price, item.name)):
                used = sum(1 for other in self._added.values() if other is shape)
                if len(self._added) >= NODES_MAX or (shape.limit is not None and used >= shape.limit):
                    continue
                name = self._add(shape)
                finder.place_daemons(name)
                if not isinstance(self._cluster.place(pod, on=name), Unplaced):
                    break
                self._remove(name)

    def _add_until_scheduled(self, pods: Sequence[TrialPod], finder: PatternFinder) -> None:
        """Place the Pods again as the scheduler does, one after the other, and add nodes until it places them all.

        A pattern may need Pods on other nodes than the scheduler prefers: those that it spreads leave gaps.
        """
        planned = [pod for pod in pods if self._cluster.find(pod.uid) is not None]
        enough = len(self._added)
        for _ in range(ROUNDS_MAX):
            before = [self._cluster.remove(pod.uid) for pod in planned]
            left = self._place_in_turn(pods)
            missing = [pod for pod in planned if pod.uid in {item.uid for item in left}]
            if not missing:
                if len(self._added) > enough:
                    self._notes.append(BY_HAND.format(fewer=len(self._added) - enough))
                return
            count = len(self._added)
            self._place_rest(finder, missing)
            if len(self._added) == count:
                break
        for pod in planned:
            if self._cluster.find(pod.uid) is not None:
                self._cluster.remove(pod.uid)
        for placed in before:
            self._cluster.restore(placed)
        self._notes.append(ORDER)

    def _place_in_turn(self, pods: Sequence[TrialPod]) -> list[TrialPod]:
        """Place the Pods that have no node, and try those that fit nowhere again when others have theirs."""
        left = [pod for pod in pods if self._cluster.find(pod.uid) is None]
        while left:
            failed = [pod for pod in left if isinstance(self._cluster.place(pod), Unplaced)]
            if len(failed) == len(left):
                break
            left = failed
        return left

    def _remove(self, name: str) -> None:
        shape = self._added.pop(name)
        for placed in self._cluster.pods_on(name):
            self._cluster.remove(placed.pod.metadata.uid or "")
        self._cluster.remove_node(name, shape.named(name)[1])

    def _drop_unneeded(self) -> None:
        """Remove nodes whose Pods fit elsewhere: of those with the fewest Pods, the most expensive first."""
        counts = {name: len(self._cluster.pods_on(name)) for name in self._added}
        names = sorted(self._added, key=lambda item: (counts[item], -self._added[item].price, item))
        for name in names[:DROPS_MAX]:
            own = [placed for placed in self._cluster.pods_on(name) if not _is_daemon(placed)]
            self._cluster.hold(name)
            moved: list[PlacedPod] = []
            for placed in own:
                self._cluster.remove(placed.pod.metadata.uid or "")
                after = self._cluster.place(self._cluster.replacement(placed))
                if isinstance(after, Unplaced):
                    self._cluster.restore(placed)
                    break
                moved.append(placed)
            if len(moved) == len(own):
                self._remove(name)
                continue
            self._cluster.release(name)
            for placed in moved:
                self._cluster.remove(placed.pod.metadata.uid or "")
                self._cluster.restore(placed)

    # --- The result. ---

    def _result(self, pods: Sequence[TrialPod], impossible: tuple[PendingPod, ...], bound: float) -> CapacityPlan:
        placements: list[Placement] = []
        missing: list[PendingPod] = []
        hopeless = {item.pod for item in impossible}
        for pod in pods:
            placed = self._cluster.find(pod.uid)
            name = label(pod.pod)
            if placed is not None:
                node = placed.pod.spec.node_name or ""
                placements.append(Placement(name, node, node in self._added, devices_of(placed)))
            elif name not in hopeless:
                missing.append(PendingPod(name, self._why.get(pod.uid, "")))
        added = tuple(
            AddedNode(name, shape.name, shape.price, *self._needed_for(name)) for name, shape in self._added.items()
        )
        price = sum(node.price for node in added)
        is_optimal = not missing and price <= bound + _EPSILON
        return CapacityPlan(
            added, tuple(placements), (*impossible, *missing), price, price if is_optimal else bound, is_optimal,
            tuple(self._notes),
        )  # fmt: skip

    def _needed_for(self, name: str) -> tuple[tuple[str, ...], str]:
        """Return the Pods on an added node, and why they need it."""
        own = [placed for placed in self._cluster.pods_on(name) if not _is_daemon(placed)]
        whys = [self._why[placed.pod.metadata.uid or ""] for placed in own if placed.pod.metadata.uid in self._why]
        why = whys[0] if whys else "makes room on other nodes"
        return tuple(label(placed.pod) for placed in own), why


def _fitting(free_resources: FreeResources, kind: DemandKind, found: PodKind) -> int:
    """Return how many Pods of a kind fit on existing nodes."""
    count = 0
    for node in free_resources.accepting(kind.sample):
        count += min(free_resources.count(free_resources.state(node), found, len(kind.pods)), max(node.free_pods, 0))
        if count >= len(kind.pods):
            break
    return count


def _is_daemon(placed: PlacedPod) -> bool:
    return any(owner.controller and owner.kind == "DaemonSet" for owner in placed.pod.metadata.owner_references)


def _no_shape(reasons: dict[str, str], why: str) -> str:
    if not reasons:
        return f"{why} There are no node shapes to add"
    texts: dict[str, list[str]] = {}
    for shape, reason in reasons.items():
        texts.setdefault(reason, []).append(shape)
    parts = "; ".join(f"{listed(shapes)}: {reason}" for reason, shapes in texts.items())
    return f"fits on no node shape, even on an empty node: {parts}"


def _fills(finder: PatternFinder, name: str, order: Sequence[int], kinds: Sequence[DemandKind]) -> list[Counts]:
    """Return some patterns: each kind first and then the others, the largest first."""
    limits = [len(kind.pods) for kind in kinds]
    found = []
    for first in order:
        counts = finder.fill(name, [first, *(kind for kind in order if kind != first)], limits)
        if any(counts):
            found.append(counts)
    return found


def _greedy(columns: Sequence[Column], demand: Sequence[int], limits: Sequence[int | None]) -> tuple[int, ...]:
    """Return how often to use each column: again and again the one that costs least for what it holds."""
    left, used = list(demand), [0] * len(columns)
    by_site = [0] * len(limits)
    # What a Pod of the kind costs at least.
    worth = [
        min((column.price / column.counts[kind] for column in columns if column.counts[kind]), default=0.0) or _EPSILON
        for kind in range(len(demand))
    ]
    while any(left):
        best, best_ratio = -1, 0.0
        for number, column in enumerate(columns):
            limit = limits[column.site]
            if limit is not None and by_site[column.site] >= limit:
                continue
            held = sum(worth[kind] * min(count, left[kind]) for kind, count in enumerate(column.counts))
            ratio = held / (column.price or _EPSILON)
            if ratio > best_ratio + _EPSILON:
                best, best_ratio = number, ratio
        if best < 0:
            break
        column = columns[best]
        limit = limits[column.site]
        times = min(
            (left[kind] // count for kind, count in enumerate(column.counts) if count and left[kind] >= count),
            default=1,
        )
        times = max(min(times, (limit - by_site[column.site]) if limit is not None else times), 1)
        used[best] += times
        by_site[column.site] += times
        left = [max(amount - times * count, 0) for amount, count in zip(left, column.counts, strict=True)]
    return tuple(used)
