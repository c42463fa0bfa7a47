"""Which Pods of lower priority would have to go for a group, in the whole cluster.

All units of lower priority are hidden and the group cycle runs once; its placement is kept. Then the units are put back
one by one, the most important first, as long as every Pod of the group still fits on its node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from dray.framework.pod_info import PodInfo
from dray.framework.status import Status, unschedulable
from dray.scheduler.group_dry_run import GroupDryRun
from dray.scheduler.preemption.budgets import Budget, split_by_violation
from dray.scheduler.preemption.dry_run import reprieve_several
from dray.scheduler.preemption.units import Unit

NO_VICTIMS: Final = "No preemption victims found for incoming preemptor"
NOT_KEPT: Final = "the placement of the pod group does not fit any more"


class GroupCandidate(msgspec.Struct, frozen=True):
    """A placement of a group without the victims."""

    # The node of each Pod by uid.
    nodes: Mapping[str, str]
    # The most important first.
    victims: tuple[PodInfo, ...]
    # The number of victims whose eviction violates a disruption budget.
    violations: int = 0


def find_group_victims(
    dry_run: GroupDryRun, units: Sequence[Unit], budgets: Sequence[Budget], now: datetime
) -> GroupCandidate | Status:
    """Return where the group fits without which Pods, or why it does not; what it gets there is kept by plugins."""
    if not units:
        return unschedulable(NO_VICTIMS)
    potential = sorted(units, key=lambda unit: unit.importance(now))
    dry_run.hide([pod for unit in potential for pod in unit.pods])
    outcome, nodes = dry_run.place()
    if not outcome.status.is_success:
        return outcome.status
    monotonic = dry_run.is_monotonic(outcome)
    violating, others = split_by_violation(potential, budgets)
    attempt = _Reprieve(dry_run, nodes, monotonic=monotonic)
    victims = attempt.of([unit for unit, _ in violating])
    violations = sum(count for unit, count in violating if unit in victims)
    victims += attempt.of(others)
    victims.sort(key=lambda unit: unit.importance(now))
    if not dry_run.keep(nodes):
        return unschedulable(NOT_KEPT)
    return GroupCandidate(nodes, tuple(pod for unit in victims for pod in unit.pods), violations)


class _Reprieve:
    """Puts units back as long as the group fits."""

    def __init__(self, dry_run: GroupDryRun, nodes: Mapping[str, str], *, monotonic: bool) -> None:
        self._dry_run = dry_run
        self._nodes = nodes
        self._used = frozenset(nodes.values())
        self._monotonic = monotonic

    def of(self, units: Sequence[Unit]) -> list[Unit]:
        """Put back what is possible, the first ones first; return the others."""
        if not self._monotonic:
            return [unit for unit in units if not self._put_back((unit,))]
        # The Pods of other nodes are in nobody's way.
        elsewhere = [unit for unit in units if not self._is_on_used_node(unit)]
        self._dry_run.show([pod for unit in elsewhere for pod in unit.pods])
        return reprieve_several([unit for unit in units if self._is_on_used_node(unit)], self._put_back)

    def _is_on_used_node(self, unit: Unit) -> bool:
        return any(pod.pod.spec.node_name in self._used for pod in unit.pods)

    def _put_back(self, units: Sequence[Unit]) -> bool:
        pods = [pod for unit in units for pod in unit.pods]
        self._dry_run.show(pods)
        if self._dry_run.fits(self._nodes):
            return True
        self._dry_run.hide(pods)
        return False
