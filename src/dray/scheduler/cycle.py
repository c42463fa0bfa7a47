"""The scheduling cycle: which node is best for a Pod on a snapshot. Pure, and the same every time.

Not every node is looked at in large clusters: the search ends when enough fit, and the next one starts where it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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

# Kubernetes' adaptive share of nodes to find: 50 % less one for every 125 nodes, at least 5 %, never under 100 nodes.
FEASIBLE_NODES_MIN: Final = 100
_PERCENTAGE_START: Final = 50
_PERCENTAGE_MIN: Final = 5
_NODES_PER_PERCENT: Final = 125

# Fewer nodes than these are quicker asked one by one than all at once.
_TOGETHER_MIN: Final = 8

Filter: TypeAlias = tuple[str, Callable[..., Status]]
# The nodes of which a filter knows without a closer look that it accepts them.
Sure: TypeAlias = Callable[[CycleState, Sequence[NodeInfo]], Sequence[NodeInfo]]


class AttemptError(Exception):
    """An attempt that broke; the text is what the Pod's condition says."""


class Placement(msgspec.Struct, frozen=True, gc=False):
    """The node chosen, and how many were looked at and fit."""

    node_name: str
    evaluated: int
    feasible: int


class Search(msgspec.Struct, frozen=True):
    """What a search for feasible nodes found."""

    feasible: list[NodeInfo]
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
    """Places Pods on one snapshot; remembers only where the last search ended."""

    def __init__(self, snapshot: Snapshot, nominations: Nominations) -> None:
        self._snapshot = snapshot
        self._nominations = nominations
        self._start = 0
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
            best = choose(profile, state, search.feasible)
        return Placement(best.name, search.evaluated, len(search.feasible))

    def _search_nominated(self, profile: Profile, state: CycleState, names: NodeSubset) -> Search | None:
        """The node that the Pod was nominated to is tried alone first."""
        nominated = self._snapshot.get(state.pod_info.pod.status.nominated_node_name or "")
        if nominated is None or (names is not None and nominated.name not in names[0]):
            return None
        search = find_feasible(_filters(profile, state), state, (nominated,), 1, self._nominations)
        return search if search.feasible else None

    def _search(self, profile: Profile, state: CycleState, names: NodeSubset) -> Search:
        filters = _filters(profile, state)
        if names is not None:
            nodes = [node for name in sorted(names[0]) if (node := self._snapshot.get(name)) is not None]
            return find_feasible(filters, state, nodes, len(nodes), self._nominations)
        nodes, count = self._snapshot.nodes, len(self._snapshot)
        wanted = feasible_nodes_wanted(count, profile.percentage_of_nodes_to_score) if profile.score else 1
        start = self._start % count
        search = self._search_promising(profile, state, filters, start, wanted) if self._mostly_no else None
        if search is None:
            ordered = nodes if not start else chain(islice(nodes, start, None), islice(nodes, start))
            sure = () if self._nominations else _sure(profile, state)
            search = find_feasible(filters, state, ordered, wanted, self._nominations, sure)
        self._mostly_no = len(search.feasible) < search.evaluated // 2
        self._start = (start + search.evaluated) % count
        return search

    def _search_promising(
        self, profile: Profile, state: CycleState, filters: Sequence[Filter], start: int, wanted: int
    ) -> Search | None:
        """The same search without the nodes that a filter is sure to reject; None when nothing comes of it.

        Then all nodes are asked after all, so that the Pod's user hears of each what the first filter says.
        """
        if profile.promising is None or self._nominations:
            return None
        nodes = profile.promising(state, self._snapshot, start)
        if nodes is None:
            return None
        found = find_feasible(filters, state, nodes, wanted, self._nominations)
        if not found.feasible:
            return None
        evaluated = len(self._snapshot)
        if len(found.feasible) >= wanted:
            last = self._snapshot.place_of(found.feasible[-1].name)
            assert last is not None, "found and not there"
            evaluated = (last - start) % evaluated + 1
        return Search(found.feasible, found.statuses, evaluated - len(found.feasible) - len(found.statuses))


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


def _filters(profile: Profile, state: CycleState) -> list[Filter]:
    return [(plugin.name, plugin.filter) for plugin in profile.filter if plugin.name not in state.skip_filter]


def _sure(profile: Profile, state: CycleState) -> Sequence[Sure]:
    """The quick answers of the filters that take part; none unless each of them has one."""
    plugins = [plugin for plugin in profile.filter if plugin.name not in state.skip_filter]
    found = [sure for plugin in plugins if (sure := getattr(plugin, "sure_of", None)) is not None]
    return found if len(found) == len(plugins) else ()


def find_feasible(
    filters: Sequence[Filter],
    state: CycleState,
    nodes: Iterable[NodeInfo],
    wanted: int,
    nominations: Nominations,
    sure: Sequence[Sure] = (),
) -> Search:
    """The first nodes that every filter accepts, and the first no of each other node looked at.

    `sure` has the quick answers of all filters, where each has one: most nodes are then accepted many at a time.
    """
    feasible: list[NodeInfo] = []
    statuses: dict[str, Status] = {}
    remaining = iter(nodes)
    while sure and wanted - len(feasible) >= _TOGETHER_MIN:
        part = list(islice(remaining, wanted - len(feasible)))
        if not part:
            break
        accepted: Sequence[NodeInfo] = part
        for fitting in sure:
            accepted = fitting(state, accepted)
        known = set(map(id, accepted)) if len(accepted) < len(part) else None
        doubtful = () if known is None else [place for place, node in enumerate(part) if id(node) not in known]
        start = 0
        for place in doubtful:
            feasible += part[start:place]
            _ask((part[place],), filters, state, 1, nominations, (feasible, statuses))
            start = place + 1
        feasible += part[start:]
    if len(feasible) < wanted:
        _ask(remaining, filters, state, wanted - len(feasible), nominations, (feasible, statuses))
    return Search(feasible, statuses)


def _ask(
    nodes: Iterable[NodeInfo],
    filters: Sequence[Filter],
    state: CycleState,
    wanted: int,
    nominations: Nominations,
    found: tuple[list[NodeInfo], dict[str, Status]],
) -> None:
    """Ask the filters node by node until so many more are found."""
    feasible, statuses = found
    pod = state.pod_info.pod
    crowded = bool(nominations)
    for node in nodes:
        status = SUCCESS
        if crowded:
            status = run_filters(filters, state, node, nominations)
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
            feasible.append(node)
            wanted -= 1
            if not wanted:
                return
        elif status.is_rejected:
            statuses[node.name] = status
        else:
            raise AttemptError(f'running "{status.plugin}" filter plugin: {status.message}')


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


def choose(profile: Profile, state: CycleState, nodes: Sequence[NodeInfo]) -> NodeInfo:
    """The node with the highest score; the first one of several."""
    totals = total_scores(profile, state, nodes)
    return nodes[totals.index(max(totals))]


def total_scores(profile: Profile, state: CycleState, nodes: Sequence[NodeInfo]) -> list[int]:
    """The weighted sum of all plugins' scores for each node."""
    pod = state.pod_info.pod
    for plugin in profile.pre_score:
        status = plugin.pre_score(state, pod, nodes)
        if status is SKIP or status.code is Code.SKIP:
            state.skip_score.add(plugin.name)
        elif status is not SUCCESS and not status.is_success:
            raise AttemptError(f'running PreScore plugin "{plugin.name}": {status.message}')
    totals = [0] * len(nodes)
    for scorer, weight in profile.score:
        if scorer.name in state.skip_score:
            continue
        scores = _scores(scorer, state, nodes)
        normalize = getattr(scorer, "normalize_scores", None)
        if normalize is not None:
            normalize(state, pod, scores)
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
