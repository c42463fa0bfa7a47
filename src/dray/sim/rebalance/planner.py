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
from dray.api.pod_groups import group_key_of, min_count
from dray.scheduler.config import ProfileConfig
from dray.sim.explain.pod_group import lookup_pod_group
from dray.sim.free_resources import FreeResources
from dray.sim.headroom import KindHeadroom, kind_headroom, requests_text, typical_kinds
from dray.sim.movable_pods import HIGHER_PRIORITY, SYSTEM_PRIORITY_MIN, MoveRules, controller_of, label
from dray.sim.placer import PlacedPod
from dray.sim.rebalance.moves import Move, NotHelped, RebalancePlan, Step
from dray.sim.rebalance.relocations import VICTIMS_MAX, Relocation, RelocationFinder, RelocationPlan, carry_out, undo
from dray.sim.snapshot import Snapshot
from dray.sim.trial_cluster import TrialCluster, TrialPod, Unplaced, devices_of

# Moves that a plan has at most, unless the user says how many.
MOVES_MAX: Final = 50
# Further Pods of one typical kind for which room is made.
KIND_PODS_MAX: Final = 100
# Nodes that are held for Pods that do not exist yet; on more of them there is room anyway.
RESERVED_NODES_MAX: Final = 64
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
class TargetGroup:
    """Targets that fit together or not at all: the pending Pods of a gang, or one Pod."""

    targets: tuple[Target, ...]
    # So many of them must fit.
    needed: int = 1

    @property
    def is_gang(self) -> bool:
        """Whether the scheduler binds no Pod before there is room for others too."""
        return self.needed > 1


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
        obstacles = {target.pod.uid: self._obstacle(target) for target in targets}
        waiting = self._make_room([target for target in targets if not obstacles[target.pod.uid]])
        not_helped = tuple(
            NotHelped(target.description, why) for target in targets if (why := obstacles[target.pod.uid])
        )
        not_helped += tuple(item for group in waiting for item in self._not_helped(group))
        not_helped += tuple(NotHelped(label(pod), why) for pod, why in self.cluster.blocked)
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

    def _make_room(self, targets: Sequence[Target]) -> list[TargetGroup]:
        """Place the Pods, with moves if they are needed; return those for which no moves were found."""
        waiting = [left for group in self._groups(targets) if (left := self._place_directly(group)) is not None]
        for victims_max in _ROUNDS:
            waiting = self._round(waiting, victims_max)
        return waiting

    def _obstacle(self, target: Target) -> str:
        """Return why room would not let an existing Pod run; empty if it would."""
        if not target.exists:
            return ""
        pod = target.pod.pod
        key = group_key_of(pod)
        group = None if key is None else lookup_pod_group(self.cluster.snapshot, key)
        has_constraints = group is not None and group.group.spec.scheduling_constraints is not None
        return "its PodGroup has scheduling constraints, for which no moves are planned" if has_constraints else ""

    def _groups(self, targets: Sequence[Target]) -> list[TargetGroup]:
        """Return the targets with the Pods of each gang together, in the order of their first ones."""
        together: dict[object, list[Target]] = {}
        for target in targets:
            key = group_key_of(target.pod.pod) if target.exists else None
            together.setdefault(key or target.pod.uid, []).append(target)
        return [TargetGroup(tuple(found), self._needed(found)) for found in together.values()]

    def _needed(self, targets: Sequence[Target]) -> int:
        """Return how many of the pending Pods of one group the scheduler must be able to place."""
        key = group_key_of(targets[0].pod.pod) if targets[0].exists else None
        if key is None:
            return 1
        group = lookup_pod_group(self.cluster.snapshot, key)
        if group is None:
            return len(targets)
        running = sum(1 for placed in self.cluster.placer.placed.values() if group_key_of(placed.pod) == key)
        return max(min(min_count(group.group) - running, len(targets)), 1)

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

    def _place_directly(self, group: TargetGroup) -> TargetGroup | None:
        """Place the Pods without moves; return those that are left, all of them if too few fit."""
        placed = [target for target in group.targets if not isinstance(self.cluster.place(target.pod), Unplaced)]
        if len(placed) < group.needed:
            for target in placed:
                self.cluster.remove(target.pod.uid)
            return group
        for target in placed:
            if target.exists:
                self._fitting.append(target.description)
            else:
                self._reserve(target)
        left = tuple(target for target in group.targets if target not in placed)
        return TargetGroup(left) if left else None

    def _reserve(self, target: Target) -> None:
        """Keep replacements from the node of a Pod that is not there yet."""
        placed = self.cluster.find(target.pod.uid)
        assert placed is not None, f"{target.description} was placed"
        self._finder.reserved[placed.pod.spec.node_name or ""] = None

    def _round(self, groups: Sequence[TargetGroup], victims_max: int) -> list[TargetGroup]:
        """Make room for Pods that need at most so many moves; return the others."""
        left: list[TargetGroup] = []
        # Kinds of Pods that did not fit since the last step: others of the same kind do not either.
        failed: set[tuple[PodKind, int]] = set()
        for index, group in enumerate(groups):
            self._progress(index + 1, len(groups), f"Pods, at most {victims_max} moves each")
            first = group.targets[0].pod
            key = self._free_resources.kind_of(first), first.priority
            is_hopeless = key in failed and not first.pod.spec.affinity and not group.is_gang
            if self._left < 1 or is_hopeless or self._holds_too_many(group):
                left.append(group)
                continue
            rest = self._make_group_room(group, victims_max)
            if rest is not group:
                failed.clear()
            elif not group.is_gang:
                failed.add(key)
            if rest is not None:
                left.append(rest)
        return left

    def _holds_too_many(self, group: TargetGroup) -> bool:
        return not group.targets[0].exists and len(self._finder.reserved) > RESERVED_NODES_MAX

    def _make_group_room(self, group: TargetGroup, victims_max: int) -> TargetGroup | None:
        """Make room for the Pods of a group; return those that are left.

        If too few fit, these are all, and nothing has changed.
        """
        steps, moved = len(self._steps), set(self._moved)
        reserved = dict(self._finder.reserved)
        done: list[tuple[Target, RelocationPlan | None]] = []
        for target in group.targets:
            # The scheduler places the Pods of a gang when there is room for all of them; until then, room is kept.
            if group.is_gang and not isinstance(self.cluster.place(target.pod), Unplaced):
                done.append((target, None))
                self._steps.append(self._step(target, self._node_of(target), ()))
            elif (limit := min(victims_max, self._left)) >= 1:
                relocation = self._finder.find(target.pod, limit)
                if relocation is None:
                    continue
                done.append((target, relocation))
                self._carry_out(target, relocation)
            else:
                continue
            if group.is_gang or not target.exists:
                self._reserve(target)
        if group.targets[0].exists:
            self._finder.reserved.clear()
            self._finder.reserved.update(reserved)
        is_moved = any(relocation is not None for _, relocation in done)
        works = len(done) >= group.needed and (not group.is_gang or self._fit_in_order([target for target, _ in done]))
        if not works or not is_moved:
            del self._steps[steps:]
        if not works:
            self._undo(done, moved)
            return group
        if not is_moved:
            # A move for another Pod made room.
            self._fitting += [target.description for target, _ in done]
        placed = [target for target, _ in done]
        left = tuple(target for target in group.targets if target not in placed)
        return TargetGroup(left) if left else None

    def _fit_in_order(self, targets: Sequence[Target]) -> bool:
        """Return whether the scheduler finds the room when it places the Pods of a gang one after the other."""
        before = [self.cluster.remove(target.pod.uid) for target in targets]
        placed = [target for target in targets if not isinstance(self.cluster.place(target.pod), Unplaced)]
        if len(placed) == len(targets):
            return True
        for target in placed:
            self.cluster.remove(target.pod.uid)
        for found in before:
            self.cluster.restore(found)
        return False

    def _undo(self, done: Sequence[tuple[Target, RelocationPlan | None]], moved: set[str]) -> None:
        for target, relocation in reversed(done):
            self.cluster.remove(target.pod.uid)
            if relocation is not None:
                undo(self.cluster, relocation.all_relocations)
                self._left += len(relocation.all_relocations)
        self._moved = moved

    def _node_of(self, target: Target) -> str:
        placed = self.cluster.find(target.pod.uid)
        return "" if placed is None else placed.pod.spec.node_name or ""

    def _step(self, target: Target, node: str, moves: tuple[Move, ...]) -> Step:
        key, uid = target.pod.key, target.pod.uid
        named = (key.namespace, key.name, uid) if target.exists else ("", "", "")
        return Step(*named, target.description, node, moves, also_held=tuple(self._finder.reserved))

    def _carry_out(self, target: Target, relocation: RelocationPlan) -> None:
        held = tuple(self._finder.reserved)
        for prerequisite in relocation.prerequisites:
            text = f"{label(prerequisite.pod.pod)}, which moves next"
            moves = _moves(prerequisite.relocations, text)
            self._steps.append(Step("", "", "", text, prerequisite.node, moves, for_move=True, also_held=held))
        moves = _moves(relocation.relocations, target.description)
        self._steps.append(self._step(target, relocation.node, moves))
        carry_out(self.cluster, relocation)
        placed = self.cluster.place(target.pod, on=relocation.node)
        assert isinstance(placed, PlacedPod), f"{target.description} fitted on {relocation.node} a moment ago"
        done = relocation.all_relocations
        self._moved |= {item.before.pod.metadata.uid or "" for item in done}
        self._left -= len(done)

    def _not_helped(self, group: TargetGroup) -> list[NotHelped]:
        """Return the Pods of a group that are left, with the reason; others fit now."""
        rest = self._place_directly(group)
        if rest is None:
            # A move for another Pod made room for this one too.
            return []
        found: list[NotHelped] = []
        for target in rest.targets:
            placed = self.cluster.place(target.pod)
            if not isinstance(placed, Unplaced):
                self.cluster.remove(target.pod.uid)
                # Some Pods of the gang would fit.
                why = f"it fits, but not together with the others of its PodGroup, of which {rest.needed} must"
            elif self._left < 1:
                why = f"the limit of {_number(self._options.moves_max, 'move')} is used up"
            elif self._holds_too_many(rest):
                why = f"more than {RESERVED_NODES_MAX} nodes would have to be held"
            elif rest.is_gang:
                why = (
                    f"no moves make room for the {rest.needed} Pods that its PodGroup needs: {self.cluster.why(placed)}"
                )
            else:
                why = self.cluster.why(placed)
            found.append(NotHelped(target.description, why))
        return found


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


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
