"""The search for candidate nodes, and the choice among them. Pure and deterministic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from dray.framework.node_info import NodeInfo
from dray.framework.status import Code, Status
from dray.scheduler.filter_runner import AttemptError
from dray.scheduler.preemption.dry_run import NO_VICTIMS, Candidate

NOT_HELPFUL: Final = "Preemption is not helpful for scheduling"
PERCENTAGE_DEFAULT: Final = 10
ABSOLUTE_DEFAULT: Final = 100


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
    # Further nodes, none of which has a Pod of lower priority.
    without_victims: int = 0


def find_candidates(
    nodes: Sequence[NodeInfo], start: int, wanted: int, dry_run: Callable[[NodeInfo], Candidate | Status]
) -> Search:
    """Try the nodes from `start` on, and around, until there are enough candidates.

    At least one of them violates no disruption budget, unless all do.
    """
    search = Search()
    respecting: list[Candidate] = []
    violating: list[Candidate] = []
    for index in range(len(nodes)):
        if respecting and len(respecting) + len(violating) >= wanted:
            break
        node = nodes[(start + index) % len(nodes)]
        search.tried += 1
        found = _try(dry_run, node)
        if isinstance(found, Status):
            search.statuses[node.name] = found
            continue
        kept = violating if found.violations else respecting
        if len(kept) < wanted:
            kept.append(found)
    search.candidates = respecting + violating
    return search


def _try(dry_run: Callable[[NodeInfo], Candidate | Status], node: NodeInfo) -> Candidate | Status:
    """Return the result of a dry run; a failure concerns this node only."""
    try:
        return dry_run(node)
    except AttemptError as failure:
        return Status(Code.ERROR, (str(failure),))


def choose(candidates: Sequence[Candidate], now: datetime) -> Candidate:
    """Return the candidate that does the least harm; each criterion decides among those equal so far.

    Fewest violations of budgets; lowest priority of the most important victim; lowest sum of priorities; fewest
    victims; latest start of the victims with the highest priority; the first one that was found.
    """
    least = min(candidate.harm for candidate in candidates)
    equal = [candidate for candidate in candidates if candidate.harm == least]
    # A Pod that has not started counts as started now.
    started_now = now.timestamp()
    return max(equal, key=lambda item: started_now if item.earliest_start is None else item.earliest_start)


def rejection_message(node_count: int, statuses: Mapping[str, Status], without_victims: int = 0) -> str:
    """Return why preemption does not help; on nodes without a status it was not tried."""
    counts = Counter(reason for status in statuses.values() for reason in status.reasons)
    if without_victims:
        counts[NO_VICTIMS] += without_victims
    others = node_count - len(statuses) - without_victims
    if others > 0:
        counts[NOT_HELPFUL] += others
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
    return f"0/{node_count} nodes are available: {reasons}."
