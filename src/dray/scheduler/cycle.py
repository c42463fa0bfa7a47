"""The scheduling cycle: which node is best for a Pod on a snapshot. Pure, and the same every time.

Not every node is looked at in large clusters: the search ends when enough fit, and the next one starts where it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain, islice
from typing import Final, TypeAlias

import msgspec

from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import SCORE_MAX, ScorePlugin
from dray.framework.snapshot import Snapshot
from dray.framework.status import SKIP, SUCCESS, Code, Status, unresolvable
from dray.scheduler.diagnosis import Diagnosis
from dray.scheduler.nominations import Nominations
from dray.scheduler.profile import Profile
from dray.scheduler.score_tables import ScoreTables
from dray.scheduler.timing import SAMPLE_EVERY_NODE

# Kubernetes' adaptive share of nodes to find: 50 % less one for every 125 nodes, at least 5 %, never under 100 nodes.
FEASIBLE_NODES_MIN: Final = 100
_PERCENTAGE_START: Final = 50
_PERCENTAGE_MIN: Final = 5
_NODES_PER_PERCENT: Final = 125

# Fewer nodes than these are quicker asked one by one than all at once.
_TOGETHER_MIN: Final = 8

Filter: TypeAlias = tuple[str, Callable[..., Status]]


class Filters(msgspec.Struct, frozen=True):
    """The filters that take part in an attempt; in one that is timed, there are timed twins of them for some nodes."""

    plain: list[Filter]
    timed: list[Filter]


# With its weight.
Scorer: TypeAlias = tuple[ScorePlugin, int]
# The places from one up to another, in order, of the nodes that a filter must look at; it accepts the others.
Doubtful: TypeAlias = Callable[[CycleState, Snapshot, int, int], Sequence[int]]


class AttemptError(Exception):
    """An attempt that broke; the text is what the Pod's condition says."""


class Placement(msgspec.Struct, frozen=True, gc=False):
    """The node chosen, and how many were looked at and fit."""

    node_name: str
    evaluated: int
    feasible: int


class Search(msgspec.Struct, frozen=True):
    """What a search for feasible nodes found: their places, and the first no of each other node looked at."""

    feasible: list[int]
    statuses: dict[str, Status]
    # Nodes passed over because a filter was sure to say no; only where one was found, so that nobody asks why.
    skipped: int = 0

    @property
    def evaluated(self) -> int:
        """How many nodes are accounted for."""
        return len(self.feasible) + len(self.statuses) + self.skipped


def feasible_nodes_wanted(node_count: int, percentage: int = 0) -> int:
    """After how many feasible nodes the search ends."""
    if node_count < FEASIBLE_NODES_MIN:
        return node_count
    if percentage <= 0:
        percentage = max(_PERCENTAGE_START - node_count // _NODES_PER_PERCENT, _PERCENTAGE_MIN)
    return min(node_count, max(node_count * percentage // 100, FEASIBLE_NODES_MIN))


class Cycle:
    """Places Pods on one snapshot; remembers where the last search ended, and scores of nodes that do not change."""

    def __init__(self, snapshot: Snapshot, nominations: Nominations) -> None:
        self._snapshot = snapshot
        self._nominations = nominations
        self._start = 0
        self._tables = ScoreTables()
        # Whether the last search heard more noes than yeses: the next one had better skip those known beforehand.
        self._mostly_no = False

    def place(self, profile: Profile, state: CycleState) -> Placement | Diagnosis:
        """The best node, or why there is none; raises `AttemptError` when a plugin breaks."""
        count = len(self._snapshot)
        if count == 0:
            # A first node would make every filter think again.
            return Diagnosis(0, plugins=frozenset(plugin.name for plugin in profile.filter))
        names, rejection = run_pre_filter(profile, state, count)
        if rejection is not None:
            return rejection
        search = self._search_nominated(profile, state, names) or self._search(profile, state, names)
        if not search.feasible:
            return _diagnose(count, search, names)
        best = search.feasible[0]
        if len(search.feasible) > 1:
            best = self._choose(profile, state, search.feasible)
        return Placement(self._snapshot.nodes[best].name, search.evaluated, len(search.feasible))

    def _choose(self, profile: Profile, state: CycleState, places: Sequence[int]) -> int:
        """The place of the node with the highest score; the first one of several."""
        snapshot = self._snapshot
        nodes = [snapshot.nodes[place] for place in places]
        run_pre_score(profile, state, nodes)
        steady, others, kind = _scorers(profile, state)
        totals = total_scores(others, state, nodes)
        if steady:
            table = self._tables.table(kind)
            known = table.scores(snapshot, places, lambda changed: total_scores(steady, state, changed))
            totals = [one + other for one, other in zip(totals, known, strict=True)] if others else known
        return places[totals.index(max(totals))]

    def _search_nominated(self, profile: Profile, state: CycleState, names: NodeSubset) -> Search | None:
        """The node that the Pod was nominated to is tried alone first."""
        nominated = state.pod_info.pod.status.nominated_node_name or ""
        place = self._snapshot.place_of(nominated)
        if place is None or (names is not None and nominated not in names[0]):
            return None
        search = self._ask(_filters(profile, state), state, (place,), 1)
        return search if search.feasible else None

    def _search(self, profile: Profile, state: CycleState, names: NodeSubset) -> Search:
        filters = _filters(profile, state)
        if names is not None:
            places = [place for name in sorted(names[0]) if (place := self._snapshot.place_of(name)) is not None]
            return self._ask(filters, state, places, len(places))
        count = len(self._snapshot)
        wanted = feasible_nodes_wanted(count, profile.percentage_of_nodes_to_score) if profile.score else 1
        start = self._start % count
        search = self._search_promising(profile, state, filters, start, wanted) if self._mostly_no else None
        if search is None:
            doubtful = () if self._nominations else _doubtful(profile, state)
            if doubtful:
                search = self._search_together(filters, doubtful, state, start, wanted)
            else:
                search = self._ask(filters, state, chain(range(start, count), range(start)), wanted)
        self._mostly_no = len(search.feasible) < search.evaluated // 2
        self._start = (start + search.evaluated) % count
        return search

    def _search_together(
        self, filters: Filters, doubtful: Sequence[Doubtful], state: CycleState, start: int, wanted: int
    ) -> Search:
        """The same search where every filter has quick answers: most nodes are accepted many at a time."""
        search = Search([], {})
        feasible = search.feasible
        for first, end in ((start, len(self._snapshot)), (0, start)):
            place = first
            while place < end and (missing := wanted - len(feasible)):
                stop = min(end, place + missing)
                samples = range(place, stop if filters.timed else place, SAMPLE_EVERY_NODE)
                doubts: Sequence[int] = range(place, stop)
                if len(doubts) >= _TOGETHER_MIN:
                    doubts = _united([samples, *(find(state, self._snapshot, place, stop) for find in doubtful)])
                for doubt in doubts:
                    feasible += range(place, doubt)
                    asked = filters.timed if doubt in samples else filters.plain
                    self._ask_all(asked, state, (doubt,), 1, search)
                    place = doubt + 1
                feasible += range(place, stop)
                place = stop
        return search

    def _search_promising(
        self, profile: Profile, state: CycleState, filters: Filters, start: int, wanted: int
    ) -> Search | None:
        """The same search without the nodes that a filter is sure to reject; None when nothing comes of it.

        Then all nodes are asked after all, so that the Pod's user hears of each what the first filter says.
        """
        if profile.promising is None or self._nominations:
            return None
        places = profile.promising(state, self._snapshot, start)
        if places is None:
            return None
        found = self._ask(filters, state, places, wanted)
        if not found.feasible:
            return None
        evaluated = len(self._snapshot)
        if len(found.feasible) >= wanted:
            evaluated = (found.feasible[-1] - start) % evaluated + 1
        return Search(found.feasible, found.statuses, evaluated - len(found.feasible) - len(found.statuses))

    def _ask(self, filters: Filters, state: CycleState, places: Iterable[int], wanted: int) -> Search:
        """Ask the filters node by node until so many are found."""
        search = Search([], {})
        if not filters.timed:
            self._ask_all(filters.plain, state, places, wanted, search)
            return search
        remaining = iter(places)
        while len(search.feasible) < wanted and (part := list(islice(remaining, SAMPLE_EVERY_NODE))):
            self._ask_all(filters.timed, state, part[:1], 1, search)
            missing = wanted - len(search.feasible)
            if missing:
                self._ask_all(filters.plain, state, part[1:], missing, search)
        return search

    def _ask_all(
        self, filters: Sequence[Filter], state: CycleState, places: Iterable[int], wanted: int, search: Search
    ) -> None:
        feasible, statuses = search.feasible, search.statuses
        nodes, pod = self._snapshot.nodes, state.pod_info.pod
        crowded = bool(self._nominations)
        for place in places:
            node = nodes[place]
            status = SUCCESS
            if crowded:
                status = run_filters(filters, state, node, self._nominations)
            else:
                # The loop that everything else waits for: no call but the filters' own.
                for name, accepts in filters:
                    status = accepts(state, pod, node)
                    if status is not SUCCESS:
                        if status.code is not Code.SUCCESS:
                            status = status.said_by(name)
                            break
                        status = SUCCESS
            if status is SUCCESS:
                feasible.append(place)
                wanted -= 1
                if not wanted:
                    return
            elif status.is_rejected:
                statuses[node.name] = status
            else:
                raise AttemptError(f'running "{status.plugin}" filter plugin: {status.message}')


# The only nodes worth trying, and the plugins that say so; None means all.
NodeSubset: TypeAlias = "tuple[frozenset[str], tuple[str, ...]] | None"


def run_pre_filter(profile: Profile, state: CycleState, node_count: int) -> tuple[NodeSubset, Diagnosis | None]:
    """Ask every PreFilter plugin; the nodes that all of them name, or why the Pod fits nowhere."""
    pod = state.pod_info.pod
    names: frozenset[str] | None = None
    limiting: list[str] = []
    for plugin in profile.pre_filter:
        result, status = plugin.pre_filter(state, pod)
        if status is SKIP or status.code is Code.SKIP:
            state.skip_filter.add(plugin.name)
            continue
        if status is not SUCCESS and not status.is_success:
            return None, _pre_filter_no(status.said_by(plugin.name), node_count)
        if result is not None:
            limiting.append(plugin.name)
            names = result.node_names if names is None else names & result.node_names
            if not names:
                return None, _nowhere(limiting, node_count)
    return (None if names is None else (names, tuple(limiting))), None


def _pre_filter_no(status: Status, node_count: int) -> Diagnosis:
    if not status.is_rejected:
        raise AttemptError(f'running PreFilter plugin "{status.plugin}": {status.message}')
    plugins = frozenset((status.plugin,))
    pending = plugins if status.code is Code.PENDING else frozenset()
    return Diagnosis(
        node_count, absent=status, pre_filter_message=status.message, plugins=plugins - pending, pending_plugins=pending
    )


def _nowhere(limiting: list[str], node_count: int) -> Diagnosis:
    listed = f"plugin(s) [{' '.join(limiting)}] simultaneously" if len(limiting) > 1 else f"plugin {limiting[0]}"
    status = unresolvable(f"node(s) didn't satisfy {listed}")
    return Diagnosis(node_count, absent=status, pre_filter_message=status.message, plugins=frozenset(limiting))


def _filters(profile: Profile, state: CycleState) -> Filters:
    plain, timed = (
        [(plugin.name, plugin.filter) for plugin in plugins if plugin.name not in state.skip_filter]
        for plugins in (profile.filter, profile.timed_filter)
    )
    return Filters(plain, timed)


def _doubtful(profile: Profile, state: CycleState) -> Sequence[Doubtful]:
    """The quick answers of the filters that take part; none unless each of them has one."""
    plugins = [plugin for plugin in profile.filter if plugin.name not in state.skip_filter]
    found = [doubtful for plugin in plugins if (doubtful := getattr(plugin, "doubtful", None)) is not None]
    return found if len(found) == len(plugins) else ()


def _united(lists: Sequence[Sequence[int]]) -> Sequence[int]:
    """Whatever is in any of the lists, in order."""
    filled = [places for places in lists if places]
    return sorted(set().union(*filled)) if len(filled) > 1 else filled[0] if filled else ()


def run_filters(filters: Sequence[Filter], state: CycleState, node: NodeInfo, nominations: Nominations) -> Status:
    """The first no for a node; it must fit both with and without the Pods nominated to it."""
    fuller = nominations.with_nominated(node, state.pod_info)
    for state_of_node in (node,) if fuller is None else (fuller, node):
        for name, accepts in filters:
            status = accepts(state, state.pod_info.pod, state_of_node)
            if status is not SUCCESS and not status.is_success:
                return status.said_by(name)
    return SUCCESS


def _diagnose(count: int, search: Search, names: NodeSubset) -> Diagnosis:
    statuses = search.statuses.values()
    plugins = {status.plugin for status in statuses if status.code is not Code.PENDING}
    pending = {status.plugin for status in statuses if status.code is Code.PENDING}
    absent = None
    if names is not None:
        plugins.update(names[1])
        absent = unresolvable(f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(names[1]))}]")
    return Diagnosis(
        count, search.statuses, absent, plugins=frozenset(plugins - pending), pending_plugins=frozenset(pending)
    )


def run_pre_score(profile: Profile, state: CycleState, nodes: Sequence[NodeInfo]) -> None:
    """Ask every PreScore plugin."""
    for plugin in profile.pre_score:
        status = plugin.pre_score(state, state.pod_info.pod, nodes)
        if status is SKIP or status.code is Code.SKIP:
            state.skip_score.add(plugin.name)
        elif status is not SUCCESS and not status.is_success:
            raise AttemptError(f'running PreScore plugin "{plugin.name}": {status.message}')


def _scorers(profile: Profile, state: CycleState) -> tuple[list[Scorer], list[Scorer], Hashable]:
    """Those whose scores follow from the node and what the Pod needs alone, the others, and the kind of these needs."""
    steady: list[Scorer] = []
    others: list[Scorer] = []
    kind: list[Hashable] = [profile]
    for scorer in profile.score:
        plugin = scorer[0]
        if plugin.name in state.skip_score:
            continue
        needs_of: Callable[[CycleState], Hashable | None] | None = getattr(plugin, "score_needs", None)
        needs = None if needs_of is None else needs_of(state)
        if needs is None:
            others.append(scorer)
        else:
            steady.append(scorer)
            kind.append((plugin.name, needs))
    return steady, others, tuple(kind)


def total_scores(scorers: Sequence[Scorer], state: CycleState, nodes: Sequence[NodeInfo]) -> list[int]:
    """The weighted sum of the plugins' scores for each node."""
    totals = [0] * len(nodes)
    for scorer, weight in scorers:
        scores = _scores(scorer, state, nodes)
        normalize = getattr(scorer, "normalize_scores", None)
        if normalize is not None:
            normalize(state, state.pod_info.pod, scores)
        if min(scores) < 0 or max(scores) > SCORE_MAX:
            raise AttemptError(f'plugin "{scorer.name}" gives a score outside of 0 to {SCORE_MAX}')
        totals = [total + weight * score for total, score in zip(totals, scores, strict=True)]
    return totals


def _scores(scorer: ScorePlugin, state: CycleState, nodes: Sequence[NodeInfo]) -> list[int]:
    pod = state.pod_info.pod
    score_all: Callable[..., list[int]] | None = getattr(scorer, "score_all", None)
    if score_all is not None:
        return score_all(state, pod, nodes)
    give = scorer.score
    return [give(state, pod, node) for node in nodes]
