"""Disruption budgets as preemption sees them: it prefers victims whose eviction violates none. Pure.

Best effort only: preemption does not use the eviction API and charges no budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dray.api.selectors import LabelSelector
from dray.framework.pod_info import PodInfo


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
    pods: Iterable[PodInfo], budgets: Sequence[Budget]
) -> tuple[tuple[PodInfo, ...], tuple[PodInfo, ...]]:
    """Return the Pods whose eviction would violate a budget, if all are evicted in this order, and the others."""
    left = [budget.disruptions_allowed for budget in budgets]
    violating: list[PodInfo] = []
    others: list[PodInfo] = []
    for pod in pods:
        violates = False
        for index, budget in enumerate(budgets):
            if budget.covers(pod):
                left[index] -= 1
                violates = violates or left[index] < 0
        (violating if violates else others).append(pod)
    return tuple(violating), tuple(others)
