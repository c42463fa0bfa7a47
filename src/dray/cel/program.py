"""Compilation and evaluation of expressions, for all environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dray.cel.checker import Checked, check
from dray.cel.codegen import Compiled, generate
from dray.cel.cost import DeclaredSizes, estimate, static_cost
from dray.cel.errors import FATAL, CELCostError, CELError, CELInterruptedError, CELRuntimeError, Issue
from dray.cel.function_costs import Range
from dray.cel.library import formats, kubernetes, lists, network, optionals, standard, strings
from dray.cel.literals import check_literals
from dray.cel.metered import Measured, measure
from dray.cel.parser import parse
from dray.cel.runtime import FAILURES
from dray.cel.signatures import Registry
from dray.cel.tree import DEPTH_MAX, Ident, Node, OptionalMap, walk
from dray.cel.types import Type
from dray.cel.values import Budget
from dray.lib import processor_time
from dray.lib.processor_time import expression_limit

EXPRESSION_BYTES_MAX: Final = 10 * 1024
COST_LIMIT: Final = 1_000_000

Interrupt = Callable[[], bool]

STANDARD: Final = standard.REGISTRY.merged(
    strings.REGISTRY,
    lists.REGISTRY,
    optionals.REGISTRY,
    kubernetes.REGISTRY,
    network.REGISTRY,
    formats.REGISTRY,
)


class Bounded(NamedTuple):
    """The outcome of an evaluation: a value or an error, and an upper bound of its cost."""

    value: Any
    error: CELRuntimeError | None
    cost_bound: int


class PlainFunction(NamedTuple):
    """A strict function that takes None for the budget, and its highest cost."""

    function: Callable[..., Any]
    bound: int


class Program:
    """A compiled expression; immutable and reusable."""

    __slots__ = (
        "_careful",
        "_checked",
        "_declared",
        "_doublings",
        "_estimate",
        "_static_cost",
        "_strict",
        "inputs",
        "plain",
    )

    def __init__(self, checked: Checked, declared: DeclaredSizes) -> None:
        self._checked = checked
        self._declared = declared
        self._static_cost = static_cost(checked, checked.root)
        self._strict = generate(checked, careful=False)
        # Compiled on the first failure: most expressions never need it.
        self._careful: Compiled | None = None
        self._estimate: Range | None = None
        # Kubernetes evaluates the target of optMap twice, generated code once.
        self._doublings = sum(isinstance(node, OptionalMap) for node in walk(checked.root))
        used = {node.name for node in walk(checked.root) if isinstance(node, Ident)}
        bound = self._static_cost << self._doublings
        countless = not self._strict.uses_budget and bound <= COST_LIMIT
        # The strict function and its highest cost, if that does not depend on values.
        self.plain: Final = PlainFunction(self._strict.function, bound) if countless else None
        # The variables in the order of their declaration; None for those that the expression does not use.
        self.inputs: Final = tuple(name if name in used else None for name in checked.variables)

    @property
    def source(self) -> str:
        """Return the source text."""
        return self._checked.source

    @property
    def root(self) -> Node:
        """Return the parsed expression."""
        return self._checked.root

    @property
    def checked(self) -> Checked:
        """Return the checked expression."""
        return self._checked

    @property
    def result_type(self) -> Type:
        """Return the type of the result."""
        return self._checked.result_type

    @property
    def estimated_costs(self) -> Range:
        """Return the minimum and maximum cost of an evaluation."""
        if self._estimate is None:
            self._estimate = estimate(self._checked, self._declared)
        return self._estimate

    @property
    def estimated_cost(self) -> int:
        """Return the maximum cost of an evaluation."""
        return self.estimated_costs.most

    def uncounted(self, cost_limit: int) -> Callable[..., Any] | None:
        """Return the plain strict function, if nothing has to be counted at run time and the cost fits the limit."""
        return None if self._strict.uses_budget or self._static_cost > cost_limit else self._strict.function

    def run(self, *values: Any, cost_limit: int = COST_LIMIT, interrupt: Interrupt | None = None) -> Any:
        """Evaluate with the variables in the order of their declaration."""
        strict = self._strict
        try:
            if strict.uses_budget or interrupt is not None:
                return strict.function(self._budget(cost_limit, interrupt), *values)
            if self._static_cost > cost_limit:
                return self.measure(values, cost_limit, interrupt).result()
            return strict.function(None, *values)
        except CELCostError:
            return self.measure(values, cost_limit, interrupt).result()
        except FATAL:
            raise
        except FAILURES:
            return self._run_carefully(values, cost_limit, interrupt)

    def run_bounded(self, values: Sequence[Any], cost_limit: int, interrupt: Interrupt | None = None) -> Bounded:
        """Evaluate, and return an upper bound of the cost as well; `measure` has the exact cost."""
        if self._static_cost << self._doublings > cost_limit:
            return Bounded(None, CELCostError(), cost_limit + 1)
        strict = self._strict
        budget = self._budget(cost_limit, interrupt) if strict.uses_budget or interrupt is not None else None
        try:
            value = strict.function(budget, *values)
        except CELCostError as error:
            return Bounded(None, error, cost_limit + 1)
        except CELInterruptedError as error:
            # Only a budget is interrupted.
            return Bounded(None, error, 0 if budget is None else self._spent(budget, cost_limit))
        except FAILURES:
            # What stands beside an error is evaluated and charged as well, which generated code does not do.
            return Bounded(*self.measure(values, cost_limit, interrupt))
        bound = self._static_cost << self._doublings if budget is None else self._spent(budget, cost_limit)
        return Bounded(value, None, bound)

    def measure(
        self, values: Sequence[Any], cost_limit: int = COST_LIMIT, interrupt: Interrupt | None = None
    ) -> Measured:
        """Evaluate slowly, and return the exact cost as well."""
        return measure(self._checked, values, cost_limit, interrupt or expression_limit())

    def evaluate(
        self, variables: Mapping[str, Any], *, cost_limit: int = COST_LIMIT, interrupt: Interrupt | None = None
    ) -> Any:
        """Evaluate with variables by name."""
        try:
            values = [variables[name] for name in self._checked.variables]
        except KeyError as error:
            raise CELRuntimeError(f"no such attribute(s): {error.args[0]}") from None
        return self.run(*values, cost_limit=cost_limit, interrupt=interrupt)

    def _budget(self, cost_limit: int, interrupt: Interrupt | None) -> Budget:
        budget = Budget(cost_limit >> self._doublings, interrupt or expression_limit())
        budget.spend(self._static_cost)
        return budget

    def _spent(self, budget: Budget, cost_limit: int) -> int:
        return ((cost_limit >> self._doublings) - budget.remaining) << self._doublings

    def _run_carefully(self, values: tuple[Any, ...], cost_limit: int, interrupt: Interrupt | None) -> Any:
        try:
            return self._careful_result(values, self._budget(cost_limit, interrupt))
        except CELCostError:
            return self.measure(values, cost_limit, interrupt).result()

    def _careful_result(self, values: Sequence[Any], budget: Budget) -> Any:
        if self._careful is None:
            self._careful = generate(self._checked, careful=True)
        try:
            return self._careful.function(budget, *values)
        except CELRuntimeError:
            raise
        except FAILURES:
            raise CELRuntimeError("no such overload") from None


def compile_program(
    expression: str,
    variables: Mapping[str, Type] | None = None,
    *,
    registry: Registry = STANDARD,
    homogeneous: bool = True,
    schema: Type | None = None,
) -> Program:
    """Parse, check and compile an expression over typed variables; raises one error with all issues.

    `homogeneous` rejects literals of mixed types, as Kubernetes does. `schema` bounds all values of
    a rule for custom resources.
    """
    if len(expression.encode("utf-8", "surrogatepass")) > EXPRESSION_BYTES_MAX:
        raise CELError(
            "ERROR: <input>:-1:0: expression code point size exceeds limit: "
            f"size: {len(expression)}, limit {EXPRESSION_BYTES_MAX}"
        )
    # A policy may have hundreds of expressions.
    processor_time.check()
    root = parse(expression)
    checked = check(expression, root, registry, variables or {}, homogeneous=homogeneous)
    try:
        check_literals(checked)
        return Program(checked, DeclaredSizes(variables or {}, schema))
    except (RecursionError, MemoryError):
        raise CELError.of(expression, [Issue(0, f"expression recursion limit exceeded: {DEPTH_MAX}")]) from None
