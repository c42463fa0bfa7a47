"""Disruption budgets as preemption sees them: it prefers victims whose eviction violates none. Pure.

Best effort only: preemption does not use the eviction API and charges no budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dray.api.selectors import LabelSelector
from dray.framework.pod_info import PodInfo
from dray.scheduler.preemption.units import Unit


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget."""

    namespace: str
    # None if it is absent or invalid: then it matches no Pod.
    selector: LabelSelector | None
    disruptions_allowed: int
    # Names of Pods whose eviction is counted already.
    disrupted_pods: frozenset[str] = frozenset()

    def covers(self, pod: PodInfo) -> bool:
        """Return whether evicting the Pod takes one disruption; a Pod without labels is never covered."""
        labels = pod.pod.metadata.labels
        if not labels or self.selector is None or self.selector.is_everything or pod.key.namespace != self.namespace:
            return False
        return pod.key.name not in self.disrupted_pods and self.selector.matches(labels)


def split_by_violation(
    units: Iterable[Unit], budgets: Sequence[Budget]
) -> tuple[tuple[tuple[Unit, int], ...], tuple[Unit, ...]]:
    """Return the units whose eviction would violate a budget, if all are evicted in this order, and the others.

    The former come with the number of their Pods that violate one.
    """
    if not budgets:
        return (), tuple(units)
    left = [budget.disruptions_allowed for budget in budgets]
    violating: list[tuple[Unit, int]] = []
    others: list[Unit] = []
    for unit in units:
        count = sum(_charge(pod, budgets, left) for pod in unit.pods)
        if count:
            violating.append((unit, count))
        else:
            others.append(unit)
    return tuple(violating), tuple(others)


def _charge(pod: PodInfo, budgets: Sequence[Budget], left: list[int]) -> bool:
    """Take a disruption from the budgets that cover the Pod, up to one that has none left; return whether there is one.

    As in Kubernetes 1.37; 1.36 takes one from the others, too.
    """
    for index, budget in enumerate(budgets):
        if budget.covers(pod):
            left[index] -= 1
            if left[index] < 0:
                return True
    return False
