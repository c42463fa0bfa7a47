"""Plans a rebalancing: which Pods to move so that pending Pods, or further Pods of some kind, fit.

Pods that need one move come before those that need more, so that a limit of moves helps as many as possible. Every
step was carried out in a trial cluster by the scheduler's own code, in the order of the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dray.allocator.units import PodKind
from dray.api.features import FeatureGates
from dray.scheduler.config import ProfileConfig
from dray.sim.free_resources import FreeResources
from dray.sim.headroom import KindHeadroom, kind_headroom, requests_text, typical_kinds
from dray.sim.movable_pods import HIGHER_PRIORITY, SYSTEM_PRIORITY_MIN, MoveRules, controller_of, label
from dray.sim.placer import PlacedPod
from dray.sim.rebalance.moves import Move, NotHelped, RebalancePlan, Step
from dray.sim.rebalance.relocations import VICTIMS_MAX, Relocation, RelocationFinder, RelocationPlan, carry_out
from dray.sim.snapshot import Snapshot
from dray.sim.trial_cluster import TrialCluster, TrialPod, Unplaced, devices_of

# Moves that a plan has at most, unless the user says how many.
MOVES_MAX: Final = 50
# Further Pods of one typical kind for which room is made.
KIND_PODS_MAX: Final = 100
# One Pod may cost this many moves, in each round.
_ROUNDS: Final = (1, 2, 4, 8, VICTIMS_MAX)

# Called with (done, total, description).
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Target:
    """A Pod that is to fit; if it does not exist yet, room is made for it."""

    pod: TrialPod
    description: str
    exists: bool


@dataclass(frozen=True, slots=True)
class RebalanceOptions:
    """What to plan, and how."""

    profile: ProfileConfig
    gates: FeatureGates
    moves_max: int = MOVES_MAX
    # Whether Pods of Jobs may be moved.
    jobs: bool = False


def silent(_done: int, _total: int, _what: str) -> None:
    """Report no progress."""


class RebalancePlanner:
    """Plans for one snapshot; a planner makes one plan."""

    def __init__(self, snapshot: Snapshot, options: RebalanceOptions, progress: Progress = silent) -> None:
        self.cluster = TrialCluster(snapshot, options.profile, options.gates)
        self._options = options
        self._progress = progress
        rules = MoveRules(snapshot, jobs=options.jobs)
        self._obstacles = {uid: rules.obstacle(placed.pod) for uid, placed in self.cluster.placer.placed.items()}
        self._free_resources = FreeResources(self.cluster)
        self._typical = typical_kinds(self.cluster, self._free_resources)
        self._finder = RelocationFinder(self.cluster, self._is_movable, self._free_resources)
        self._steps: list[Step] = []
        self._moved: set[str] = set()
        self._left = options.moves_max
        self._fitting: list[str] = []

    def _is_movable(self, placed: PlacedPod) -> bool:
        uid = placed.pod.metadata.uid or ""
        # A Pod is moved once: where it went is not known for certain.
        return self._obstacles.get(uid) == "" and uid not in self._moved

    # --- Plans. ---

    def plan_for(self, targets: Sequence[Target]) -> RebalancePlan:
        """Return moves that let the Pods fit."""
        before = self._headroom()
        waiting = self._make_room(targets)
        not_helped = tuple(item for target in waiting if (item := self._not_helped(target)) is not None)
        not_helped += tuple(NotHelped(label(pod), why) for pod, why in self.cluster.without_claims)
        return self._plan(targets, before, not_helped)

    def plan_headroom(self) -> RebalancePlan:
        """Return moves that let more Pods of the typical kinds fit, the largest kinds first."""
        before = self._headroom()
        kinds = sorted(
            zip(self._typical, before, strict=True),
            key=lambda item: (-sum(count for _, count in item[0].kind.demands), -item[0].pods, item[0].example.key),
        )
        targets: list[Target] = []
        for item, found in kinds:
            text = f"one more Pod like {item.example.key}"
            count = min(found.at_most, found.fit + KIND_PODS_MAX) if found.stranded else found.fit
            further = [Target(item.example.copy(f"room-{number}"), text, exists=False) for number in range(count)]
            self._make_room(further)
            targets += further
        # That there is no room for more Pods than exist is no problem to report.
        return self._plan(targets, before)

    def _make_room(self, targets: Sequence[Target]) -> list[Target]:
        """Place the Pods, with moves if they are needed; return those for which no moves were found."""
        waiting = [target for target in targets if not self._place_directly(target)]
        for victims_max in _ROUNDS:
            waiting = self._round(waiting, victims_max)
        return waiting

    def _plan(
        self, targets: Sequence[Target], before: tuple[KindHeadroom, ...], not_helped: tuple[NotHelped, ...] = ()
    ) -> RebalancePlan:
        # What room was made for is not there yet.
        for target in targets:
            if not target.exists and self.cluster.find(target.pod.uid) is not None:
                self.cluster.remove(target.pod.uid)
        return RebalancePlan(
            tuple(self._steps),
            tuple(self._fitting),
            not_helped,
            self._unmovable(targets),
            len(self._obstacles),
            self._options.moves_max,
            before,
            self._headroom(),
        )

    def _unmovable(self, targets: Sequence[Target]) -> tuple[tuple[str, int], ...]:
        """Return why Pods must stay, with how many; some only because those that need room have a lower priority."""
        highest = max((target.pod.priority for target in targets), default=SYSTEM_PRIORITY_MIN)
        texts: list[str] = []
        for uid, text in self._obstacles.items():
            placed = self.cluster.find(uid)
            is_higher = placed is not None and (placed.pod.spec.priority or 0) > highest
            texts.append(text or (HIGHER_PRIORITY if is_higher else ""))
        return tuple(sorted(Counter(text for text in texts if text).items()))

    def _headroom(self) -> tuple[KindHeadroom, ...]:
        return tuple(kind_headroom(self._free_resources, item) for item in self._typical)

    def _place_directly(self, target: Target) -> bool:
        placed = self.cluster.place(target.pod)
        if isinstance(placed, Unplaced):
            return False
        if target.exists:
            self._fitting.append(target.description)
        return True

    def _round(self, targets: Sequence[Target], victims_max: int) -> list[Target]:
        """Make room for Pods that need at most so many moves; return the others."""
        left: list[Target] = []
        # Kinds of Pods that did not fit since the last step: others of the same kind do not either.
        failed: set[tuple[PodKind, int]] = set()
        for index, target in enumerate(targets):
            self._progress(index + 1, len(targets), f"Pods, at most {victims_max} moves each")
            key = self._free_resources.kind_of(target.pod), target.pod.priority
            limit = min(victims_max, self._left)
            if limit < 1 or (key in failed and not target.pod.pod.spec.affinity):
                left.append(target)
                continue
            relocation = self._finder.find(target.pod, limit)
            if relocation is None:
                failed.add(key)
                left.append(target)
                continue
            self._carry_out(target, relocation)
            failed.clear()
        return left

    def _carry_out(self, target: Target, relocation: RelocationPlan) -> None:
        for prerequisite in relocation.prerequisites:
            text = f"{label(prerequisite.pod.pod)}, which moves next"
            moves = _moves(prerequisite.relocations, text)
            self._steps.append(Step("", "", "", text, prerequisite.node, moves, for_move=True))
        key, uid = target.pod.key, target.pod.uid
        named = (key.namespace, key.name, uid) if target.exists else ("", "", "")
        moves = _moves(relocation.relocations, target.description)
        self._steps.append(Step(*named, target.description, relocation.node, moves))
        carry_out(self.cluster, relocation)
        placed = self.cluster.place(target.pod, on=relocation.node)
        assert isinstance(placed, PlacedPod), f"{target.description} fitted on {relocation.node} a moment ago"
        done = relocation.all_relocations
        self._moved |= {item.before.pod.metadata.uid or "" for item in done}
        self._left -= len(done)

    def _not_helped(self, target: Target) -> NotHelped | None:
        found = self.cluster.place(target.pod)
        if not isinstance(found, Unplaced):
            # A move for another Pod made room for this one too.
            if target.exists:
                self._fitting.append(target.description)
            return None
        if self._left < 1:
            return NotHelped(target.description, f"the limit of {self._options.moves_max} moves is used up")
        return NotHelped(target.description, found.why)


def pending_targets(cluster: TrialCluster, wanted: Sequence[TrialPod] | None = None) -> list[Target]:
    """Return the pending Pods as targets, the highest priority first, then by age and name."""
    pods = cluster.pending if wanted is None else wanted
    ordered = sorted(
        pods,
        key=lambda pod: (-pod.priority, str(pod.pod.metadata.creation_timestamp or ""), pod.key),
    )
    return [Target(pod, str(pod.key), exists=True) for pod in ordered]


def shape_targets(pod: TrialPod, count: int) -> list[Target]:
    """Return so many Pods of a shape as targets."""
    text = f"{pod.key.name} ({requests_text(pod)})"
    return [
        Target(pod.copy(str(number)), f"{text} {number} of {count}", exists=False) for number in range(1, count + 1)
    ]


def _moves(relocations: Sequence[Relocation], why: str) -> tuple[Move, ...]:
    return tuple(_move(item.before, item.after.pod.spec.node_name or "", why) for item in relocations)


def _move(placed: PlacedPod, to_node: str, why: str) -> Move:
    metadata = placed.pod.metadata
    owner = controller_of(placed.pod)
    assert owner is not None, "only Pods of controllers are moved"
    return Move(
        metadata.namespace or "",
        metadata.name or "",
        metadata.uid or "",
        owner.uid,
        f"{owner.kind} {owner.name}",
        placed.pod.spec.node_name or "",
        to_node,
        f"makes room for {why}",
        devices_of(placed),
    )
