"""Macros with the costs of the loops that they stand for in cel-go: accumulator, loop condition, step and result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from dray.cel import control
from dray.cel.cost import LIST_COST
from dray.cel.errors import CELRuntimeError
from dray.cel.tree import Comprehension, Macro, Node
from dray.cel.values import NONE, Budget, Optional

# A variable is looked up by a function, because bound values are computed on first use.
Scope: TypeAlias = Mapping[str, Callable[[], Any]]

_NO_OVERLOAD: Final = "no such overload"


def failed(value: Any) -> bool:
    """Report whether a value is an error."""
    return isinstance(value, CELRuntimeError)


def constant_scope(names: Iterable[str], values: Iterable[Any]) -> Scope:
    """Return the scope of variables with these values."""
    return {name: partial(_identity, value) for name, value in zip(names, values, strict=True)}


def _identity(value: Any) -> Any:
    return value


class Evaluator(Protocol):
    """Evaluates the parts of a macro."""

    def evaluate(self, node: Node, scope: Scope) -> Any:
        """Return the value of a node, or an error as a value."""

    def constant(self, node: Node) -> Optional:
        """Return the value of a constant node, which costs nothing."""


class Fold:
    """One macro: the loop that it stands for, with the costs of its accumulator, condition and step."""

    def __init__(self, evaluator: Evaluator, node: Comprehension, charge: Callable[[int], None]) -> None:
        self._evaluator = evaluator
        self._node = node
        self._charge = charge

    def run(self, scope: Scope) -> Any:
        """Return the result, or an error."""
        values = self._evaluator.evaluate(self._node.range, scope)
        if failed(values):
            return values
        try:
            steps = list(self._steps(values))
        except CELRuntimeError as error:
            return error
        if self._node.macro in (Macro.ALL, Macro.EXISTS):
            result = self._decide(steps, scope)
        elif self._node.macro is Macro.EXISTS_ONE:
            result = self._count(steps, scope)
        else:
            result = self._collect(steps, scope)
        # The accumulator is read once more for the result.
        self._charge(1)
        return result

    def _steps(self, values: Any) -> Iterator[tuple[Any, ...]]:
        unlimited = Budget(0)
        if len(self._node.variables) == 1:
            return ((value,) for value in control.iterate(unlimited, 0, values))
        return control.iterate_pairs(unlimited, 0, values)

    def _within(self, scope: Scope, values: tuple[Any, ...]) -> Scope:
        return {**scope, **constant_scope(self._node.variables, values)}

    def _decide(self, steps: list[tuple[Any, ...]], scope: Scope) -> Any:
        condition = self._node.condition
        assert condition is not None
        deciding = self._node.macro is Macro.EXISTS
        accumulator: Any = not deciding
        for values in steps:
            # Reading the accumulator, negating it for `exists`, and testing it.
            self._charge(3 if deciding else 2)
            if accumulator is deciding:
                return accumulator
            self._charge(1)
            outcome = self._evaluator.evaluate(condition, self._within(scope, values))
            if outcome is deciding:
                accumulator = outcome
            elif outcome is not (not deciding):
                accumulator = outcome if failed(outcome) else CELRuntimeError(_NO_OVERLOAD)
        return accumulator

    def _condition(self, scope: Scope) -> Any:
        """Return whether an element is taken, or an error."""
        if self._node.condition is None:
            return True
        outcome = self._evaluator.evaluate(self._node.condition, scope)
        if outcome is True or outcome is False or failed(outcome):
            return outcome
        return CELRuntimeError(_NO_OVERLOAD)

    def _count(self, steps: list[tuple[Any, ...]], scope: Scope) -> Any:
        total: Any = 0
        for values in steps:
            outcome = self._condition(self._within(scope, values))
            if failed(outcome):
                total = outcome
            elif outcome:
                # The accumulator and the addition.
                self._charge(2)
                total = total if failed(total) else total + 1
        self._charge(1)
        return total if failed(total) else total == 1

    def _collect(self, steps: list[tuple[Any, ...]], scope: Scope) -> Any:
        error: CELRuntimeError | None = None
        collected: list[Any] = []
        for values in steps:
            inner = self._within(scope, values)
            outcome = self._condition(inner)
            if failed(outcome):
                error = outcome
            elif outcome:
                made = self._transformed(inner, is_failed=error is not None)
                if failed(made):
                    error = error or made
                collected.append((values[0], made))
        return self._result(collected) if error is None else error

    def _transformed(self, scope: Scope, *, is_failed: bool) -> Any:
        """Return what an element contributes, and charge for adding it to the accumulator."""
        node, evaluator = self._node, self._evaluator
        self._charge(1)
        if node.macro is Macro.TRANSFORM_MAP:
            if is_failed:
                return NONE
            self._charge(1)
        elif node.macro is not Macro.TRANSFORM_MAP_ENTRY:
            # The list of one element that is appended, unless it is constant.
            constant = node.transform is not None and evaluator.constant(node.transform).present
            self._charge(0 if constant else LIST_COST)
        if node.transform is None:
            self._charge(1)
            made = scope[node.variables[0]]()
        else:
            made = evaluator.evaluate(node.transform, scope)
        if node.macro is Macro.TRANSFORM_MAP and failed(made):
            return made
        self._charge(1)
        return made

    def _result(self, collected: list[tuple[Any, Any]]) -> Any:
        macro = self._node.macro
        try:
            if macro is Macro.TRANSFORM_MAP:
                return control.collect_map(iter(collected))
            if macro is Macro.TRANSFORM_MAP_ENTRY:
                return control.merge_entries(made for _, made in collected)
        except CELRuntimeError as error:
            return error
        return [made for _, made in collected]
