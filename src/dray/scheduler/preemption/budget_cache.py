"""The disruption budgets of the cluster, with their selectors compiled once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dray.api.codec import to_document
from dray.api.document import NamespacedName
from dray.api.selectors import LabelSelector, SelectorError
from dray.api.types.policy_v1 import PodDisruptionBudget
from dray.client.objects import key_of
from dray.client.resources import POD_DISRUPTION_BUDGETS
from dray.scheduler.preemption.budgets import Budget

if TYPE_CHECKING:
    from dray.client.shared_informers import SharedInformerFactory


class BudgetCache:
    """Follows the informer of budgets."""

    def __init__(self, informers: SharedInformerFactory) -> None:
        self._budgets: dict[NamespacedName, Budget] = {}
        # Grows with each change.
        self.version = 0
        informers.informer(POD_DISRUPTION_BUDGETS).add_handler(self._changed)

    def all(self) -> Sequence[Budget]:
        """Return all budgets, in the order in which they were first observed."""
        return tuple(self._budgets.values())

    def _changed(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        self.version += 1
        if new is not None:
            self._budgets[key_of(new)] = budget_of(new)
        elif old is not None:
            self._budgets.pop(key_of(old), None)


def budget_of(budget: PodDisruptionBudget) -> Budget:
    """Return the part that preemption needs."""
    given = budget.spec.selector
    try:
        selector = None if given is None else LabelSelector.from_document(to_document(given))
    except SelectorError:
        selector = None
    return Budget(
        budget.metadata.namespace or "",
        selector,
        budget.status.disruptions_allowed or 0,
        frozenset(budget.status.disrupted_pods),
    )
