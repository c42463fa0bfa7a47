"""The search for candidate nodes, and the choice among them. Deterministic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from math import inf
from typing import Final

from dray.framework.node_info import NO_PRIORITY, NodeInfo
from dray.framework.node_statuses import count_reasons, count_statuses
from dray.framework.status import Code, Status
from dray.scheduler.filter_runner import AttemptError
from dray.scheduler.preemption.dry_run import NO_VICTIMS, Candidate

NOT_HELPFUL: Final = "Preemption is not helpful for scheduling"
PERCENTAGE_DEFAULT: Final = 10
ABSOLUTE_DEFAULT: Final = 100
# Above the floor of every node, even of one without Pods.
_ANY_PRIORITY: Final = NO_PRIORITY + 1
NOTHING_KNOWN: Final[Mapping[str, Candidate | Status]] = {}


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """How many candidates are enough."""

    min_candidate_nodes_percentage: int = PERCENTAGE_DEFAULT
    min_candidate_nodes_absolute: int = ABSOLUTE_DEFAULT

    def wanted(self, node_count: int) -> int:
        """Return the number of candidates for a number of nodes."""
        share = node_count * self.min_candidate_nodes_percentage // 100
        return min(node_count, max(share, self.min_candidate_nodes_absolute))


@dataclass(slots=True)
class Search:
    """The candidates that were found, the rejections of other nodes, and how many nodes were tried."""

    candidates: list[Candidate] = field(default_factory=list)
    statuses: dict[str, Status] = field(default_factory=dict)
    tried: int = 0
    # Nodes that were passed over, since none of them has a Pod of lower priority.
    without_victims: int = 0


def find_candidates(
    nodes: Sequence[NodeInfo],
    start: int,
    wanted: int,
    dry_run: Callable[[NodeInfo], Candidate | Status],
    *,
    known: Mapping[str, Candidate | Status] = NOTHING_KNOWN,
    priority: int = _ANY_PRIORITY,
) -> Search:
    """Try the nodes from `start` on, and around, until there are enough candidates.

    At least one of them violates no disruption budget, unless all do. Nodes with `known` results are not tried again,
    and those without a Pod below `priority` are passed over.
    """
    search = Search()
    respecting: list[Candidate] = []
    violating: list[Candidate] = []
    count = 0
    for node in chain(islice(nodes, start, None), islice(nodes, start)):
        if count >= wanted and respecting:
            break
        if node.priority_floor >= priority:
            search.without_victims += 1
            continue
        search.tried += 1
        found = known.get(node.name)
        if found is None:
            found = _try(dry_run, node)
        if isinstance(found, Status):
            search.statuses[node.name] = found
            continue
        kept = violating if found.violations else respecting
        if len(kept) < wanted:
            kept.append(found)
            count += 1
    search.candidates = respecting + violating
    return search


def _try(dry_run: Callable[[NodeInfo], Candidate | Status], node: NodeInfo) -> Candidate | Status:
    """Return the result of a dry run; a failure concerns this node only."""
    try:
        return dry_run(node)
    except AttemptError as failure:
        return Status(Code.ERROR, (str(failure),))


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate that does the least harm; each criterion decides among those equal so far.

    Fewest violations of budgets; lowest priority of the most important victim; lowest sum of priorities; fewest
    victims; latest start of the victims with the highest priority; the first one that was found.
    """
    best, least, latest = candidates[0], candidates[0].harm, -inf
    for candidate in candidates:
        harm = candidate.harm
        if harm > least:
            continue
        if harm < least or candidate.earliest_start > latest:
            best, least, latest = candidate, harm, candidate.earliest_start
    return best


def rejection_message(node_count: int, statuses: Mapping[str, Status], without_victims: int = 0) -> str:
    """Return why preemption does not help; on nodes without a status it was not tried."""
    others = {NO_VICTIMS: without_victims, NOT_HELPFUL: node_count - len(statuses) - without_victims}
    present = {reason: count for reason, count in others.items() if count > 0}
    reasons = ", ".join(count_reasons(count_statuses(statuses), present))
    return f"0/{node_count} nodes are available: {reasons}."
