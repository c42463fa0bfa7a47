"""The group cycle: places the Pods of a group one after the other, all or nothing.

Each Pod that gets a place is assumed in the cache and reserved, so that the next one sees it. Nothing is written, and
nobody else runs meanwhile; `undo` leaves everything as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from dray.api.document import NamespacedName
from dray.api.pod_groups import priority_of
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.framework.cycle_state import CycleState, GroupState
from dray.framework.plugins import RESERVE, SCORE_MAX, PlacedMember
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.framework.status import SUCCESS, Code, Status, error, unschedulable
from dray.scheduler.cache import Cache
from dray.scheduler.cycle import Cycle, Placement
from dray.scheduler.diagnosis import Diagnosis
from dray.scheduler.filter_runner import AttemptError
from dray.scheduler.pod_groups import PodGroups
from dray.scheduler.profile import Profile
from dray.scheduler.queued_pod import QueuedPod

_log = logging.getLogger(__name__)

UNSCHEDULABLE: Final = "pod group is unschedulable"
NO_PLACEMENTS: Final = "no feasible placements found"
_DEFAULT_POLICY: Final = "PreemptLowerPriority"


class Member:
    """A Pod in one group cycle: its place, or why it has none."""

    __slots__ = ("assumed", "diagnosis", "node_name", "queued", "state")

    def __init__(self, queued: QueuedPod) -> None:
        self.queued = queued
        self.state = CycleState(queued.info)
        # With a place: the node, and the Pod as assumed there.
        self.node_name = ""
        self.assumed: PodInfo | None = None
        # Without: None if the cycle ended before.
        self.diagnosis: Diagnosis | None = None


class GroupOutcome(msgspec.Struct):
    """The end of a group cycle; on success the Pods that have a place are still assumed and reserved."""

    status: Status
    members: list[Member]
    # Pods of the group that had a node before.
    scheduled: int = 0

    @property
    def placed(self) -> list[Member]:
        """Return the members that have a place."""
        return [member for member in self.members if member.assumed is not None]

    def for_post_filter(self) -> list[PlacedMember]:
        """Return the members as plugins see them."""
        return [
            PlacedMember(member.state, None if member.diagnosis is None else member.diagnosis.statuses)
            for member in self.members
        ]


def check_members(group: PodGroup, members: Sequence[PodInfo]) -> str:
    """Return why Pods, queued and scheduled, cannot be scheduled as one group; empty if they can."""
    first = members[0].pod.spec
    policy = first.preemption_policy or _DEFAULT_POLICY
    for info in members:
        spec = info.pod.spec
        if spec.scheduler_name != first.scheduler_name:
            names = f'"{spec.scheduler_name}" and "{first.scheduler_name}"'
            return f"all pods in a single pod group should have the same .spec.schedulerName set, got: {names}"
        if info.priority != priority_of(group):
            found = f"{info.priority} and {priority_of(group)}"
            return (
                f"all pods in a single pod group should have the same priority as the pod group's priority, got {found}"
            )
        if (own := spec.preemption_policy or _DEFAULT_POLICY) != policy:
            return f"all pods in a single pod group should have the same preemption policy, got {own} and {policy}"
    return ""


def topology_key(group: PodGroup) -> str:
    """Return the node label that all Pods of the group must have in common; empty if there is none."""
    constraints = group.spec.scheduling_constraints
    return constraints.topology[0].key if constraints is not None and constraints.topology else ""


def generate_placements(snapshot: Snapshot, topology: str, scheduled: Iterable[PodInfo]) -> dict[str, frozenset[str]]:
    """Return the nodes of each domain by its label value, in order; only that of Pods which are scheduled already.

    Raises `AttemptError` if those are in several domains, or in none.
    """
    domains: dict[str, set[str]] = {}
    for node in snapshot:
        if topology in node.labels:
            domains.setdefault(node.labels[topology], set()).add(node.name)
    nodes = [snapshot.get(info.pod.spec.node_name or "") for info in scheduled]
    used = {"" if node is None else node.labels.get(topology, "") for node in nodes}
    if used:
        if len(used) > 1 or used == {""}:
            raise AttemptError(f"scheduled pods of the pod group are not in one domain of {topology}")
        domains = {value: names for value, names in domains.items() if value in used}
    return {value: frozenset(names) for value, names in sorted(domains.items())}


def best_placement(feasible: Sequence[tuple[int, int, frozenset[str]]]) -> frozenset[str]:
    """Return the nodes of the best domain, the first of several.

    Of each domain are given how many Pods of the group it would have, the score of plugins, and its nodes. The number
    counts relative to the highest one.
    """
    most = max(count for count, _, _ in feasible)
    return max(feasible, key=lambda item: item[0] * SCORE_MAX // most + item[1])[2]


# Called for each domain that is tried, with (profile, None) before and (profile, status) after it.
ObservePlacement = Callable[[str, Status | None], None]


def _ignore(_profile: str, _status: Status | None) -> None:
    pass


class GroupCycle:
    """Runs group cycles on the scheduler's snapshot."""

    def __init__(
        self,
        cycle: Cycle,
        cache: Cache,
        snapshot: Snapshot,
        pod_groups: PodGroups,
        explain: Callable[[Profile, CycleState, Diagnosis], Diagnosis],
        observe_placement: ObservePlacement | None = None,
    ) -> None:
        self._cycle = cycle
        self._cache = cache
        self._snapshot = snapshot
        self._pod_groups = pod_groups
        self._explain = explain
        # None if constraints on the topology are ignored.
        self._topology = observe_placement is not None
        self._observe_placement = observe_placement or _ignore

    def run(self, profile: Profile, group: PodGroup, key: NamespacedName, queued: Sequence[QueuedPod]) -> GroupOutcome:
        """Place the Pods; unless that succeeds, nothing is reserved afterwards."""
        self._cache.update_snapshot(self._snapshot)
        if self._topology and (topology := topology_key(group)):
            return self._run_in_domains(profile, group, key, queued, topology)
        return self._run(profile, GroupState(group), key, queued)

    def run_on(
        self,
        profile: Profile,
        group: PodGroup,
        key: NamespacedName,
        queued: Sequence[QueuedPod],
        nodes: Mapping[str, str],
    ) -> GroupOutcome:
        """Place each Pod on a given node, by uid; unless that succeeds for all, nothing is reserved afterwards.

        The Pods may be a part of the group, which as a whole is known to have a placement.
        """
        self._cache.update_snapshot(self._snapshot)
        return self._run(profile, GroupState(group, fixed=nodes), key, queued)

    def _run_in_domains(
        self, profile: Profile, group: PodGroup, key: NamespacedName, queued: Sequence[QueuedPod], topology: str
    ) -> GroupOutcome:
        """Try the group in each domain of a topology, and place it in the one with the best score."""
        scheduled = self._pod_groups.scheduled(key)
        try:
            placements = generate_placements(self._snapshot, topology, scheduled.values())
        except AttemptError as failure:
            return GroupOutcome(error(str(failure)), [Member(item) for item in queued], len(scheduled))
        if not placements:
            return GroupOutcome(unschedulable(NO_PLACEMENTS), [Member(item) for item in queued], len(scheduled))
        feasible: list[tuple[int, int, frozenset[str]]] = []
        first: GroupOutcome | None = None
        for nodes in placements.values():
            self._observe_placement(profile.scheduler_name, None)
            outcome = self._run(profile, GroupState(group, nodes), key, queued)
            self._observe_placement(profile.scheduler_name, outcome.status)
            if outcome.status.is_success:
                count = len(scheduled) + len(outcome.placed)
                feasible.append((count, self._placement_score(profile, outcome, nodes), nodes))
                self.undo(profile, outcome)
            elif not outcome.status.is_rejected:
                return outcome
            first = first or outcome
        assert first is not None
        if feasible:
            return self._run(profile, GroupState(group, best_placement(feasible)), key, queued)
        text = f"0/{len(placements)} placements are available, first placement status: {first.status.message}"
        first.status = unschedulable(text)
        return first

    def _placement_score(self, profile: Profile, outcome: GroupOutcome, names: Iterable[str]) -> int:
        """Return the weighted scores that plugins give to a domain in which the group is placed."""
        nodes = [node for name in sorted(names) if (node := self._snapshot.get(name)) is not None]
        pods = [member.queued.info for member in outcome.placed]
        return sum(weight * plugin.score_placement(pods, nodes) for plugin, weight in profile.placement_scorers)

    def _run(
        self, profile: Profile, shared: GroupState, key: NamespacedName, queued: Sequence[QueuedPod]
    ) -> GroupOutcome:
        outcome = GroupOutcome(SUCCESS, [Member(item) for item in queued], len(self._pod_groups.scheduled(key)))
        try:
            outcome.status = self._place_all(profile, shared, key, outcome.members)
        except AttemptError as failure:
            outcome.status = error(str(failure))
        except Exception as failure:  # noqa: BLE001 - the failure of one group must not stop the scheduler
            _log.exception("group cycle failed")
            outcome.status = error(f"{type(failure).__name__}: {failure}")
        if not outcome.status.is_success:
            self.undo(profile, outcome)
        return outcome

    def undo(self, profile: Profile, outcome: GroupOutcome) -> None:
        """Undo the reservations in reverse order."""
        for member in reversed(outcome.members):
            if member.assumed is not None:
                self._release(profile, member)
        self._cache.update_snapshot(self._snapshot)

    def _place_all(
        self, profile: Profile, shared: GroupState, key: NamespacedName, members: Sequence[Member]
    ) -> Status:
        if shared.fixed:
            return self._place_fixed(profile, shared, members)
        group = shared.group
        status = self._feasible(profile, group, key, len(members))
        for number, member in enumerate(members, 1):
            if status.code is not Code.WAIT and not status.is_success:
                return status
            member.state.group = shared
            self._place(profile, member)
            if member.assumed is not None:
                shared.reserved.add(member.queued.uid)
            status = self._feasible(profile, group, key, len(members) - number)
        if status.code is Code.WAIT:
            return unschedulable(*status.reasons)
        if status.is_success and not shared.reserved:
            return unschedulable("no pod of the group can be placed")
        return status

    def _place_fixed(self, profile: Profile, shared: GroupState, members: Sequence[Member]) -> Status:
        """Place all Pods on their nodes, until one does not fit."""
        for member in members:
            member.state.group = shared
            self._place(profile, member)
            if member.assumed is None:
                return unschedulable(UNSCHEDULABLE)
            shared.reserved.add(member.queued.uid)
        return SUCCESS

    def _feasible(self, profile: Profile, group: PodGroup, key: NamespacedName, remaining: int) -> Status:
        scheduled = len(self._pod_groups.scheduled(key))
        for plugin in profile.placement_feasible:
            status = plugin.placement_feasible(group, scheduled, remaining)
            if not status.is_success:
                return status
        return SUCCESS

    def _place(self, profile: Profile, member: Member) -> None:
        found = self._cycle.place(profile, member.state)
        if not isinstance(found, Placement):
            member.diagnosis = self._explain(profile, member.state, found)
            return
        member.node_name = found.node_name
        member.assumed = member.state.pod_on(found.node_name)
        self._cache.assume(member.assumed, found.node_name)
        status = self._reserve(profile, member)
        if not status.is_success:
            self._release(profile, member)
            if not status.is_rejected:
                raise AttemptError(status.message)
            member.diagnosis = Diagnosis(1, {found.node_name: status}, plugins=frozenset((status.plugin,)))
        self._cache.update_snapshot(self._snapshot)

    def _reserve(self, profile: Profile, member: Member) -> Status:
        assert member.assumed is not None
        for plugin in profile.at(RESERVE):
            status = plugin.reserve(member.state, member.assumed.pod, member.node_name)
            if not status.is_success:
                return status.with_plugin(plugin.name)
        return SUCCESS

    def _release(self, profile: Profile, member: Member) -> None:
        assert member.assumed is not None
        for plugin in reversed(profile.at(RESERVE)):
            plugin.unreserve(member.state, member.assumed.pod, member.node_name)
        self._cache.forget(member.queued.uid)
        if member.state.group is not None:
            member.state.group.reserved.discard(member.queued.uid)
        member.assumed = None
