"""The dry run of preemption on one node: which Pods of lower priority would have to go. Pure.

All Pods of lower priority are removed; if the preemptor then fits, they are put back one by one, the most important
first, as long as it still fits. Those that cannot be put back are the victims.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Final

from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, Status, error, unresolvable
from dray.scheduler.filter_runner import FilterRunner
from dray.scheduler.preemption.budgets import Budget, split_by_violation

NO_VICTIMS: Final = "No preemption victims found for incoming pod"
_NO_VICTIMS: Final = unresolvable(NO_VICTIMS)
# Added to a priority, so that more victims never have a lower sum.
_PRIORITY_OFFSET: Final = 1 << 31


@dataclass(frozen=True)
class Candidate:
    """A node where the preemptor fits without the victims."""

    node_name: str
    # The most important first.
    victims: tuple[PodInfo, ...]
    # The number of victims whose eviction violates a disruption budget.
    violations: int = 0

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
    def earliest_start(self) -> datetime | None:
        """Return when the first of the most important victims was started; None if none was."""
        highest = self.victims[0].priority
        started = [pod.pod.status.start_time for pod in self.victims if pod.priority == highest]
        return min((start for start in started if start is not None), default=None)


class DryRun:
    """Dry runs for one preemptor; changes copies of its state and of the nodes only."""

    def __init__(
        self,
        runner: FilterRunner,
        state: CycleState,
        budgets: Sequence[Budget],
        now: datetime,
        *,
        monotonic: bool = False,
    ) -> None:
        self._runner = runner
        self._state = state
        self._budgets = budgets
        self._now = now
        # Whether no filter accepts a node only because of other Pods there, so that several can be put back at once.
        self._monotonic = monotonic

    def on(self, node: NodeInfo) -> Candidate | Status:
        """Return the victims on the node, or why the preemptor would not fit without any Pod of lower priority."""
        potential = [pod for pod in node.pods.values() if pod.priority < self._state.pod_info.priority]
        if not potential:
            return _NO_VICTIMS
        potential.sort(key=self.importance)
        attempt = _Attempt(self._runner, self._state.clone(), node)
        attempt.remove(potential)
        status = attempt.run()
        if status is not SUCCESS:
            return status
        violating, others = split_by_violation(potential, self._budgets)
        reprieve = attempt.reprieve_several if self._monotonic else attempt.reprieve_each
        victims = reprieve(violating)
        violations = len(victims)
        victims += reprieve(others)
        if not victims:
            return error(f'expected at least one victim pod on node "{node.name}"')
        victims.sort(key=self.importance)
        return Candidate(node.name, tuple(victims), violations)

    def without(self, victims: Sequence[PodInfo], node: NodeInfo) -> tuple[CycleState, NodeInfo]:
        """Return copies of the preemptor's state and of the node without the victims."""
        state = self._state.clone()
        return state, self._runner.remove_pods(state, victims, node)

    def importance(self, pod: PodInfo) -> tuple[int, datetime]:
        """Return the key by which Pods are ordered, the most important first."""
        return -pod.priority, start_time(pod, self._now)


class _Attempt:
    """A node with fewer and fewer Pods removed."""

    def __init__(self, runner: FilterRunner, state: CycleState, node: NodeInfo) -> None:
        self._runner = runner
        self._state = state
        self._node = node

    def remove(self, pods: Sequence[PodInfo]) -> None:
        self._node = self._runner.remove_pods(self._state, pods, self._node)

    def run(self) -> Status:
        return self._runner.run(self._state, self._node)

    def reprieve_each(self, pods: Sequence[PodInfo]) -> list[PodInfo]:
        """Put the Pods back one by one, as long as the preemptor still fits; return those that are not."""
        return [pod for pod in pods if not self._put_back((pod,))]

    def reprieve_several(self, pods: Sequence[PodInfo]) -> list[PodInfo]:
        """Do the same in fewer steps: usually the least important Pods alone have to go."""
        if len(pods) <= 1:
            return self.reprieve_each(pods)
        if self._put_back(pods[:-1]):
            return self.reprieve_each(pods[-1:])
        middle = len(pods) // 2
        return self.reprieve_several(pods[:middle]) + self.reprieve_several(pods[middle:])

    def _put_back(self, pods: Sequence[PodInfo]) -> bool:
        """Put the Pods back, if the preemptor then still fits."""
        self._node = self._runner.add_pods(self._state, pods, self._node)
        if self.run() is SUCCESS:
            return True
        self.remove(pods)
        return False


def start_time(pod: PodInfo, now: datetime) -> datetime:
    """Return when the Pod was started; one that has not started counts as started now."""
    return pod.pod.status.start_time or now
