"""How much work an expression can be, before it runs: cel-go's cost model with Kubernetes' function costs.

Costs are (least, most) pairs of abstract units that never pass the largest uint64. The work counted at run time
is charged in two parts: what depends on sizes when it happens, everything else ahead for a whole stretch of code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from dray.cel import tree
from dray.cel.checker import Checked
from dray.cel.tree import Bind, Call, Comprehension, Ident, ListNode, Literal, Macro, MapNode, Node, OptionalMap, Select
from dray.cel.types import Kind, Type
from dray.cel.values import UINT_MAX

STRING_FACTOR: Final = 0.1
REGEX_FACTOR: Final = 0.25
LIST_COST: Final = 10
MAP_COST: Final = 30
# ResourceSliceMaxAttributeValuesPerDevice: `includes` never looks at more values.
_INCLUDES_COST: Final = 48


class Range(NamedTuple):
    """Least and most of a cost or a size."""

    least: int
    most: int

    def plus(self, other: Range) -> Range:
        """The sum."""
        return Range(min(self.least + other.least, UINT_MAX), min(self.most + other.most, UINT_MAX))

    def times(self, other: Range) -> Range:
        """The product."""
        return Range(min(self.least * other.least, UINT_MAX), min(self.most * other.most, UINT_MAX))

    def scaled(self, factor: float) -> Range:
        """The product with a factor, rounded up."""
        return Range(_scale(self.least, factor), _scale(self.most, factor))

    def union(self, other: Range) -> Range:
        """The range that covers both."""
        return Range(min(self.least, other.least), max(self.most, other.most))


def _scale(amount: int, factor: float) -> int:
    return min(math.ceil(amount * factor), UINT_MAX)


UNKNOWN: Final = Range(0, UINT_MAX)
ZERO: Final = Range(0, 0)
ONE: Final = Range(1, 1)


def fixed(amount: int) -> Range:
    """A range of one number."""
    return Range(amount, amount)


class _Entry(NamedTuple):
    """Sizes of the keys and values of a container."""

    key: Range
    value: Range


class _Local(NamedTuple):
    size: Range | None
    entry: _Entry | None


def estimate(checked: Checked) -> Range:
    """The least and most an evaluation can cost, given the sizes that the types declare."""
    return _Estimator(checked).cost(checked.root)


# A function's cost and the size of its result; the sizes are those of receiver (if any) and arguments.
_Rule = Callable[["_Estimator", list[Node]], tuple[Range, Range | None]]


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
        """The cost of a node with all below it."""
        return self._visitors[type(node)](node)

    def type_of(self, node: Node) -> Type:
        """The checked type."""
        return self._checked.types[node]

    # --- sizes ---

    def size(self, node: Node) -> Range:
        """The size of the node's value, or everything possible."""
        return self._known_size(node) or UNKNOWN

    def _known_size(self, node: Node) -> Range | None:
        found = self._sizes.get(node) or _literal_size(node)
        if found is not None:
            return found
        declared = self.type_of(node)
        if declared.size_max is not None and _is_path(node):
            return Range(0, declared.size_max)
        if declared.kind in _SCALARS:
            return ONE
        local = self._locals.get(node.name) if isinstance(node, Ident) else None
        return local.size if local is not None else None

    def _entry(self, node: Node) -> _Entry | None:
        found = self._entries.get(node)
        if found is None and isinstance(node, Ident):
            local = self._locals.get(node.name)
            return local.entry if local is not None else None
        return found

    # --- nodes ---

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
        rule = _RULES.get(name)
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
        """Let the node's elements be those of either."""
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
        """The cost of one round: the macro's own share, the condition and the transformation."""
        overhead = _OVERHEADS[node.macro]
        condition = self.cost(node.condition) if node.condition is not None else ZERO
        made = self.cost(node.transform) if node.transform is not None else ZERO
        if node.macro in (Macro.ALL, Macro.EXISTS):
            return Range(overhead.each, overhead.each + condition.most) if condition.most < UINT_MAX else UNKNOWN
        taken = fixed(overhead.each).plus(made)
        if node.condition is None:
            return taken
        # What the condition refuses costs a look at the accumulator.
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
        # A bind is a fold over an empty list, whose making is charged.
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


def _is_path(node: Node) -> bool:
    """Whether the value comes from a variable unchanged, so that the declared bound holds."""
    return isinstance(node, (Ident, Select)) or (isinstance(node, Call) and node.function == tree.INDEX)


_SCALARS: Final = frozenset({Kind.BOOL, Kind.DOUBLE, Kind.DURATION, Kind.INT, Kind.TIMESTAMP, Kind.UINT})


def _sum(costs: list[Range]) -> Range:
    total = ZERO
    for cost in costs:
        total = total.plus(cost)
    return total


class _Overhead(NamedTuple):
    """What a macro costs by itself: once, and for each element."""

    once: int
    each: int


# The folds these macros stand for: accumulator, loop condition, step and result.
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


# --- function costs ---


def _walk(place: int, factor: float = STRING_FACTOR, *, same_size: bool = False) -> _Rule:
    def rule(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
        size = estimator.size(inputs[place])
        return size.scaled(factor), size if same_size else None

    return rule


def _compare(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
    most = min(estimator.size(inputs[0]).most, estimator.size(inputs[1]).most)
    return Range(min(1, most), _scale(most, STRING_FACTOR)), None


def _order(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
    kinds = {estimator.type_of(given).kind for given in inputs}
    if kinds & {Kind.STRING, Kind.BYTES}:
        return _compare(estimator, inputs)
    return ONE, None


def _add(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
    kinds = {estimator.type_of(given).kind for given in inputs}
    if kinds & _SCALARS:
        return ONE, None
    size = estimator.size(inputs[0]).plus(estimator.size(inputs[1]))
    return (ONE if kinds == {Kind.LIST} else ONE.union(size.scaled(STRING_FACTOR))), size


def _add_rule(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
    cost, size = _add(estimator, inputs)
    kinds = {estimator.type_of(given).kind for given in inputs}
    if size is not None and kinds <= {Kind.STRING, Kind.BYTES}:
        cost = size.scaled(STRING_FACTOR)
    return cost, size


def _in(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
    kind = estimator.type_of(inputs[1]).kind
    if kind is Kind.MAP:
        return ONE, None
    size = estimator.size(inputs[1])
    return (size if kind is Kind.LIST else size.union(ONE)), None


def _regex(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
    text = estimator.size(inputs[0])
    pattern = estimator.size(inputs[1]).scaled(REGEX_FACTOR)
    return text.plus(ONE).scaled(STRING_FACTOR).times(pattern), Range(0, text.most)


def _contains(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
    text, part = (estimator.size(given).scaled(STRING_FACTOR) for given in inputs)
    return text.times(part), None


def _split(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
    size = estimator.size(inputs[0])
    most = size.most
    if len(inputs) > 2 and isinstance(inputs[2], Literal) and inputs[2].value >= 0:  # noqa: PLR2004 - the limit
        most = inputs[2].value
    return size.scaled(2 * STRING_FACTOR), Range(0, most)


def _replace(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
    text, old, new = (estimator.size(given) for given in inputs[:3])
    if old.least == 0:
        most = min((text.most + 1) * new.most + text.most, UINT_MAX)
    elif new.most <= old.least:
        most = text.most
    else:
        most = min(math.ceil(text.most / old.least) * new.most, UINT_MAX)
    return text.scaled(2 * STRING_FACTOR), Range(0, most)


def _element_cost(estimator: _Estimator, values: Node) -> Range:
    given = estimator.type_of(values)
    element = given.params[0] if given.params else None
    if element is None or element.kind not in (Kind.STRING, Kind.BYTES):
        return ONE
    size = UNKNOWN if element.size_max is None else Range(0, element.size_max)
    return ONE.plus(size.scaled(STRING_FACTOR))


def _each(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
    size = estimator.size(inputs[0])
    if estimator.type_of(inputs[0]).kind is Kind.STRING:
        return size.scaled(STRING_FACTOR), None
    return size.times(_element_cost(estimator, inputs[0])), None


def _join(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
    count = estimator.size(inputs[0])
    given = estimator.type_of(inputs[0])
    element = given.params[0].size_max if given.params else None
    total = count.times(UNKNOWN if element is None else Range(0, element))
    if len(inputs) > 1:
        gaps = Range(max(0, count.least - 1), max(0, count.most - 1))
        total = total.plus(estimator.size(inputs[1]).times(gaps))
    return total.scaled(STRING_FACTOR), total


def _sets(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
    return estimator.size(inputs[0]).times(estimator.size(inputs[1])).plus(ONE), None


def _both_ways(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
    return _sets(estimator, inputs)[0].scaled(2), None


def _list_result(factor: float) -> _Rule:
    def rule(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
        size = estimator.size(inputs[0])
        return size.scaled(factor).plus(ONE), size

    return rule


def _count(_: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
    given = inputs[0]
    count = fixed(max(0, given.value)) if isinstance(given, Literal) else UNKNOWN
    return count.plus(ONE), count


def _square(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
    size = estimator.size(inputs[0])
    return size.times(size).plus(ONE), size


def _to_bytes(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
    size = estimator.size(inputs[0])
    return size.scaled(STRING_FACTOR), Range(size.least, min(size.most * 4, UINT_MAX))


def _to_string(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
    if estimator.type_of(inputs[0]).kind in _SCALARS:
        return ONE, None
    size = estimator.size(inputs[0])
    return ONE.union(size.scaled(STRING_FACTOR)), size


def _quote(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
    size = estimator.size(inputs[0])
    return size.scaled(STRING_FACTOR), Range(size.least + 2, min(size.most * 2 + 2, UINT_MAX))


def _format(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
    return estimator.size(inputs[0]).scaled(STRING_FACTOR), UNKNOWN


def _includes(_: _Estimator, __: list[Node]) -> tuple[Range, Range | None]:
    return fixed(_INCLUDES_COST), None


# Comparing networks looks at 4 to 16 bytes twice, three times and one more for a network inside another.
_CONTAINS_IP: Final = Range(8, 32).scaled(STRING_FACTOR)
_CONTAINS_CIDR: Final = _CONTAINS_IP.plus(Range(4, 16).scaled(STRING_FACTOR)).plus(ONE)


def _network(base: Range) -> _Rule:
    def rule(estimator: _Estimator, inputs: list[Node]) -> tuple[Range, Range | None]:
        if estimator.type_of(inputs[1]).kind is Kind.STRING:
            return base.plus(estimator.size(inputs[1]).scaled(STRING_FACTOR)), None
        return base, None

    return rule


_RULES: Final[dict[str, _Rule]] = {
    tree.EQUALS: _compare,
    tree.NOT_EQUALS: _compare,
    "_<_": _order,
    "_<=_": _order,
    "_>_": _order,
    "_>=_": _order,
    "_+_": _add_rule,
    tree.IN: _in,
    "matches": _regex,
    "find": _regex,
    "findAll": _regex,
    "contains": _contains,
    "startsWith": _walk(1),
    "endsWith": _walk(1),
    "bytes": _to_bytes,
    "string": _to_string,
    "lowerAscii": _walk(0, same_size=True),
    "upperAscii": _walk(0, same_size=True),
    "substring": _walk(0, same_size=True),
    "trim": _walk(0, same_size=True),
    "replace": _replace,
    "split": _split,
    "join": _join,
    "format": _format,
    "strings.quote": _quote,
    "isSorted": _each,
    "sum": _each,
    "min": _each,
    "max": _each,
    "indexOf": _each,
    "lastIndexOf": _each,
    "sort": _square,
    "@sortByAssociatedKeys": _square,
    "distinct": _square,
    "reverse": _list_result(1),
    "slice": _list_result(1),
    "lists.range": _count,
    "flatten": _list_result(1),
    "sets.contains": _sets,
    "sets.intersects": _sets,
    "sets.equivalent": _both_ways,
    "url": _walk(0),
    "quantity": _walk(0),
    "isQuantity": _walk(0),
    "semver": _walk(0),
    "isSemver": _walk(0),
    "isIP": _walk(0),
    "isCIDR": _walk(0),
    "cidr": _walk(0),
    "ip.isCanonical": _walk(0, 2 * STRING_FACTOR),
    "containsIP": _network(_CONTAINS_IP),
    "containsCIDR": _network(_CONTAINS_CIDR),
    "validate": _walk(1),
    "includes": _includes,
}


# --- what is charged at run time without looking at values ---


def static_cost(checked: Checked, node: Node) -> int:
    """The most that running the node once costs, without loops and calls that charge by themselves."""
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
    """A call that is not charged when it happens is charged here, with the literal that bounds it."""
    literals = [arg.value for arg in node.args if isinstance(arg, Literal) and isinstance(arg.value, (str, bytes))]
    if node.function in (tree.EQUALS, tree.NOT_EQUALS, *_ORDER) and literals:
        return max(1, _scale(min(map(len, literals)), STRING_FACTOR))
    return 1


_ORDER: Final = ("_<_", "_<=_", "_>_", "_>=_")


def iteration_cost(checked: Checked, node: Comprehension) -> int:
    """What one round of a comprehension costs at most, without inner loops and calls that charge by themselves."""
    parts = [part for part in (node.condition, node.transform) if part is not None]
    return _OVERHEADS[node.macro].each + sum(static_cost(checked, part) for part in parts)
