"""Rules of one definition that are evaluated for two objects at once."""

from __future__ import annotations

import asyncio
from typing import Any

from dray.api.field_errors import FieldErrors, Path
from dray.api.structural.correlation import MISSING
from dray.apiserver.custom.rules import Rule, RuleBudget
from dray.lib.processor_time import StepMeter, metered
from dray.runtime.suspendable import run_in_steps, suspend

SCHEMA: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}
NUMBERS = 2000
# Of one evaluation: see SP-42.
COST = 5 * NUMBERS + 6


async def validated(budget: RuleBudget, evaluations: int) -> FieldErrors:
    rule = Rule({"rule": "self.all(x, x >= 0)"}, SCHEMA, is_root=False, budget=budget)

    def visit(value: Any, path: Path, old: Any, errors: FieldErrors) -> None:
        for _ in range(evaluations):
            rule.check(value, path, old, errors)

    async def validate() -> FieldErrors:
        errors: FieldErrors = []
        budget.run(visit, [*range(NUMBERS)], Path(), MISSING, errors)
        return errors

    readings = iter(range(10**9))
    # Suspended at every check.
    meter = StepMeter(
        lambda: float(next(readings)),
        lambda: 0.0,
        lambda: suspend(lambda: asyncio.sleep(0)),
        lambda function: (function(), 0.0),
        slice_seconds=1.0,
        expression_seconds=1e9,
    )
    with metered(meter):
        return await run_in_steps(validate(), meter.begin, meter.end)


async def test_the_budget_of_an_object_is_its_own() -> None:
    """Of two objects whose rules cost two thirds of the budget each, neither exceeds it."""
    budget = RuleBudget(6 * COST)
    results = await asyncio.gather(validated(budget, 4), validated(budget, 4), validated(budget, 7))
    assert results[:2] == [[], []]
    assert "running out of cost budget" in str(results[2][-1])
