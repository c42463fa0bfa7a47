"""CEL validation rules: compiled from a schema, and evaluated for every object that is written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dray.api.document import Document
from dray.api.field_errors import ErrorType, FieldError, FieldErrors, Path
from dray.api.structural.correlation import MISSING, same
from dray.api.structural.types import RULES
from dray.api.structural.visitors import Visitor, compile_visitor
from dray.cel.environments import (
    RULE_COST_LIMIT,
    RULES_COST_LIMIT,
    CompiledMessage,
    CompiledRule,
    compile_message_expression,
    compile_rule,
)
from dray.cel.errors import CELCostError, CELError, CELRuntimeError
from dray.cel.program import Bounded
from dray.lib import processor_time

_REASONS: Final = {
    "FieldValueInvalid": ErrorType.INVALID,
    "FieldValueForbidden": ErrorType.FORBIDDEN,
    "FieldValueRequired": ErrorType.REQUIRED,
    "FieldValueDuplicate": ErrorType.DUPLICATE,
}
# Those of cheap rules, which check nothing themselves, take about a millisecond.
_EVALUATIONS_UNCHECKED_MAX: Final = 64
_MESSAGE_LENGTH_MAX: Final = 5 * 1024
_FAILED: Final = "validation failed due to "
_OUT_OF_BUDGET: Final = f"{_FAILED}running out of cost budget, no further validation rules will be run"
_UNSHOWN: Final = {ErrorType.INVALID: "Invalid value", ErrorType.DUPLICATE: "Duplicate value"}


@dataclass(frozen=True, slots=True)
class ContainerError(FieldError):
    """An error of an object or list, whose value is not printed."""

    @property
    def body(self) -> str:
        """Return the text without field path and value."""
        head = _UNSHOWN[self.type]
        return f"{head}: {self.detail}" if self.detail else head


class RuleCompileError(Exception):
    """An invalid rule; `field` is the part of it that is invalid."""

    def __init__(self, field: str, error: CELError) -> None:
        super().__init__(str(error))
        self.field = field
        self.error = error


class _BudgetExhaustedError(Exception):
    """No further rules are evaluated for this object."""


class _Balance:
    """What is left for the rules of one object, and whether exact costs are charged."""

    __slots__ = ("exact", "remaining")

    def __init__(self, remaining: int, *, exact: bool) -> None:
        self.remaining = remaining
        self.exact = exact


# Of the object that a request validates. Validation can be suspended while that of other objects runs.
_BALANCE: Final[ContextVar[_Balance]] = ContextVar("balance of rules")


class RuleBudget:
    """The cost that the rules of one object may have together.

    Upper bounds of the costs are summed first. Only if they exceed the budget, all rules are evaluated again with their
    exact costs.
    """

    def __init__(self, limit: int = RULES_COST_LIMIT) -> None:
        self._limit = limit
        self._evaluations = 0

    def run(self, visit: Visitor, value: Any, path: Path, old: Any, errors: FieldErrors) -> None:
        """Visit a value with a new budget."""
        for exact in (False, True):
            found: FieldErrors = []
            token = _BALANCE.set(_Balance(self._limit, exact=exact))
            try:
                visit(value, path, old, found)
            except _BudgetExhaustedError:
                if not exact:
                    continue
            finally:
                _BALANCE.reset(token)
            errors += found
            return

    def evaluate(self, expression: CompiledRule | CompiledMessage, value: Any, previous: Any) -> Bounded:
        """Evaluate an expression and charge its cost; a negative balance means that the budget is exhausted."""
        self._evaluations += 1
        if self._evaluations % _EVALUATIONS_UNCHECKED_MAX == 0:
            processor_time.check()
        values, balance = expression.values(value, previous), _BALANCE.get()
        if balance.exact:
            outcome = Bounded(*expression.program.measure(values))
        else:
            outcome = expression.program.run_bounded(values, RULE_COST_LIMIT)
            if isinstance(outcome.error, CELCostError) or outcome.cost_bound > balance.remaining:
                raise _BudgetExhaustedError
        balance.remaining -= outcome.cost_bound
        return outcome

    @property
    def exhausted(self) -> bool:
        """Whether more was charged than the budget has."""
        return _BALANCE.get().remaining < 0


class Rule:
    """One rule of one schema."""

    def __init__(self, rule: Document, schema: Document, *, is_root: bool, budget: RuleBudget | None = None) -> None:
        self._rule = rule
        self._budget = budget or RuleBudget()
        self._optional_old = bool(rule.get("optionalOldSelf"))
        options = {"optional_old_self": self._optional_old, "is_root": is_root}
        self.program: CompiledRule = _compiled("rule", lambda: compile_rule(rule["rule"], schema, **options))
        self._message: CompiledMessage | None = None
        expression = rule.get("messageExpression")
        if expression:
            self._message = _compiled(
                "messageExpression", lambda: compile_message_expression(expression, schema, **options)
            )
        self._reason = _REASONS.get(rule.get("reason") or "", ErrorType.INVALID)
        self._where = rule_path(schema, rule.get("fieldPath") or "")

    def check(self, value: Any, path: Path, old: Any, errors: FieldErrors) -> None:
        """Evaluate the rule and append its errors."""
        if self.program.uses_old_self and old is MISSING and not self._optional_old:
            # A transition rule does not apply to a new value.
            return
        previous = None if old is MISSING else old
        outcome = self._budget.evaluate(self.program, value, previous)
        if self._budget.exhausted:
            errors.append(_error(ErrorType.INVALID, path, value, _OUT_OF_BUDGET))
            raise _BudgetExhaustedError
        if outcome.error is not None or not isinstance(outcome.value, bool):
            error = outcome.error or CELRuntimeError("no such overload")
            errors.append(_error(ErrorType.INVALID, path, value, self._failure(error)))
            if isinstance(error, CELCostError):
                raise _BudgetExhaustedError
            return
        if outcome.value or (not self.program.uses_old_self and old is not MISSING and same(value, old)):
            return
        place = Path(f"{path.text}.{self._where}".lstrip(".")) if self._where else path
        detail, final = self._detail(value, previous)
        errors.append(_error(self._reason, place, value, detail))
        if final:
            raise _BudgetExhaustedError

    def _detail(self, value: Any, previous: Any) -> tuple[str, bool]:
        """Return the message, and whether no further rules are evaluated."""
        if self._message is not None:
            outcome = self._budget.evaluate(self._message, value, previous)
            if self._budget.exhausted:
                return f"messageExpression evaluation failed due to {_OUT_OF_BUDGET.removeprefix(_FAILED)}", True
            if isinstance(outcome.error, CELCostError):
                limit = "no further validation rules will be run due to call cost exceeds limit for messageExpression"
                return f"{limit}: {json.dumps(self._message.expression, ensure_ascii=False)}", True
            text = outcome.value.strip() if isinstance(outcome.value, str) else ""
            if text and "\n" not in text and len(text) <= _MESSAGE_LENGTH_MAX:
                return text, False
        message = (self._rule.get("message") or "").strip()
        return message or f"failed rule: {self._shown}", False

    def _failure(self, error: CELRuntimeError) -> str:
        if isinstance(error, CELCostError):
            limit = "no further validation rules will be run due to call cost exceeds limit for rule"
            return f"'{error}': {limit}: {self._shown}"
        if str(error).startswith("no such overload"):
            signature = "call arguments did not match a supported operator, function or macro signature for rule"
            return f"'{error}': {signature}: {self._shown}"
        return f"{error} evaluating rule: {self._shown}"

    @property
    def _shown(self) -> str:
        text: str = self._rule.get("message") or self._rule["rule"]
        return text.strip()


def _compiled(field: str, compile_it: Callable[[], Any]) -> Any:
    try:
        return compile_it()
    except CELError as error:
        raise RuleCompileError(field, error) from error


def _error(kind: ErrorType, path: Path, value: Any, detail: str) -> FieldError:
    if isinstance(value, dict | list) and kind in _UNSHOWN:
        return ContainerError(kind, str(path), None, "" if kind is ErrorType.DUPLICATE else detail)
    return FieldError(kind, str(path), value, "" if kind is ErrorType.DUPLICATE else detail)


def compile_rules(schema: Document) -> Visitor | None:
    """Return the visitor that evaluates all rules of a schema; None when it has none."""
    budget = RuleBudget()
    visit = compile_visitor(schema, lambda inner: _node_rules(inner, budget, is_root=inner is schema))
    if visit is None:
        return None
    return partial(budget.run, visit)


def _node_rules(schema: Document, budget: RuleBudget, *, is_root: bool) -> Visitor | None:
    if not schema.get(RULES):
        return None
    rules = [rule for item in schema[RULES] if (rule := _usable(item, schema, budget, is_root=is_root)) is not None]

    def visit(value: Any, path: Path, old: Any, errors: FieldErrors) -> None:
        if value is not None:
            for rule in rules:
                rule.check(value, path, old, errors)

    return visit


def _usable(item: Document, schema: Document, budget: RuleBudget, *, is_root: bool) -> Rule | None:
    try:
        return Rule(item, schema, is_root=is_root, budget=budget)
    except (RuleCompileError, RulePathError):
        # Rejected when the definition is written; of a stored definition the other rules still apply.
        return None


_STEP: Final = re.compile(r"\.(?P<name>[^.\[\]]+)|\['(?P<key>(?:\\.|[^'\\])*)'\]")


class RulePathError(ValueError):
    """A path that does not exist in the schema."""


def rule_path(schema: Document, text: str) -> str:
    """Return the path as field errors print it, relative to the value; empty when none is given."""
    shown = ""
    for name in _steps(text):
        properties = schema.get("properties")
        additional = schema.get("additionalProperties")
        if properties:
            if name not in properties:
                raise RulePathError("does not refer to a valid field")
            schema, shown = properties[name], f"{shown}.{name}"
        elif isinstance(additional, dict):
            schema, shown = additional, f"{shown}[{name}]"
        else:
            raise RulePathError("does not refer to a valid field")
    return shown.lstrip(".")


def _steps(text: str) -> Iterator[str]:
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise RulePathError(f"expected [ or . but got: {text[position:]}")
        yield match["name"] if match["name"] is not None else re.sub(r"\\(.)", r"\1", match["key"])
        position = match.end()
