"""Cached results of dry runs, for preemptors that are alike. Pure.

Users of shared claims are not part of what a result is known to depend on, so the result on the chosen node is always
confirmed by another dry run.
"""

from __future__ import annotations

from collections.abc import Callable

from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.snapshot import Snapshot
from dray.framework.status import Status
from dray.scheduler.alike_pods import AlikePods, kind_of
from dray.scheduler.nominations import Nominations
from dray.scheduler.preemption.dry_run import Candidate
from dray.scheduler.profile import Profile

DryRunOn = Callable[[NodeInfo], Candidate | Status]


class DryRunCache:
    """The results by kind of preemptor and node; one for each plugin."""

    def __init__(self, snapshot: Snapshot, nominations: Nominations) -> None:
        self._nominations = nominations
        self._alike: AlikePods[Candidate | Status] = AlikePods(snapshot, nominations)

    def cached(self, profile: Profile, state: CycleState, budgets_version: int, dry_run: DryRunOn) -> DryRunOn | None:
        """Return a dry run that looks up earlier results; None if the Pod is unlike any other."""
        kind = kind_of(profile, state)
        if kind is None:
            return None
        results = self._alike.results(profile, state, (budgets_version, kind))
        known = results.by_node
        # What is kept for the Pod itself was kept from the others.
        own = self._nominations.node_of(state.pod_info.uid)

        def run(node: NodeInfo) -> Candidate | Status:
            if node.name == own:
                return dry_run(node)
            found = known.get(node.name)
            if found is None:
                found = dry_run(node)
                results.keep(node, found)
            return found

        return run

    def clear(self) -> None:
        """Drop all results."""
        self._alike.clear()
