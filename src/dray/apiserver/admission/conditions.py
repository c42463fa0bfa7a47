"""Match conditions of policies and webhooks: expressions that must all be true. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from dray.api.document import Document
from dray.cel.admission import BudgetExhaustedError, CostBudget, Environment, arguments, with_budget
from dray.cel.program import Program

# RuntimeCELCostBudgetMatchConditions of Kubernetes' CEL configuration.
_COST_LIMIT: Final = 2_500_000


class ConditionsError(Exception):
    """No condition is false, but some could not be evaluated."""


class _Condition(msgspec.Struct, frozen=True):
    name: str
    expression: str
    program: Program


class CompiledConditions:
    """The match conditions of a policy or webhook. Raises `CELError` if one does not compile."""

    def __init__(self, conditions: Sequence[Document], environment: Environment) -> None:
        self._conditions: Final = tuple(
            _Condition(
                condition.get("name") or "",
                condition["expression"],
                environment.compile(condition["expression"], authorizer=True),
            )
            for condition in conditions
        )

    def __bool__(self) -> bool:
        return bool(self._conditions)

    def hold(self, values: Mapping[str, Any]) -> bool:
        """Return whether all conditions are true; raises `ConditionsError` if none is false but some fail."""
        if not self._conditions:
            return True
        try:
            holds: bool = with_budget(_COST_LIMIT, partial(self._hold, values))
        except BudgetExhaustedError as error:
            raise ConditionsError(str(error)) from None
        return holds

    def _hold(self, values: Mapping[str, Any], budget: CostBudget) -> bool:
        failures = []
        for condition in self._conditions:
            outcome = budget.run(condition.program, arguments(condition.program, values, None))
            if outcome.error is not None:
                text = f"expression '{condition.expression}' resulted in error: {outcome.error}"
                failures.append(text)
            elif outcome.value is not True:
                return False
        if failures:
            raise ConditionsError(failures[0] if len(failures) == 1 else f"[{', '.join(failures)}]")
        return True
