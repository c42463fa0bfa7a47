"""The exact solver: HiGHS, from the optional extra `dray[plan]`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MISSING: Final = "the exact solver is not installed: pip install 'dray[plan]'"
# Differences below this are rounding.
_TOLERANCE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Column:
    """A pattern: what one node costs, of which site it is, and how many Pods of each kind it holds."""

    site: int
    price: float
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cover:
    """How often each column is used, and what any solution costs at least."""

    uses: tuple[int, ...]
    bound: float
    is_optimal: bool


def is_installed() -> bool:
    """Return whether the solver can be used."""
    return importlib.util.find_spec("highspy") is not None


def solve_cover(
    columns: Sequence[Column], demand: Sequence[int], limits: Sequence[int | None], seconds: float
) -> Cover | None:
    """Return the cheapest columns that hold all Pods, with at most so many of each site; None if there are none.

    Without a solution in that time, the columns are empty.
    """
    import highspy

    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("time_limit", seconds)
    # The same answer on every machine.
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("mip_rel_gap", 0.0)
    total = sum(demand)
    most = [total if limit is None else min(limit, total) for limit in limits]
    variables = [solver.addIntegral(lb=0, ub=most[column.site], obj=column.price) for column in columns]
    for kind, count in enumerate(demand):
        terms = [
            column.counts[kind] * variable
            for column, variable in zip(columns, variables, strict=True)
            if column.counts[kind]
        ]
        if count and not terms:
            return None
        if count:
            solver.addConstr(sum(terms) >= count)
    for site, limit in enumerate(limits):
        own = [variable for column, variable in zip(columns, variables, strict=True) if column.site == site]
        if limit is not None and own:
            solver.addConstr(sum(own) <= limit)
    solver.minimize()
    status, info = solver.getModelStatus(), solver.getInfo()
    if status == highspy.HighsModelStatus.kInfeasible:
        return None
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Cover((), 0.0, is_optimal=False)
    values = solver.getSolution().col_value
    uses = tuple(round(values[variable.index]) for variable in variables)
    is_optimal = status == highspy.HighsModelStatus.kOptimal
    bound = info.objective_function_value if is_optimal else max(info.mip_dual_bound, 0.0)
    return Cover(uses, bound - _TOLERANCE if bound > _TOLERANCE else 0.0, is_optimal)
