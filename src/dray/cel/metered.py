"""Evaluation that charges exactly what Kubernetes charges at run time.

Generated code charges at least that much, which is enough while a limit is far away. Only when a limit may have been
exceeded does this slower evaluation decide. It follows cel-go's planner: constants are folded and cost nothing; a
variable with its fields and indices is one attribute that costs one, and one for each step; an error is a value, so
that operands beside it are evaluated and charged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from dray.cel import control, runtime, tree
from dray.cel.actual_costs import cost_of
from dray.cel.checker import Checked
from dray.cel.cost import LIST_COST, MAP_COST
from dray.cel.errors import FATAL, CELCostError, CELInterruptedError, CELRuntimeError
from dray.cel.folds import Fold, Scope, constant_scope, failed
from dray.cel.runtime import FAILURES
from dray.cel.signatures import Dispatcher, Overload
from dray.cel.tree import Bind, Call, Comprehension, Ident, ListNode, Literal, MapNode, Node, OptionalMap, Select
from dray.cel.types import Kind
from dray.cel.values import NONE, Budget, Optional

# Work that costs nothing in Kubernetes' model, such as comparing nested lists, has a limit of its own.
_WORK_MAX: Final = 200_000
# Conversions of constants, which are folded.
_CONVERSIONS: Final = frozenset(
    {"bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"}
)
_BINARY: Final = 2
_NO_OVERLOAD: Final = "no such overload"
# Calls that are part of an attribute.
_STEPS: Final = frozenset({tree.INDEX, tree.OPTIONAL_INDEX, tree.CONDITIONAL})


class Measured(NamedTuple):
    """The outcome of an evaluation: a value or an error, and its cost."""

    value: Any
    error: CELRuntimeError | None
    cost: int

    def result(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


def measure(
    checked: Checked, values: Sequence[Any], cost_limit: int, interrupt: Callable[[], bool] | None = None
) -> Measured:
    """Evaluate with the variables in the order of their declaration.

    The cost of an evaluation that was cancelled for its cost is above the limit.
    """
    budget = Budget(cost_limit, interrupt)
    evaluator = _Evaluator(checked, budget, Budget(_WORK_MAX, interrupt))
    scope = constant_scope(checked.variables, values)
    try:
        value = evaluator.evaluate(checked.root, scope)
    except CELCostError as error:
        return Measured(None, error, max(cost_limit - budget.remaining, cost_limit + 1))
    except CELInterruptedError as error:
        return Measured(None, error, cost_limit - budget.remaining)
    except RecursionError:
        value = CELRuntimeError(_NO_OVERLOAD)
    cost = cost_limit - budget.remaining
    return Measured(None, value, cost) if isinstance(value, CELRuntimeError) else Measured(value, None, cost)


class _Attribute(NamedTuple):
    """A variable or computed value, and the fields and indices that follow."""

    base: Node
    steps: tuple[Select | Call, ...]


def _attribute_of(node: Node) -> _Attribute:
    steps: list[Select | Call] = []
    while True:
        if isinstance(node, Select):
            steps.append(node)
            node = node.operand
        elif isinstance(node, Call) and node.function in (tree.INDEX, tree.OPTIONAL_INDEX):
            steps.append(node)
            node = node.args[0]
        else:
            return _Attribute(node, tuple(reversed(steps)))


class _Evaluator:
    def __init__(self, checked: Checked, costs: Budget, work: Budget) -> None:
        self._checked = checked
        self._charge = costs.spend
        self._work = work
        self._folded: dict[Node, Optional] = {}
        self._dispatchers: dict[Node, Dispatcher] = {}
        self._attributes: dict[Node, _Attribute] = {}
        self._visitors: dict[type, Callable[[Any, Scope], Any]] = {
            ListNode: self._aggregate,
            MapNode: self._aggregate,
            Comprehension: lambda node, scope: Fold(self, node, self._charge).run(scope),
            Bind: self._bind,
            OptionalMap: self._optional_map,
        }

    def evaluate(self, node: Node, scope: Scope) -> Any:
        """Return the value of a node, or an error as a value."""
        constant = self._folded.get(node)
        if constant is None:
            constant = self.constant(node)
        if constant.present:
            return constant.value
        kind = type(node)
        if kind is Ident:
            value = scope[node.name]()  # type: ignore[union-attr]
            self._charge(1)
            return value
        visitor = self._visitors.get(kind)
        if visitor is not None:
            return visitor(node, scope)
        if kind is Call and node.function not in _STEPS:  # type: ignore[union-attr]
            return self._call(node, scope)  # type: ignore[arg-type]
        return self._attribute(node, scope, observed=True)

    def _bind(self, node: Bind, scope: Scope) -> Any:
        return self.evaluate(node.body, {**scope, node.name: self._lazy(node.value, scope)})

    # --- Constants.

    def constant(self, node: Node) -> Optional:
        """Return the value of a constant node, which costs nothing."""
        found = self._folded.get(node)
        if found is None:
            found = Optional(node.value) if isinstance(node, Literal) else self._fold(node)
            self._folded[node] = found
        return found

    def _fold(self, node: Node) -> Optional:
        named = self._checked.type_values.get(node)
        if named is not None:
            return Optional(named)
        if isinstance(node, ListNode):
            values = [self.constant(element) for element, _ in node.elements]
            optional = any(optional for _, optional in node.elements)
            return NONE if optional else _all_of(values, lambda found: found)
        if isinstance(node, MapNode):
            parts = [self.constant(part) for key, value, _ in node.entries for part in (key, value)]
            if any(optional for _, _, optional in node.entries):
                return NONE
            return _all_of(parts, lambda found: _map(zip(found[::2], found[1::2], strict=True)))
        return self._fold_call(node) if isinstance(node, Call) and node.target is None else NONE

    def _fold_call(self, node: Call) -> Optional:
        if node.function in _CONVERSIONS and len(node.args) == 1:
            given = self.constant(node.args[0])
            if given.present:
                value = self._apply(node, [given.value])
                return NONE if failed(value) else Optional(value)
        if node.function == tree.IN:
            values = self.constant(node.args[1])
            if values.present and values.value == []:
                return Optional(value=False)
        return NONE

    # --- Attributes.

    def _attribute(self, node: Node, scope: Scope, *, observed: bool) -> Any:
        """Evaluate a variable or value with its fields and indices; one that is not observed costs only its steps."""
        base, steps = self._plan(node)
        tests = bool(steps) and isinstance(steps[-1], Select) and steps[-1].test
        value, conditional = self._base(base, steps, scope)
        for step in steps:
            if failed(value):
                break
            value = self._step(step, value, scope)
        if observed and not conditional and not tests:
            self._charge(1)
        return value

    def _plan(self, node: Node) -> _Attribute:
        found = self._attributes.get(node)
        if found is None:
            found = self._attributes[node] = _attribute_of(node)
        return found

    def _base(self, base: Node, steps: Sequence[Node], scope: Scope) -> tuple[Any, bool]:
        constant = self.constant(base)
        if constant.present:
            return constant.value, not steps
        if isinstance(base, Ident):
            return self._guarded(scope[base.name]), False
        if isinstance(base, Call) and base.function == tree.CONDITIONAL:
            return self._conditional(base, scope), True
        return self.evaluate(base, scope), False

    def _conditional(self, node: Call, scope: Scope) -> Any:
        condition, truthy, falsy = node.args
        chosen = self.evaluate(condition, scope)
        if failed(chosen):
            return chosen
        if chosen is not True and chosen is not False:
            return CELRuntimeError(_NO_OVERLOAD)
        return self.branch(truthy if chosen else falsy, scope)

    def branch(self, node: Node, scope: Scope) -> Any:
        """Evaluate an operand that is part of another attribute: a variable itself costs nothing there."""
        base, steps = self._plan(node)
        conditional = isinstance(base, Call) and base.function == tree.CONDITIONAL
        if steps or conditional or isinstance(base, Ident):
            return self._attribute(node, scope, observed=False)
        return self.evaluate(node, scope)

    def _step(self, step: Select | Call, value: Any, scope: Scope) -> Any:
        if isinstance(step, Select):
            found = self._guarded(lambda: self._field(step, value))
            optional = step.optional
        else:
            key = self.branch(step.args[1], scope)
            optional = step.function == tree.OPTIONAL_INDEX
            index = runtime.optional_index if optional else runtime.index
            found = key if failed(key) else self._guarded(lambda: index(value, key))
        # An optional step to what is not there is free.
        self._charge(0 if optional and found is NONE else 1)
        return found

    def _field(self, node: Select, value: Any) -> Any:
        given = self._checked.types[node.operand]
        declared = given.fields.get(node.field) if given.kind is Kind.OBJECT else None
        name = node.field if declared is None else declared.key
        if given.kind is Kind.OBJECT and given.by_attribute and not isinstance(value, Optional):
            if node.test:
                return True
            found = getattr(value, name)
            return Optional(found) if node.optional else found
        if node.test:
            return runtime.has(value, name)
        return runtime.optional_select(value, name) if node.optional else runtime.select(value, name)

    # --- Calls.

    def _call(self, node: Call, scope: Scope) -> Any:
        if node.function in (tree.AND, tree.OR):
            return self._logical(node, scope)
        namespaced = node in self._checked.namespaced
        inputs = [node.target, *node.args] if node.target is not None and not namespaced else list(node.args)
        if node.function in ("or", "orValue") and node.target is not None:
            return self._alternative(node.function, inputs[0], inputs[1], scope)
        if node.function == tree.IN and self._is_set(inputs[1]):
            # Membership in a constant list of plain values is a lookup.
            element = self.evaluate(inputs[0], scope)
            return element if failed(element) else self._apply(node, [element, self.constant(inputs[1]).value])
        args: list[Any] = []
        for given in inputs:
            args.append(self.evaluate(given, scope))
            if len(inputs) > _BINARY and failed(args[-1]):
                # With more than two arguments, the rest is not evaluated, nor is the call charged.
                return args[-1]
        error = next((value for value in args if failed(value)), None)
        result = self._apply(node, args) if error is None else error
        self._charge_call(node, args, result)
        return result

    def _is_set(self, node: Node) -> bool:
        found = self.constant(node)
        plain = (bool, int, float, str, type(None))
        return found.present and isinstance(found.value, list) and all(isinstance(v, plain) for v in found.value)

    def _charge_call(self, node: Call, args: Sequence[Any], result: Any) -> None:
        overload = self._overload(node, args)
        function = self._checked.namespaced.get(node, node.function)
        self._charge(1 if overload is None else cost_of(function)(overload, args, None if failed(result) else result))

    def _overload(self, node: Call, args: Sequence[Any]) -> Overload | None:
        candidates = self._checked.overloads[node]
        if len(candidates) == 1 or any(map(failed, args)):
            return candidates[0]
        return self._dispatcher(node).find(tuple(map(type, args)))

    def _dispatcher(self, node: Call) -> Dispatcher:
        found = self._dispatchers.get(node)
        if found is None:
            found = Dispatcher(node.function, self._checked.overloads[node], budgeted=True)
            self._dispatchers[node] = found
        return found

    def _apply(self, node: Call, args: Sequence[Any]) -> Any:
        return self._guarded(lambda: self._dispatcher(node)(self._work, *args))

    def _guarded(self, compute: Callable[[], Any]) -> Any:
        try:
            return compute()
        except FATAL:
            raise
        except CELRuntimeError as error:
            return error
        except FAILURES:
            return CELRuntimeError(_NO_OVERLOAD)

    def _logical(self, node: Call, scope: Scope) -> Any:
        absorbing = node.function == tree.OR
        error: CELRuntimeError | None = None
        for term in node.args:
            value = self.evaluate(term, scope)
            if value is absorbing:
                return absorbing
            if value is not (not absorbing):
                error = error or (value if failed(value) else CELRuntimeError(_NO_OVERLOAD))
        return not absorbing if error is None else error

    def _alternative(self, function: str, first: Node, second: Node, scope: Scope) -> Any:
        value = self.evaluate(first, scope)
        if failed(value):
            return value
        if not isinstance(value, Optional):
            return CELRuntimeError(_NO_OVERLOAD)
        if value.present:
            return value if function == "or" else value.value
        return self.evaluate(second, scope)

    # --- Aggregates and bindings.

    def _aggregate(self, node: ListNode | MapNode, scope: Scope) -> Any:
        if isinstance(node, ListNode):
            nodes = [element for element, _ in node.elements]
        else:
            nodes = [part for key, value, _ in node.entries for part in (key, value)]
        values: list[Any] = []
        for part in nodes:
            values.append(self.evaluate(part, scope))
            if failed(values[-1]):
                break
        self._charge(LIST_COST if isinstance(node, ListNode) else MAP_COST)
        if values and failed(values[-1]):
            return values[-1]
        return self._guarded(lambda: _built(node, values))

    def _lazy(self, node: Node, scope: Scope) -> Callable[[], Any]:
        return control.Lazy(lambda: self.evaluate(node, scope)).get

    def _optional_map(self, node: OptionalMap, scope: Scope) -> Any:
        target = self.evaluate(node.target, scope)
        self._charge(1)
        if failed(target):
            return target
        if not isinstance(target, Optional):
            return CELRuntimeError(_NO_OVERLOAD)
        if not target.present:
            self._charge(1)
            return NONE

        def held() -> Any:
            # The macro evaluates its target again to read the value.
            again = self.evaluate(node.target, scope)
            self._charge(1)
            return again.value if isinstance(again, Optional) else again

        made = self.evaluate(node.body, {**scope, node.name: control.Lazy(held).get})
        if node.flat:
            return made if failed(made) or isinstance(made, Optional) else CELRuntimeError(_NO_OVERLOAD)
        self._charge(1)
        return made if failed(made) else Optional(made)


def _all_of(values: Sequence[Optional], build: Callable[[list[Any]], Any]) -> Optional:
    if not all(value.present for value in values):
        return NONE
    try:
        return Optional(build([value.value for value in values]))
    except CELRuntimeError:
        return NONE


def _map(entries: Iterator[tuple[Any, Any]]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for key, value in entries:
        runtime.put(made, key, value)
    return made


def _built(node: ListNode | MapNode, values: Sequence[Any]) -> Any:
    if isinstance(node, ListNode):
        optional = [optional for _, optional in node.elements]
        return runtime.optional_elements(*zip(values, optional, strict=True))
    entries = zip(values[::2], values[1::2], (optional for _, _, optional in node.entries), strict=True)
    return runtime.make_map(*entries)
