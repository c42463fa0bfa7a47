"""Preemption: evicts Pods of lower priority for a Pod that fits nowhere."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dray.api.types.core_v1 import Pod
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.objects import key_of
from dray.client.resources import PODS
from dray.framework.cycle_state import CycleState
from dray.framework.events import ASSIGNED_POD, Action, ClusterEvent, EventRegistration, Hint
from dray.framework.node_info import NodeInfo
from dray.framework.node_statuses import NodeStatuses, distinct_statuses
from dray.framework.plugins import PlacedMember, PostFilterResult
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.framework.status import SUCCESS, Code, Status, error, unresolvable, unschedulable
from dray.scheduler.cluster_events import UNFINISHED
from dray.scheduler.equivalence_class import has_known_filters
from dray.scheduler.filter_runner import FilterRunner, failure_text, runner_of
from dray.scheduler.handle import Handle
from dray.scheduler.preemption.budget_cache import BudgetCache
from dray.scheduler.preemption.candidates import (
    NOTHING_KNOWN,
    Search,
    SearchLimits,
    choose,
    find_candidates,
    rejection_message,
)
from dray.scheduler.preemption.dry_run import Candidate, DryRun
from dray.scheduler.preemption.dry_run_cache import CachedDryRun, DryRunCache, DryRunOn
from dray.scheduler.preemption.executor import Executor, is_preempted, pod_preemptor
from dray.scheduler.preemption.group_preemption import NEVER, GroupPreemption
from dray.scheduler.preemption.metrics import POD, PreemptionMetrics
from dray.scheduler.preemption.units import group_units
from dray.scheduler.profile import Profile

NAME: Final = "DefaultPreemption"
TERMINATING: Final = "not eligible due to a terminating pod on the nominated node."
WAITING: Final = "waiting for the preemption for this pod to be finished"
GROUP_WAITING: Final = "waiting for the preemption for this pod group to be finished"
_WAITING: Final = unresolvable(WAITING).with_plugin(NAME)
_GROUP_WAITING: Final = unresolvable(GROUP_WAITING).with_plugin(NAME)
_FIELDS: Final = ("minCandidateNodesPercentage", "minCandidateNodesAbsolute")
_PERCENTAGE_MAX: Final = 100


class DefaultPreemption:
    """Implements PostFilter, and PreEnqueue while the victims are evicted."""

    name = NAME

    def __init__(self, given: Mapping[str, Any], handle: Handle) -> None:
        self._limits = read_arguments(given)
        self._handle = handle
        shared = handle.shared.get(NAME)
        if shared is None:
            metrics = PreemptionMetrics(handle.metrics)
            shared = handle.shared[NAME] = metrics, Executor(handle, metrics), BudgetCache(handle.informers)
        self._metrics: PreemptionMetrics = shared[0]
        self._executor: Executor = shared[1]
        self._budgets: BudgetCache = shared[2]
        least_nodes = self._limits.min_candidate_nodes_absolute
        self._groups = GroupPreemption(handle, self._metrics, self._executor, self._budgets, least_nodes)
        self._pods = handle.informers.informer(PODS, UNFINISHED).lister
        self._cache = DryRunCache(handle.snapshot, handle.nominations)
        # Index of the node where the next search starts: the same cluster leads to the same victims.
        self._next_node = 0

    def pre_enqueue(self, pod: Pod) -> Status:
        """Keep a preemptor out of the queue until its victims are evicted."""
        if not self._executor.is_waiting(pod.metadata.uid or ""):
            return SUCCESS
        return _WAITING if pod.spec.scheduling_group is None else _GROUP_WAITING

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Return the deletion of Pods; the plugins that rejected the preemptor decide whether it helps."""
        return (EventRegistration(ClusterEvent(ASSIGNED_POD, Action.DELETE), _skip),)

    async def post_filter(
        self, state: CycleState, pod: Pod, statuses: Mapping[str, Status]
    ) -> tuple[PostFilterResult | None, Status]:
        """Nominate the node where the least important Pods have to go, and start their eviction."""
        self._metrics.attempts.inc()
        started = self._handle.clock.monotonic()
        result, status, violations = self._preempt(state, pod, statuses)
        seconds = self._handle.clock.monotonic() - started
        self._metrics.evaluated(POD, "success" if status.is_success else "error", seconds, violations)
        if status.reasons:
            status = Status(status.code, (f"preemption: {status.message}",))
        return result, status

    async def group_post_filter(
        self, group: PodGroup, members: Sequence[PlacedMember], _scheduled: int
    ) -> tuple[Mapping[str, str] | None, Status]:
        """Nominate nodes where the group fits without Pods of lower priority, and start their eviction."""
        return await self._groups.preempt(group, members)

    def _preempt(
        self, state: CycleState, pod: Pod, statuses: Mapping[str, Status]
    ) -> tuple[PostFilterResult | None, Status, int]:
        current = self._pods.get_key(key_of(pod))
        if current is None or current.metadata.uid != pod.metadata.uid:
            return None, error(f'pods "{pod.metadata.name}" not found'), 0
        obstacle = self._obstacle(current, statuses)
        if obstacle:
            return None, unschedulable(obstacle), 0
        runner = runner_of(self._profile_of(pod), state, self._handle.nominations)
        monotonic = has_known_filters(self._profile_of(pod), state)
        groups, snapshot = self._handle.pod_groups, self._handle.snapshot
        dry_run = DryRun(
            runner,
            state,
            self._budgets.all(),
            monotonic=monotonic,
            groups=groups if groups else None,
            snapshot=snapshot,
        )
        candidate, search = self._find(dry_run, state, statuses)
        if candidate is None:
            return *self._no_candidate(search), 0
        failure = self._record(dry_run, runner, candidate, pod)
        if failure is not None:
            return None, failure, 0
        self._executor.start(pod_preemptor(current, candidate.node_name), candidate.victims)
        self._metrics.disrupted(POD, group_units(candidate.victims, groups) if groups else 0)
        count = len(candidate.victims)
        text = f"found a potential placement for pod on node {candidate.node_name}, preempting {count} victims"
        return PostFilterResult(candidate.node_name), Status(Code.SUCCESS, (text,)), candidate.violations

    def _obstacle(self, pod: Pod, statuses: Mapping[str, Status]) -> str:
        """Return why the Pod must not preempt others now."""
        if pod.spec.preemption_policy == "Never":
            return NEVER
        node_name = self._handle.nominations.node_of(pod.metadata.uid or "")
        node = self._handle.snapshot.get(node_name)
        if node is None or _code_of(statuses, node_name) is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
            return ""
        priority = pod.spec.priority or 0
        if any(other.priority < priority and is_preempted(other.pod) for other in node.pods.values()):
            return TERMINATING
        for plugin in self._profile_of(pod).nomination_extensions:
            status = plugin.check_preemption(pod, node)
            if not status.is_success:
                return status.message
        return ""

    def _record(self, dry_run: DryRun, runner: FilterRunner, candidate: Candidate, pod: Pod) -> Status | None:
        """Let plugins keep what the Pod needs on its node; return a failure."""
        extensions = self._profile_of(pod).nomination_extensions
        node = self._handle.snapshot.get(candidate.node_name)
        if not extensions or node is None:
            return None
        copy, without = dry_run.without(candidate.victims, node)
        node = runner.add_nominated(copy, without)
        for plugin in extensions:
            if plugin.name not in copy.skip_filter:
                status = plugin.pod_nominated(copy, pod, node)
                if not status.is_success:
                    return status
        return None

    def _profile_of(self, pod: Pod) -> Profile:
        return self._handle.profiles[pod.spec.scheduler_name or ""]

    def _find(
        self, dry_run: DryRun, state: CycleState, statuses: Mapping[str, Status]
    ) -> tuple[Candidate | None, Search]:
        """Return the best candidate; one whose cached result may be outdated is confirmed first."""
        nodes = _candidates(self._handle.snapshot, statuses)
        profile = self._profile_of(state.pod_info.pod)
        # The Pods of a group that is evicted as a whole are on several nodes, and a result is cached by node.
        cached = None
        if not self._handle.pod_groups.any_disrupted_as_a_whole:
            # Of the Pods of a group its own priority counts, which is theirs again when there are no groups.
            versions = self._budgets.version, bool(self._handle.pod_groups)
            cached = self._cache.cached(profile, state, versions, dry_run.on)
        if cached is None:
            search = self._search(nodes, state, dry_run.on, NOTHING_KNOWN)
        else:
            search = self._search(nodes, state, cached.on, cached.known)
        while search.candidates:
            candidate = choose(search.candidates)
            if cached is None or self._is_confirmed(candidate, cached, dry_run):
                return self._chosen(candidate), search
            search.candidates.remove(candidate)
        if cached is not None:
            self._cache.clear()
            search = self._search(nodes, state, dry_run.on, NOTHING_KNOWN)
            if search.candidates:
                return self._chosen(choose(search.candidates)), search
        return None, search

    def _is_confirmed(self, candidate: Candidate, cached: CachedDryRun, dry_run: DryRun) -> bool:
        """Return whether a dry run has the same victims now."""
        node = self._handle.snapshot.get(candidate.node_name)
        if node is None:
            return False
        # The priorities of groups, which are those of their Pods, are no part of what a result is known to depend on.
        if not self._handle.pod_groups and cached.is_current(candidate):
            return True
        found = dry_run.on(node)
        return isinstance(found, Candidate) and _uids(found.victims) == _uids(candidate.victims)

    def _chosen(self, candidate: Candidate) -> Candidate:
        """Let the next search start after the chosen node, so that equivalent preemptors spread over nodes."""
        self._next_node = (self._handle.snapshot.index_of(candidate.node_name) or 0) + 1
        return candidate

    def _search(
        self, nodes: Sequence[NodeInfo], state: CycleState, dry_run: DryRunOn, known: Mapping[str, Candidate | Status]
    ) -> Search:
        start, wanted = self._start(nodes), self._limits.wanted(len(nodes))
        if self._handle.pod_groups:
            # Of the Pods of a group its own priority counts.
            return find_candidates(nodes, start, wanted, dry_run, known=known)
        return find_candidates(nodes, start, wanted, dry_run, known=known, priority=state.pod_info.priority)

    def _start(self, nodes: Sequence[NodeInfo]) -> int:
        """Return the position of the node where the search starts; they are in the order of the snapshot."""
        snapshot = self._handle.snapshot
        if nodes is snapshot.nodes:
            return self._next_node
        return bisect_left(nodes, self._next_node, key=lambda node: snapshot.index_of(node.name) or 0)

    def _no_candidate(self, search: Search) -> tuple[PostFilterResult | None, Status]:
        failed = [status for status in search.statuses.values() if not status.is_rejected]
        if failed:
            texts = dict.fromkeys(failure_text(status) if status.plugin else status.message for status in failed)
            return None, error(", ".join(texts) if len(texts) == 1 else f"[{', '.join(texts)}]")
        text = rejection_message(len(self._handle.snapshot), search.statuses, search.without_victims)
        return PostFilterResult(""), unschedulable(text)


def _uids(pods: Sequence[PodInfo]) -> list[str]:
    return [pod.uid for pod in pods]


def _candidates(snapshot: Snapshot, statuses: Mapping[str, Status]) -> Sequence[NodeInfo]:
    """Return the nodes where the eviction of Pods may help, in order."""
    helped = [status for status in distinct_statuses(statuses) if status.code is Code.UNSCHEDULABLE]
    if isinstance(statuses, NodeStatuses):
        return statuses.nodes_with(helped)
    keys = {id(status) for status in helped}
    return [node for node in snapshot.nodes if id(statuses.get(node.name)) in keys] if keys else ()


def _code_of(statuses: Mapping[str, Status], node_name: str) -> Code:
    """Return the code of a node; one that was not filtered cannot be helped."""
    status = statuses.get(node_name)
    return Code.UNSCHEDULABLE_AND_UNRESOLVABLE if status is None else status.code


def _skip(_pod: Pod, _old: Pod | None, _new: Pod | None) -> Hint:
    return Hint.SKIP


def read_arguments(given: Mapping[str, Any]) -> SearchLimits:
    """Read `pluginConfig` args; raises `ValueError` naming what is wrong."""
    unknown = sorted(given.keys() - set(_FIELDS))
    if unknown:
        raise ValueError(f"{unknown[0]}: not supported")
    defaults = SearchLimits()
    percentage = _number(given, _FIELDS[0], defaults.min_candidate_nodes_percentage)
    absolute = _number(given, _FIELDS[1], defaults.min_candidate_nodes_absolute)
    problems = []
    if not 0 <= percentage <= _PERCENTAGE_MAX:
        problems.append(f"{_FIELDS[0]}: Invalid value: {percentage}: not in valid range [0, 100]")
    if absolute < 0:
        problems.append(f"{_FIELDS[1]}: Invalid value: {absolute}: not in valid range [0, inf)")
    if not percentage and not absolute:
        pairs = (_FIELDS, _FIELDS[::-1])
        problems += [f"{name}: Invalid value: 0: cannot be zero at the same time as {other}" for name, other in pairs]
    if problems:
        raise ValueError(*problems)
    return SearchLimits(percentage, absolute)


def _number(given: Mapping[str, Any], name: str, default: int) -> int:
    value = given.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: Invalid value: {value!r}: must be an integer")
    return value
