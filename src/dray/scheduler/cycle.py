"""The scheduling cycle: finds the best node for a Pod on a snapshot. Deterministic.

How it works. PreFilter says which nodes are in question at all. Then there are three searches, tried in this order:

* *nominated*: the node on which preemption has made room, alone;
* *kept*: all nodes, with the results that are kept from Pods on which most filters decide alike (`FilterResultCache`).
  These run only where nothing is known, and the others, for example on the spread of Pods, where these accept;
* *plain*: the filters on one part of the nodes after the other.

All end when enough nodes are feasible, which in large clusters is long before the last node, and the next search starts
where this one ended. The feasible nodes are scored. Kept and plain find the same, as a property test shows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Final, TypeAlias

import msgspec

from dray.framework.cycle_state import CycleState
from dray.framework.evaluation import (
    SCORED_NODES_MAX,
    Evaluation,
    NodeScore,
    group_rejections,
)
from dray.framework.node_info import NodeInfo
from dray.framework.node_statuses import StatusCount, count_statuses, distinct_statuses
from dray.framework.plugins import FILTER, PRE_FILTER, PRE_SCORE, SCORE_MAX
from dray.framework.snapshot import NodesAt, Snapshot
from dray.framework.status import SKIP, SUCCESS, Code, Status, unresolvable
from dray.scheduler.diagnosis import Diagnosis
from dray.scheduler.filter_result_cache import FilterResultCache
from dray.scheduler.filter_runner import AttemptError, FilterRunner
from dray.scheduler.nominations import Nominations
from dray.scheduler.profile import ActiveFilters, Filter, Profile, Scorer
from dray.scheduler.score_cache import ScoreTables, at, positions_of, sum_scores
from dray.scheduler.timing import SAMPLE_EVERY_NODE

# Kubernetes' adaptive percentage: 50 % less one for every 125 nodes, at least 5 %, and never fewer than 100 nodes.
FEASIBLE_NODES_MIN: Final = 100
_PERCENTAGE_START: Final = 50
_PERCENTAGE_MIN: Final = 5
_NODES_PER_PERCENT: Final = 125

# Nodes that a plain search filters together, at least: of the last ones it may need fewer.
PART_MIN: Final = 32


class Placement(msgspec.Struct, frozen=True, gc=False):
    """The chosen node, and how many nodes were evaluated and feasible."""

    node_name: str
    evaluated: int
    feasible: int


class Search:
    """A search for feasible nodes: their indices, and the first rejection of each other node that was filtered."""

    __slots__ = ("_filtered", "evaluated", "feasible", "known_rejections", "statuses", "wanted")

    def __init__(self, wanted: int, evaluated: int = 0) -> None:
        self.wanted = wanted
        self.feasible: list[int] = []
        self.evaluated = evaluated
        # Indices of nodes with the results of the filters.
        self._filtered: list[tuple[Sequence[int], Sequence[Status]]] = []
        # Those of other nodes, counted, that are known from earlier Pods.
        self.known_rejections: Sequence[StatusCount] = ()
        # The rejections of all nodes if none is feasible.
        self.statuses: MutableMapping[str, Status] = {}

    @property
    def missing(self) -> int:
        """Return how many feasible nodes are still wanted."""
        return self.wanted - len(self.feasible)

    def add(self, indices: Sequence[int], statuses: Sequence[Status]) -> None:
        """Add filtered nodes; those after the last one that is wanted do not count."""
        accepted = [index for index, status in zip(indices, statuses, strict=True) if status is SUCCESS]
        if len(accepted) > self.missing:
            accepted = accepted[: self.missing]
            end = indices.index(accepted[-1]) + 1
            indices, statuses = indices[:end], statuses[:end]
        self.feasible += accepted
        if len(accepted) < len(indices):
            self._filtered.append((indices, statuses))

    def end(self, start: int, count: int) -> None:
        """End the search over all nodes, in which the node at `start` was the first one."""
        self.evaluated = count if self.missing else (self.feasible[-1] - start) % count + 1

    def rejections(self, snapshot: Snapshot) -> dict[str, Status]:
        """Return the rejections that the filters of this search have found, by name of the node."""
        nodes = snapshot.nodes
        return {
            nodes[index].name: status
            for indices, statuses in self._filtered
            for index, status in zip(indices, statuses, strict=True)
            if status is not SUCCESS
        }

    def evaluation(self, snapshot: Snapshot, scores: tuple[NodeScore, ...]) -> Evaluation:
        """Return what was found out about the nodes, for the record of decisions."""
        rejected = [*self.known_rejections, *count_statuses(self.rejections(snapshot))]
        groups, unlisted = group_rejections(rejected)
        return Evaluation(len(snapshot), self.evaluated, len(self.feasible), scores, groups, unlisted)


def feasible_nodes_wanted(node_count: int, percentage: int = 0) -> int:
    """After how many feasible nodes the search ends."""
    if node_count < FEASIBLE_NODES_MIN:
        return node_count
    if percentage <= 0:
        percentage = max(_PERCENTAGE_START - node_count // _NODES_PER_PERCENT, _PERCENTAGE_MIN)
    return min(node_count, max(node_count * percentage // 100, FEASIBLE_NODES_MIN))


class Cycle:
    """Schedules Pods on one snapshot; keeps the start index of the next search, and cached scores."""

    def __init__(self, snapshot: Snapshot, nominations: Nominations, *, records: bool = False) -> None:
        self._snapshot = snapshot
        self._nominations = nominations
        # Whether placements keep what was found out about the nodes, in the cycle state.
        self._records = records
        self._start = 0
        self._tables = ScoreTables()
        self._filter_results = FilterResultCache(snapshot, nominations)

    def rejected(self, profile: Profile, state: CycleState, statuses: Mapping[str, Status]) -> None:
        """Keep the explanations of rejections for Pods that are like this one."""
        results = self._filter_results.of(profile, state, profile.active_filters(state))
        if results is not None and not self._nominations.node_of(state.pod_info.uid):
            results.explain(self._snapshot, statuses)

    def place(self, profile: Profile, state: CycleState) -> Placement | Diagnosis:
        """Return the best node, or why there is none; raises `AttemptError` when a plugin fails."""
        count = len(self._snapshot)
        if count == 0:
            # The first node can make the Pod schedulable, whatever its filters.
            return Diagnosis(0, plugins=frozenset(plugin.name for plugin in profile.at(FILTER)))
        subset, rejection = run_pre_filter(profile, state, count)
        if rejection is not None:
            return rejection
        search = self._search(profile, state, subset)
        if not search.feasible:
            return _diagnose(count, search.statuses, subset)
        best = search.feasible[0]
        scores: tuple[NodeScore, ...] = ()
        if len(search.feasible) > 1:
            best, scores = self._choose(profile, state, search.feasible)
        if self._records:
            state.evaluation = search.evaluation(self._snapshot, scores)
        return Placement(self._snapshot.nodes[best].name, search.evaluated, len(search.feasible))

    def _choose(self, profile: Profile, state: CycleState, indices: Sequence[int]) -> tuple[int, tuple[NodeScore, ...]]:
        """Return the index of the node with the highest score, the first of several, and the best recorded scores."""
        snapshot = self._snapshot
        # Most plugins do not look at the nodes if the cached scores are all that counts.
        nodes = NodesAt(snapshot, indices)
        run_pre_score(profile, state, nodes)
        cacheable, others, key = _scorers(profile, state)
        computed = [weighted_scores(scorer, state, nodes) for scorer in others]
        summed = [*computed]
        table = self._tables.table(key)
        if cacheable:

            def scores_of(changed: Sequence[NodeInfo]) -> list[list[int]]:
                return [weighted_scores(scorer, state, changed) for scorer in cacheable]

            summed.append(table.sums(snapshot, indices, scores_of))
        totals = sum_scores(summed, len(indices))
        if not self._records:
            return indices[totals.index(max(totals))], ()
        names = [scorer.name for scorer in (*others, *cacheable)]
        best = highest_positions(totals, SCORED_NODES_MAX)
        places = at(indices, best)
        columns = [at(scores, best) for scores in computed] + table.of_plugins(places)
        recorded = [
            NodeScore(snapshot.nodes[index].name, totals[position], dict(zip(names, scores, strict=True)))
            for index, position, *scores in zip(places, best, *columns, strict=True)
        ]
        return places[0], tuple(recorded)

    # --- Searching. ---

    def _search(self, profile: Profile, state: CycleState, subset: NodeSubset) -> Search:
        filters = profile.active_filters(state)
        runner = FilterRunner(filters.plain, profile.pre_filter_extensions, self._nominations)
        found = self._search_nominated(state, subset, filters, runner)
        if found is None and subset is None:
            # A plugin whose results are not kept may reject the node before another one fails there.
            with suppress(AttemptError):
                found = self._search_kept(profile, state, runner)
        return found or self._search_plain(profile, state, subset, filters, runner)

    def _search_nominated(
        self, state: CycleState, subset: NodeSubset, filters: ActiveFilters, runner: FilterRunner
    ) -> Search | None:
        """Try the nominated node alone; None if there is none, or it is not feasible."""
        if not self._nominations.by_node:
            return None
        nominated = self._nominations.node_of(state.pod_info.uid)
        index = self._snapshot.index_of(nominated)
        if index is None or (subset is not None and nominated not in subset[0]):
            return None
        search = Search(1, evaluated=1)
        search.add((index,), self._decide(state, (index,), filters, runner))
        return search if search.feasible else None

    def _search_kept(self, profile: Profile, state: CycleState, runner: FilterRunner) -> Search | None:
        """Search with what is known from Pods that are like this one; None if that does not suffice."""
        known, others = profile.split_filters(state)
        results = self._filter_results.of(profile, state, known)
        if results is None:
            return None
        snapshot, count = self._snapshot, len(self._snapshot)
        start = self._start % count
        search = Search(_wanted(profile, count))
        # What is kept for the Pod itself was kept from the others.
        special: list[int] = []
        if self._nominations.by_node:
            own = snapshot.index_of(self._nominations.node_of(state.pod_info.uid))
            special = [] if own is None else [own]
            results.invalidate(special)

        def decide(indices: Sequence[int]) -> Sequence[Status]:
            statuses = self._decide(state, indices, known, runner)
            special.extend(self._known_to_attempt(indices, statuses, known))
            return statuses

        def add(indices: Sequence[int]) -> int:
            if not others.plain:
                search.feasible += indices
                return search.missing
            search.add(indices, self._decide(state, indices, others, runner))
            return search.missing and max(search.missing, PART_MIN)

        results.find_accepted(start, search.wanted, decide, add)
        search.end(start, count)
        if not search.feasible:
            search.statuses = results.rejections(start)
        elif self._records:
            search.known_rejections = results.counted_rejections(snapshot, start, search.evaluated)
        if special:
            results.invalidate(special)
        if others.plain and not search.feasible:
            # The reasons are those of the first filters in order, whether they are kept or not.
            return None
        self._start = (start + search.evaluated) % count
        return search

    def _decide(
        self, state: CycleState, indices: Sequence[int], filters: ActiveFilters, runner: FilterRunner
    ) -> Sequence[Status]:
        """Return SUCCESS or the first rejection for each of the nodes at these indices."""
        nodes, nominated = list(map(self._snapshot.nodes.__getitem__, indices)), self._nominations.by_node
        alone: dict[int, Sequence[Filter]] = {}
        if nominated:
            alone.update((at, filters.plain) for at, node in enumerate(nodes) if node.name in nominated)
        if filters.timed:
            alone.update(dict.fromkeys(range(0, len(nodes), SAMPLE_EVERY_NODE), filters.timed))
        if not alone:
            return runner.check_all(state, nodes, filters)
        statuses = {at: runner.check(state, nodes[at], run) for at, run in alone.items()}
        others = [at for at in range(len(nodes)) if at not in alone]
        statuses.update(zip(others, runner.check_all(state, [nodes[at] for at in others], filters), strict=True))
        return [statuses[at] for at in range(len(nodes))]

    def _known_to_attempt(
        self, indices: Sequence[int], statuses: Sequence[Status], filters: ActiveFilters
    ) -> Iterable[int]:
        """Return the accepted nodes whose devices are known to this attempt alone.

        They were found beside nominated Pods or device plugins.
        """
        nodes, nominated = self._snapshot.nodes, self._nominations.by_node
        with_plugin_devices = self._snapshot.with_extended_requests if filters.signed else ()
        if not nominated and not with_plugin_devices:
            return ()
        return [
            index
            for index, status in zip(indices, statuses, strict=True)
            if status is SUCCESS and (nodes[index].name in with_plugin_devices or nodes[index].name in nominated)
        ]

    def _search_plain(
        self, profile: Profile, state: CycleState, subset: NodeSubset, filters: ActiveFilters, runner: FilterRunner
    ) -> Search:
        """Filter one part of the nodes after the other; without a feasible node, all, so that all reasons are known."""
        snapshot, count = self._snapshot, len(self._snapshot)
        if subset is not None:
            indices = [index for name in sorted(subset[0]) if (index := snapshot.index_of(name)) is not None]
            search = Search(len(indices), evaluated=len(indices))
            search.add(indices, self._decide(state, indices, filters, runner))
        else:
            start = self._start % count
            search = Search(_wanted(profile, count))
            remaining = chain(range(start, count), range(start))
            while search.missing and (part := list(islice(remaining, max(search.missing, PART_MIN)))):
                search.add(part, self._decide(state, part, filters, runner))
            search.end(start, count)
            self._start = (start + search.evaluated) % count
        if not search.feasible:
            search.statuses = search.rejections(snapshot)
        return search


def _wanted(profile: Profile, count: int) -> int:
    """Return how many feasible nodes the search needs: one is enough if nothing is scored."""
    return feasible_nodes_wanted(count, profile.percentage_of_nodes_to_score) if profile.scorers else 1


# The only nodes that can be feasible, and the plugins that restricted them; None means all nodes.
NodeSubset: TypeAlias = "tuple[frozenset[str], tuple[str, ...]] | None"


def run_pre_filter(profile: Profile, state: CycleState, node_count: int) -> tuple[NodeSubset, Diagnosis | None]:
    """Run the PreFilter plugins; return the nodes in all of their results, or why no node can be feasible.

    After an Unschedulable the others still run: a dry run of preemption needs what they compute.
    """
    pod = state.pod_info.pod
    names: frozenset[str] | None = None
    limiting: list[str] = []
    rejection: Status | None = None
    for plugin in profile.at(PRE_FILTER):
        result, status = plugin.pre_filter(state, pod)
        if status is SKIP or status.code is Code.SKIP:
            state.skip_filter.add(plugin.name)
            continue
        if not status.is_success:
            rejection = status.with_plugin(plugin.name)
            if status.code is not Code.UNSCHEDULABLE:
                return None, _pre_filter_rejection(rejection, node_count)
        elif result is not None:
            limiting.append(plugin.name)
            names = result.node_names if names is None else names & result.node_names
            if not names:
                return None, _no_common_node(limiting, node_count)
    if rejection is not None:
        return None, _pre_filter_rejection(rejection, node_count)
    return (None if names is None else (names, tuple(limiting))), None


def _pre_filter_rejection(status: Status, node_count: int) -> Diagnosis:
    if not status.is_rejected:
        raise AttemptError(f'running PreFilter plugin "{status.plugin}": {status.message}')
    plugins = frozenset((status.plugin,))
    pending = plugins if status.code is Code.PENDING else frozenset()
    return Diagnosis(
        node_count, absent=status, pre_filter_message=status.message, plugins=plugins - pending, pending_plugins=pending
    )


def _no_common_node(limiting: list[str], node_count: int) -> Diagnosis:
    listed = f"plugin(s) [{' '.join(limiting)}] simultaneously" if len(limiting) > 1 else f"plugin {limiting[0]}"
    status = unresolvable(f"node(s) didn't satisfy {listed}")
    return Diagnosis(node_count, absent=status, pre_filter_message=status.message, plugins=frozenset(limiting))


def _diagnose(count: int, rejections: MutableMapping[str, Status], names: NodeSubset) -> Diagnosis:
    statuses = distinct_statuses(rejections)
    plugins = {status.plugin for status in statuses if status.code is not Code.PENDING}
    pending = {status.plugin for status in statuses if status.code is Code.PENDING}
    absent = None
    if names is not None:
        plugins.update(names[1])
        absent = unresolvable(f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(names[1]))}]")
    return Diagnosis(
        count, rejections, absent, plugins=frozenset(plugins - pending), pending_plugins=frozenset(pending)
    )


def run_pre_score(profile: Profile, state: CycleState, nodes: Sequence[NodeInfo]) -> None:
    """Run the PreScore plugins."""
    for plugin in profile.at(PRE_SCORE):
        status = plugin.pre_score(state, state.pod_info.pod, nodes)
        if status is SKIP or status.code is Code.SKIP:
            state.skip_score.add(plugin.name)
        elif not status.is_success:
            raise AttemptError(f'running PreScore plugin "{plugin.name}": {status.message}')


def _scorers(profile: Profile, state: CycleState) -> tuple[list[Scorer], list[Scorer], Hashable]:
    """Return the scorers whose scores are cached, the others, and the key under which the cached ones are found."""
    cacheable: list[Scorer] = []
    others: list[Scorer] = []
    key: list[Hashable] = [profile]
    for scorer in profile.scorers:
        if scorer.name in state.skip_score:
            continue
        own_key = None if scorer.cache_key is None else scorer.cache_key(state)
        if own_key is None:
            others.append(scorer)
        else:
            cacheable.append(scorer)
            key.append((scorer.name, own_key))
    return cacheable, others, tuple(key)


def weighted_scores(scorer: Scorer, state: CycleState, nodes: Sequence[NodeInfo]) -> list[int]:
    """Return the scores of one plugin for each node, multiplied by its weight."""
    pod = state.pod_info.pod
    scores = scorer.score_all(state, pod, nodes)
    if scorer.normalize is not None:
        scorer.normalize(state, pod, scores)
    if min(scores) < 0 or max(scores) > SCORE_MAX:
        raise AttemptError(f'plugin "{scorer.name}" gives a score outside of 0 to {SCORE_MAX}')
    weight = scorer.weight
    return scores if weight == 1 else [weight * score for score in scores]


def highest_positions(totals: Sequence[int], count: int) -> list[int]:
    """Return the positions of the highest values, the highest first, and of equal ones the first.

    Sorting the different values, which are few, and looking for them is much faster than sorting positions by value.
    """
    found: list[int] = []
    for value in sorted(set(totals), reverse=True):
        found += positions_of(value, totals, count - len(found))
        if len(found) >= count:
            break
    return found
