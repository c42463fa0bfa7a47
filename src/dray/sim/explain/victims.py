"""The Pods that would be evicted for a pending Pod of a higher priority, by dry runs of preemption."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from dray.api.document import Document
from dray.api.types.core_v1 import Pod
from dray.framework.snapshot import Snapshot
from dray.scheduler.filter_runner import runner_of
from dray.scheduler.nominations import Nominations
from dray.scheduler.preemption.budgets import Budget
from dray.scheduler.preemption.candidates import choose, find_candidates
from dray.scheduler.preemption.dry_run import Candidate, DryRun
from dray.scheduler.profile import Profile
from dray.sim.explain.answers import Victims
from dray.sim.explain.filters import Filters

# Higher priorities are those of the system.
USER_PRIORITY_MAX: Final = 1_000_000_000
# Priorities that are tried, and candidates that are compared.
PRIORITIES_MAX: Final = 8
_CANDIDATES_MAX: Final = 100
replace = msgspec.structs.replace

# Returns the filters for a Pod.
MakeFilters = Callable[[Pod], Filters]


class PreemptionDryRun:
    """Dry runs for one Pod with other priorities than its own."""

    def __init__(
        self,
        profile: Profile,
        nodes: Snapshot,
        budgets: Sequence[Budget],
        make_filters: MakeFilters,
    ) -> None:
        self._profile = profile
        self._nodes = nodes
        self._budgets = budgets
        self._make_filters = make_filters

    def find(self, pod: Pod, classes: Iterable[Document], nominations: Nominations) -> Victims | None:
        """Return the victims at the lowest priority that helps; None if none would."""
        # A Pod that must not preempt needs another class even where its priority is high enough.
        never = pod.spec.preemption_policy == "Never"
        lowest = -USER_PRIORITY_MAX if never else pod.spec.priority or 0
        others = {other.priority for node in self._nodes for other in node.pods.values()}
        levels = sorted(priority for priority in others if lowest <= priority < USER_PRIORITY_MAX)
        for level in levels[:PRIORITIES_MAX]:
            priority = level + 1
            candidate = self._candidate(replace(pod, spec=replace(pod.spec, priority=priority)), nominations)
            if candidate is not None:
                victims = tuple(str(victim.key) for victim in candidate.victims)
                found = class_for(priority, classes)
                return Victims(priority, candidate.node_name, victims, found, candidate.violations, never=never)
        return None

    def _candidate(self, pod: Pod, nominations: Nominations) -> Candidate | None:
        filters = self._make_filters(pod)
        if filters.obstacle:
            return None
        state = filters.state
        dry_run = DryRun(runner_of(self._profile, state, nominations), state, self._budgets)
        nodes = filters.preemptible_nodes()

        search = find_candidates(nodes, 0, _CANDIDATES_MAX, dry_run.on)
        return choose(search.candidates) if search.candidates else None


def class_for(priority: int, classes: Iterable[Document]) -> str:
    """Return the PriorityClass of users with the lowest value that is enough."""
    enough = [
        (item["value"], item["metadata"]["name"])
        for item in classes
        if isinstance(item.get("value"), int)
        and priority <= item["value"] <= USER_PRIORITY_MAX
        and item.get("preemptionPolicy") != "Never"
    ]
    return min(enough)[1] if enough else ""
