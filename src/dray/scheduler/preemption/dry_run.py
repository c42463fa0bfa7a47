"""The dry run of preemption on one node: which Pods of lower priority would have to go.

All Pods of lower priority are removed; if the preemptor then fits, they are put back one by one, the most important
first, as long as it still fits. Those that cannot be put back are the victims. Most often that is the least important
Pod alone, so that its removal is tried first, where fewer Pods are never worse than more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Final

from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.framework.status import SUCCESS, Status, error, unresolvable
from dray.scheduler.filter_runner import FilterRunner
from dray.scheduler.pod_groups import PodGroups
from dray.scheduler.preemption.budgets import Budget, split_by_violation
from dray.scheduler.preemption.units import Unit, units_of

NO_VICTIMS: Final = "No preemption victims found for incoming pod"
_NO_VICTIMS: Final = unresolvable(NO_VICTIMS)
# Added to a priority, so that more victims never have a lower sum.
_PRIORITY_OFFSET: Final = 1 << 31
# So many units or fewer are put back one by one if all but the last cannot be: halving them again and again would take
# more steps if most of them have to go, which is usual for Pods with devices.
SINGLY_MAX: Final = 8


@dataclass(frozen=True)
class Candidate:
    """A node where the preemptor fits without the victims."""

    node_name: str
    # The most important first.
    victims: tuple[PodInfo, ...]
    # The number of victims whose eviction violates a disruption budget.
    violations: int = 0
    # The Pods of which it matters what their removal frees: the victims, and those that were still removed when a
    # victim could not be put back.
    decisive: tuple[PodInfo, ...] = field(default=(), compare=False)

    @cached_property
    def harm(self) -> tuple[int, int, int, int]:
        """Return what the choice among candidates goes by, lowest first; computed once, as candidates are cached."""
        return (
            self.violations,
            self.victims[0].priority,
            sum(pod.priority + _PRIORITY_OFFSET for pod in self.victims),
            len(self.victims),
        )

    @cached_property
    def earliest_start(self) -> float:
        """Return when the first of the most important victims was started, as a timestamp; infinite if none was."""
        highest = self.victims[0].priority
        started = [pod.pod.status.start_time for pod in self.victims if pod.priority == highest]
        return min((start.timestamp() for start in started if start is not None), default=inf)


class DryRun:
    """Dry runs for one preemptor; changes copies of its state and of the nodes only."""

    def __init__(
        self,
        runner: FilterRunner,
        state: CycleState,
        budgets: Sequence[Budget],
        *,
        monotonic: bool = False,
        groups: PodGroups | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        self._runner = runner
        self._state = state
        self._budgets = budgets
        # Whether no filter accepts a node only because of other Pods there, so that several can be put back at once.
        self._monotonic = monotonic
        # The groups whose Pods are evicted together, and the nodes where those are; None if there are no such groups.
        self._groups = groups
        self._snapshot = snapshot or Snapshot()
        # Whether the least important unit was the only victim on the last node that had victims.
        self._is_last_enough = True

    def on(self, node: NodeInfo) -> Candidate | Status:
        """Return the victims on the node, or why the preemptor would not fit without any Pod of lower priority."""
        priority = self._state.pod_info.priority
        if self._groups is None:
            potential = [Unit((pod,), pod.priority) for pod in node.pods.values() if pod.priority < priority]
        else:
            potential = [unit for unit in units_of(node.pods.values(), self._groups) if unit.priority < priority]
        if not potential:
            return _NO_VICTIMS
        potential.sort(key=Unit.importance)
        violating, others = split_by_violation(potential, self._budgets)
        # In the order in which they are put back.
        units = [*(unit for unit, _ in violating), *others]
        victims = self._victims(units, node)
        if isinstance(victims, Status):
            return victims
        if not victims:
            return error(f'expected at least one victim pod on node "{node.name}"')
        # Where fewer Pods are never worse than more, those before the first victim stay whatever their removal frees.
        decisive = units[units.index(victims[0]) :] if self._monotonic else units
        violations = sum(count for unit, count in violating if unit in victims)
        victims.sort(key=Unit.importance)
        return Candidate(node.name, _pods_of(victims), violations, _pods_of(decisive))

    def _victims(self, units: Sequence[Unit], node: NodeInfo) -> list[Unit] | Status:
        """Return the units that cannot be put back, in this order, or why the preemptor does not fit without all."""
        attempt = _Attempt(self._runner, self._state.clone(), node, self._snapshot)
        reprieve = attempt.reprieve_several if self._monotonic else attempt.reprieve_each
        last = [units[-1]]
        if self._monotonic and self._is_last_enough and len(units) > 1:
            attempt.remove(last)
            if attempt.run() is SUCCESS:
                return [] if attempt.fits_with(last) else last
            attempt.remove(units[:-1])
            reprieve = attempt.reprieve_some
        else:
            attempt.remove(units)
        status = attempt.run()
        if status is not SUCCESS:
            return status
        victims = reprieve(units)
        self._is_last_enough = victims == last
        return victims

    def without(self, victims: Sequence[PodInfo], node: NodeInfo) -> tuple[CycleState, NodeInfo]:
        """Return copies of the preemptor's state and of the node without the victims."""
        attempt = _Attempt(self._runner, self._state.clone(), node, self._snapshot)
        return attempt.remove([Unit(tuple(victims), 0)])


class _Attempt:
    """A node with fewer and fewer Pods removed."""

    def __init__(self, runner: FilterRunner, state: CycleState, node: NodeInfo, snapshot: Snapshot) -> None:
        self._runner = runner
        self._state = state
        self._node = node
        self._pods = node.pods
        self._snapshot = snapshot

    def remove(self, units: Sequence[Unit]) -> tuple[CycleState, NodeInfo]:
        here, elsewhere = self._split(units)
        self._node = self._runner.remove_pods(self._state, here, self._node)
        for pod, node in elsewhere:
            self._runner.remove_pods(self._state, (pod,), node)
        return self._state, self._node

    def run(self) -> Status:
        return self._runner.run(self._state, self._node)

    def reprieve_each(self, units: Sequence[Unit]) -> list[Unit]:
        """Put the Pods back one by one, as long as the preemptor still fits; return those that are not."""
        return [unit for unit in units if not self._put_back((unit,))]

    def reprieve_several(self, units: Sequence[Unit]) -> list[Unit]:
        """Do the same in fewer steps: usually the least important Pods alone have to go."""
        return reprieve_several(units, self._put_back)

    def reprieve_some(self, units: Sequence[Unit]) -> list[Unit]:
        """Do the same if it is known that all but the last cannot be put back together."""
        return reprieve_some(units, self._put_back)

    def fits_with(self, units: Sequence[Unit]) -> bool:
        """Put the Pods back, and return whether the preemptor still fits."""
        here, elsewhere = self._split(units)
        self._node = self._runner.add_pods(self._state, here, self._node)
        for pod, node in elsewhere:
            self._runner.add_pods(self._state, (pod,), node.without_pod(pod.uid))
        return self.run() is SUCCESS

    def _put_back(self, units: Sequence[Unit]) -> bool:
        """Put the Pods back, if the preemptor then still fits."""
        if self.fits_with(units):
            return True
        self.remove(units)
        return False

    def _split(self, units: Sequence[Unit]) -> tuple[list[PodInfo], list[tuple[PodInfo, NodeInfo]]]:
        """Return the Pods on the node, and the others with their nodes: they change only what PreFilter knows."""
        here: list[PodInfo] = []
        elsewhere: list[tuple[PodInfo, NodeInfo]] = []
        for unit in units:
            for pod in unit.pods:
                if pod.uid in self._pods:
                    here.append(pod)
                elif (node := self._snapshot.get(pod.pod.spec.node_name or "")) is not None and pod.uid in node.pods:
                    elsewhere.append((pod, node))
        return here, elsewhere


def _pods_of(units: Iterable[Unit]) -> tuple[PodInfo, ...]:
    return tuple([pod for unit in units for pod in unit.pods])


def reprieve_several(units: Sequence[Unit], put_back: Callable[[Sequence[Unit]], bool]) -> list[Unit]:
    """Put back as many units as possible, the first ones first, in few steps; return the others.

    Only if fewer units are never worse than more.
    """
    if len(units) <= 1:
        return [unit for unit in units if not put_back((unit,))]
    if put_back(units[:-1]):
        return reprieve_several(units[-1:], put_back)
    return reprieve_some(units, put_back)


def reprieve_some(units: Sequence[Unit], put_back: Callable[[Sequence[Unit]], bool]) -> list[Unit]:
    """Do the same for several units of which all but the last cannot be put back together."""
    if len(units) <= SINGLY_MAX:
        # What was tried just now is not tried again.
        known = units[:1] if len(units) == 2 else ()  # noqa: PLR2004 - a pair
        return [*known, *(unit for unit in units[len(known) :] if not put_back((unit,)))]
    middle = len(units) // 2
    return reprieve_several(units[:middle], put_back) + reprieve_several(units[middle:], put_back)
