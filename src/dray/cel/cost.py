"""Cost estimation: cel-go's cost model with Kubernetes' function costs.

Costs are (least, most) pairs of abstract units, capped at the largest uint64. At run time, costs that depend on sizes
are charged where they occur, all other costs in advance for a whole block of code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from dray.cel import tree
from dray.cel.checker import Checked
from dray.cel.function_costs import ONE, RULES, SCALARS, STRING_FACTOR, UNKNOWN, ZERO, Range, fixed, scale
from dray.cel.tree import Bind, Call, Comprehension, Ident, ListNode, Literal, Macro, MapNode, Node, OptionalMap, Select
from dray.cel.types import Kind, Type
from dray.cel.values import UINT_MAX

LIST_COST: Final = 10
MAP_COST: Final = 30


class _Entry(NamedTuple):
    """Sizes of the keys and values of a container."""

    key: Range
    value: Range


class _Local(NamedTuple):
    size: Range | None
    entry: _Entry | None


def estimate(checked: Checked) -> Range:
    """Return the minimum and maximum cost of an evaluation, given the size bounds of the types."""
    return _Estimator(checked).cost(checked.root)


class _Estimator:
    def __init__(self, checked: Checked) -> None:
        self._checked = checked
        self._sizes: dict[Node, Range] = {}
        self._entries: dict[Node, _Entry] = {}
        self._locals: dict[str, _Local] = {}
        self._visitors: dict[type, Callable[[Any], Range]] = {
            Literal: lambda _: ZERO,
            Ident: lambda _: ONE,
            Select: self._select,
            Call: self._call,
            ListNode: self._list,
            MapNode: self._map,
            Comprehension: self._comprehension,
            Bind: self._bind,
            OptionalMap: self._optional_map,
        }

    def cost(self, node: Node) -> Range:
        """Return the cost of a node including its descendants."""
        return self._visitors[type(node)](node)

    def type_of(self, node: Node) -> Type:
        """Return the checked type."""
        return self._checked.types[node]

    # --- Sizes.

    def size(self, node: Node) -> Range:
        """Return the size of the node's value, or the full range."""
        return self._known_size(node) or UNKNOWN

    def _known_size(self, node: Node) -> Range | None:
        found = self._sizes.get(node) or _literal_size(node)
        if found is not None:
            return found
        declared = self.type_of(node)
        if declared.size_max is not None and _is_path(node):
            return Range(0, declared.size_max)
        if declared.kind in SCALARS or _is_fixed(declared):
            return ONE
        local = self._locals.get(node.name) if isinstance(node, Ident) else None
        return local.size if local is not None else None

    def _entry(self, node: Node) -> _Entry | None:
        found = self._entries.get(node)
        if found is None and isinstance(node, Ident):
            local = self._locals.get(node.name)
            return local.entry if local is not None else None
        return found

    # --- Nodes.

    def _select(self, node: Select) -> Range:
        operand = self.cost(node.operand)
        if node.test or node.optional:
            return operand.plus(ONE)
        given = self.type_of(node.operand)
        return operand.plus(ONE) if given.kind in (Kind.MAP, Kind.OBJECT, Kind.PARAM) else operand

    def _list(self, node: ListNode) -> Range:
        total = fixed(LIST_COST)
        items = Range(UINT_MAX, 0) if node.elements else ZERO
        for element, _ in node.elements:
            total = total.plus(self.cost(element))
            items = items.union(self.size(element))
        self._entries[node] = _Entry(ONE, items)
        return total

    def _map(self, node: MapNode) -> Range:
        total = fixed(MAP_COST)
        keys = values = Range(UINT_MAX, 0) if node.entries else ZERO
        for key, value, _ in node.entries:
            total = total.plus(self.cost(key)).plus(self.cost(value))
            keys, values = keys.union(self.size(key)), values.union(self.size(value))
        self._entries[node] = _Entry(keys, values)
        return total

    def _call(self, node: Call) -> Range:
        inputs = [*([node.target] if node.target and node not in self._checked.namespaced else []), *node.args]
        costs = [self.cost(child) for child in inputs]
        if node.function in (tree.AND, tree.OR):
            return Range(costs[0].least, _sum(costs).most)
        if node.function == tree.CONDITIONAL:
            self._set_conditional(node)
            return costs[0].plus(costs[1].union(costs[2]))
        name = self._checked.namespaced.get(node, node.function)
        rule = RULES.get(name)
        own, size = rule(self, inputs) if rule is not None else (ONE, None)
        if name == tree.INDEX:
            entry = self._entry(inputs[0])
            size = entry.value if entry is not None else None
        if name == "dyn":
            size = self._known_size(inputs[0])
        if size is not None:
            self._sizes[node] = size
        return _sum(costs).plus(own)

    def _set_conditional(self, node: Call) -> None:
        _, truthy, falsy = node.args
        self._sizes[node] = self.size(truthy).union(self.size(falsy))
        self.unite_entries(node, truthy, falsy)

    def unite_entries(self, node: Node, left: Node, right: Node) -> None:
        """Record that the node's elements are those of either operand."""
        mine, yours = self._entry(left), self._entry(right)
        if mine is not None and yours is not None:
            self._entries[node] = _Entry(mine.key.union(yours.key), mine.value.union(yours.value))

    def _comprehension(self, node: Comprehension) -> Range:
        total = self.cost(node.range)
        entry = self._entry(node.range)
        is_list = self.type_of(node.range).kind is Kind.LIST
        names = dict.fromkeys(node.variables, _Local(None, None))
        if entry is not None:
            sizes = [entry.value if is_list else entry.key] if len(names) == 1 else [entry.key, entry.value]
            names = {name: _Local(size, None) for name, size in zip(node.variables, sizes, strict=True)}
        before = self._locals
        self._locals = before | names
        step = self._step(node)
        result_size = self.size(node.transform) if node.transform is not None else None
        self._locals = before
        count = self.size(node.range)
        overhead = _OVERHEADS[node.macro]
        if node.macro not in _DECIDERS:
            self._sizes[node] = count
            value = result_size or (entry.value if entry is not None and is_list else UNKNOWN)
            self._entries[node] = _Entry(ONE, value)
        return total.plus(fixed(overhead.once)).plus(count.times(step))

    def _step(self, node: Comprehension) -> Range:
        """Return the cost of one iteration: the macro's overhead, the condition and the transformation."""
        overhead = _OVERHEADS[node.macro]
        condition = self.cost(node.condition) if node.condition is not None else ZERO
        made = self.cost(node.transform) if node.transform is not None else ZERO
        if node.macro in (Macro.ALL, Macro.EXISTS):
            return Range(overhead.each, overhead.each + condition.most) if condition.most < UINT_MAX else UNKNOWN
        taken = fixed(overhead.each).plus(made)
        if node.condition is None:
            return taken
        # An element that the condition rejects costs one access to the accumulator.
        return condition.plus(taken.union(ONE))

    def _bind(self, node: Bind) -> Range:
        value = self.cost(node.value)
        before = self._locals
        self._locals = before | {node.name: _Local(self._known_size(node.value), self._entry(node.value))}
        body = self.cost(node.body)
        size, entry = self._known_size(node.body), self._entry(node.body)
        self._locals = before
        if size is not None:
            self._sizes[node] = size
        if entry is not None:
            self._entries[node] = entry
        # A bind is a fold over an empty list, whose creation is charged.
        return fixed(LIST_COST).plus(value).plus(body)

    def _optional_map(self, node: OptionalMap) -> Range:
        target, body = self.cost(node.target), self.cost(node.body)
        # hasValue, value, optional.of or optional.none, and the bind's list.
        return Range(target.least + 2, 0).union(target.plus(target).plus(body).plus(fixed(LIST_COST + 3)))


def _literal_size(node: Node) -> Range | None:
    if isinstance(node, Literal):
        return fixed(len(node.value)) if isinstance(node.value, (str, bytes)) else ONE
    if isinstance(node, ListNode):
        return fixed(len(node.elements))
    return fixed(len(node.entries)) if isinstance(node, MapNode) else None


def _is_fixed(given: Type) -> bool:
    """Report whether values are compared in one step although they are not scalars."""
    return given.kind in (Kind.TYPE, Kind.NULL) or (given.kind is Kind.OPAQUE and not given.is_optional)


def _is_path(node: Node) -> bool:
    """Report whether the value comes unchanged from a variable, so that the declared bound holds."""
    return isinstance(node, (Ident, Select)) or (isinstance(node, Call) and node.function == tree.INDEX)


def _sum(costs: list[Range]) -> Range:
    total = ZERO
    for cost in costs:
        total = total.plus(cost)
    return total


class _Overhead(NamedTuple):
    """The overhead of a macro: once, and per element."""

    once: int
    each: int


# The folds that these macros stand for: accumulator, loop condition, step and result.
_OVERHEADS: Final = {
    Macro.ALL: _Overhead(1, 3),
    Macro.EXISTS: _Overhead(1, 4),
    Macro.EXISTS_ONE: _Overhead(2, 2),
    Macro.MAP: _Overhead(LIST_COST + 1, LIST_COST + 2),
    Macro.FILTER: _Overhead(LIST_COST + 1, LIST_COST + 3),
    Macro.TRANSFORM_LIST: _Overhead(LIST_COST + 1, LIST_COST + 2),
    Macro.TRANSFORM_MAP: _Overhead(MAP_COST + 1, 3),
    Macro.TRANSFORM_MAP_ENTRY: _Overhead(MAP_COST + 1, 2),
}
_DECIDERS: Final = frozenset({Macro.ALL, Macro.EXISTS, Macro.EXISTS_ONE})


# --- Costs that are charged at run time independently of values.


def static_cost(checked: Checked, node: Node) -> int:
    """Return the maximum cost of running the node once, without loops and calls that charge themselves."""
    if isinstance(node, Literal):
        return 0
    if isinstance(node, Ident):
        return 1
    if isinstance(node, Select):
        return 1 + static_cost(checked, node.operand)
    if isinstance(node, Comprehension):
        return _OVERHEADS[node.macro].once + static_cost(checked, node.range)
    own = _static_own(checked, node)
    return own + sum(static_cost(checked, child) for child in tree.children(node))


def _static_own(checked: Checked, node: Node) -> int:
    if isinstance(node, ListNode):
        return LIST_COST
    if isinstance(node, MapNode):
        return MAP_COST
    if isinstance(node, Bind):
        return LIST_COST
    if isinstance(node, Call) and node.function not in (tree.AND, tree.OR, tree.CONDITIONAL):
        return _static_call(checked, node)
    return 0


def _static_call(checked: Checked, node: Call) -> int:
    """Return the cost of a call that is not charged at run time, given the literal that bounds it."""
    inputs = [*([node.target] if node.target is not None else []), *node.args]
    if compares_plainly(checked, node.function, inputs):
        lengths = [len(arg.value) for arg in inputs if isinstance(arg, Literal) and isinstance(arg.value, (str, bytes))]
        return max(1, scale(min(lengths), STRING_FACTOR)) if lengths else 1
    return 0 if all(overload.dynamic_cost for overload in checked.overloads[node]) else 1


_ORDER: Final = frozenset({"_<_", "_<=_", "_>_", "_>=_"})
_EQUALITY: Final = frozenset({tree.EQUALS, tree.NOT_EQUALS})
_NUMBERS: Final = frozenset({Kind.INT, Kind.UINT, Kind.DOUBLE})
_FIXED_SIZE: Final = SCALARS | {Kind.NULL}


def compares_plainly(checked: Checked, function: str, inputs: list[Node]) -> bool:
    """Report whether a comparison has a constant cost."""
    if function not in _ORDER | _EQUALITY:
        return False
    kinds = [checked.types[given].kind for given in inputs]
    if kinds[0] is kinds[1] and kinds[0] in _FIXED_SIZE:
        return True
    literal = any(isinstance(given, Literal) for given in inputs)
    if function in _EQUALITY:
        return literal
    return _NUMBERS.issuperset(kinds) or (literal and kinds == [Kind.STRING, Kind.STRING])


def iteration_cost(checked: Checked, node: Comprehension) -> int:
    """Return the maximum cost of one iteration, without inner loops and calls that charge themselves."""
    parts = [part for part in (node.condition, node.transform) if part is not None]
    return _OVERHEADS[node.macro].each + sum(static_cost(checked, part) for part in parts)
