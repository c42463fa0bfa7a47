"""Cost estimation: cel-go's cost model with Kubernetes' function costs.

Costs are (least, most) pairs of abstract units, capped at the largest uint64. At run time, costs that depend on sizes
are charged where they occur, all other costs in advance for a whole block of code.

The size of a value that comes from a variable is found by its path: the variable, then field names and `@items`,
`@values`, `@keys` or `@indices`. As in Kubernetes, what is selected from a computed value has a path, too, without what
precedes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from dray.cel import tree
from dray.cel.actual_costs import cost_of
from dray.cel.checker import Checked
from dray.cel.function_costs import (
    ONE,
    SCALARS,
    STRING_FACTOR,
    UNKNOWN,
    ZERO,
    CallSite,
    Range,
    estimate_call,
    fixed,
    scale,
)
from dray.cel.tree import Bind, Call, Comprehension, Ident, ListNode, Literal, Macro, MapNode, Node, OptionalMap, Select
from dray.cel.types import Kind, Type
from dray.cel.values import UINT_MAX

LIST_COST: Final = 10
MAP_COST: Final = 30

Path = tuple[str, ...]


class DeclaredSizes:
    """The declared bounds of values, by path.

    With a `root`, every path starts there, whatever its first element: a rule of a custom resource is about one schema.
    Otherwise the first element is a variable, and a field of a map of dynamic values has the size of any of them.
    """

    def __init__(self, variables: Mapping[str, Type], root: Type | None = None) -> None:
        self._variables = variables
        self._root = root

    def find(self, path: Path) -> int | None:
        """Return the maximum size of the values at the path; None if nothing is declared."""
        if not path:
            return None
        declared = self._variables.get(path[0]) if self._root is None else self._root
        for name in path[1:]:
            declared = None if declared is None else self._step(declared, name)
        return None if declared is None else declared.size_max

    def _step(self, declared: Type, name: str) -> Type | None:
        if name in ("@items", "@values"):
            return declared.params[-1] if declared.kind in (Kind.LIST, Kind.MAP) else None
        if name == "@keys":
            return declared.params[0] if declared.kind is Kind.MAP else None
        field = declared.fields.get(name)
        if field is not None:
            return field.type
        dynamic = self._root is None and declared.kind is Kind.MAP and declared.params[1].is_dyn
        return declared.params[1] if dynamic else None


class _Entry(NamedTuple):
    """Sizes of the keys and values of a container."""

    key: Range
    value: Range
    is_list: bool

    def union(self, other: _Entry | None) -> _Entry | None:
        """Return the sizes of either container; None if one is unknown."""
        if other is None:
            return None
        return _Entry(self.key.union(other.key), self.value.union(other.value), self.is_list)


class _Local(NamedTuple):
    path: Path
    size: Range | None
    entry: _Entry | None = None


# The accumulator of a macro that builds a list.
_EMPTY_LIST: Final = _Entry(ONE, ZERO, is_list=True)


def estimate(checked: Checked, sizes: DeclaredSizes | None = None) -> Range:
    """Return the minimum and maximum cost of an evaluation, given the declared bounds of variables."""
    return _Estimator(checked, sizes or DeclaredSizes(checked.variables)).cost(checked.root)


class _Estimator:
    def __init__(self, checked: Checked, declared: DeclaredSizes) -> None:
        self._checked = checked
        self._declared = declared
        self._paths: dict[Node, Path] = {}
        self._sizes: dict[Node, Range] = {}
        self._entries: dict[Node, _Entry] = {}
        self._locals: dict[str, _Local] = {}
        self._visitors: dict[type, Callable[[Any], Range]] = {
            Literal: lambda _: ZERO,
            Ident: self._ident,
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
        if node in self._checked.type_values:
            self._paths[node] = (tree.qualified_name(node) or "",)
            return ONE
        return self._visitors[type(node)](node)

    def type_of(self, node: Node) -> Type:
        """Return the checked type."""
        return self._checked.types[node]

    # --- Sizes.

    def size(self, node: Node) -> Range:
        """Return the size of the node's value, or the full range."""
        return self._known_size(node) or UNKNOWN

    def element_size(self, node: Node) -> Range:
        """Return the declared size of a list's elements, or the full range."""
        path = self._path(node)
        most = self._declared.find((*path, "@items")) if path else None
        return UNKNOWN if most is None else Range(0, most)

    def _known_size(self, node: Node) -> Range | None:
        found = self._sizes.get(node) or _literal_size(node)
        if found is not None:
            return found
        most = self._declared.find(self._path(node))
        if most is not None:
            found = self._sizes[node] = Range(0, most)
            return found
        if _is_scalar(self.type_of(node)):
            return ONE
        local = self._locals.get(node.name) if isinstance(node, Ident) else None
        return local.size if local is not None else None

    def _path(self, node: Node) -> Path:
        local = self._locals.get(node.name) if isinstance(node, Ident) else None
        return local.path if local is not None else self._paths.get(node, ())

    def _entry(self, node: Node) -> _Entry | None:
        found = self._entries.get(node)
        if found is None and isinstance(node, Ident):
            local = self._locals.get(node.name)
            return local.entry if local is not None else None
        return found

    def _set_entry(self, node: Node, entry: _Entry | None) -> None:
        if entry is not None:
            self._entries[node] = entry

    def _unite_entries(self, node: Node, left: Node, right: Node) -> None:
        """Record that the node's elements are those of either operand."""
        mine = self._entry(left)
        self._set_entry(node, None if mine is None else mine.union(self._entry(right)))

    # --- Nodes.

    def _ident(self, node: Ident) -> Range:
        local = self._locals.get(node.name)
        self._paths[node] = (node.name,) if local is None else local.path
        return ONE

    def _select(self, node: Select) -> Range:
        operand = self.cost(node.operand)
        if node.test:
            # Kubernetes does not charge for a presence test.
            return operand
        if node.optional:
            return operand.plus(ONE)
        self._paths[node] = (*self._path(node.operand), node.field)
        return operand.plus(ONE) if self.type_of(node.operand).kind in (Kind.MAP, Kind.OBJECT) else operand

    def _list(self, node: ListNode) -> Range:
        total = fixed(LIST_COST)
        items = Range(UINT_MAX, 0) if node.elements else ZERO
        for element, _ in node.elements:
            total = total.plus(self.cost(element))
            items = items.union(self.size(element))
        self._entries[node] = _Entry(ONE, items, is_list=True)
        return total

    def _map(self, node: MapNode) -> Range:
        total = fixed(MAP_COST)
        keys = values = Range(UINT_MAX, 0) if node.entries else ZERO
        for key, value, _ in node.entries:
            total = total.plus(self.cost(key)).plus(self.cost(value))
            keys, values = keys.union(self.size(key)), values.union(self.size(value))
        self._entries[node] = _Entry(keys, values, is_list=False)
        return total

    def _call(self, node: Call) -> Range:
        if node.function in (tree.AND, tree.OR):
            costs = [self.cost(arg) for arg in node.args]
            return Range(costs[0].least, _sum(costs).most)
        if node.function == tree.CONDITIONAL:
            return self._conditional(node)
        name = self._checked.namespaced.get(node)
        target = node.target if name is None else None
        before = [self.cost(arg) for arg in node.args]
        if target is not None:
            before.append(self.cost(target))
        if node.function == "dyn" and target is None:
            self._copy_sizes(node, node.args[0])
            return before[0].plus(ONE)
        return _sum(before).plus(self._overloads(node, name or node.function, target))

    def _overloads(self, node: Call, function: str, target: Node | None) -> Range:
        """Return the cost of whichever overload is called, and record the size of the result."""
        cost = Range(UINT_MAX, 0)
        size: Range | None = None
        for overload in self._checked.overloads[node]:
            estimated = estimate_call(self, function, CallSite(overload, target, node.args))
            cost = cost.union(estimated.cost)
            if estimated.size is not None:
                size = estimated.size if size is None else size.union(estimated.size)
            if function == tree.INDEX and overload.params[0].kind in (Kind.LIST, Kind.MAP):
                step = "@items" if overload.params[0].kind is Kind.LIST else "@values"
                entry = self._entry(node.args[0])
                size = None if entry is None else entry.value
                self._paths[node] = (*self._path(node.args[0]), step)
            if size is None:
                size = self._known_size(node)
        if size is not None:
            self._sizes[node] = size
        if function == "_+_":
            self._unite_entries(node, *node.args)
        return cost

    def _conditional(self, node: Call) -> Range:
        condition, truthy, falsy = (self.cost(arg) for arg in node.args)
        self._sizes[node] = self.size(node.args[1]).union(self.size(node.args[2]))
        self._unite_entries(node, node.args[1], node.args[2])
        return condition.plus(truthy.union(falsy))

    def _copy_sizes(self, node: Node, source: Node) -> None:
        size = self._known_size(source)
        if size is not None:
            self._sizes[node] = size
        self._set_entry(node, self._entry(source))

    # --- Macros.

    def _comprehension(self, node: Comprehension) -> Range:
        total = self.cost(node.range).plus(fixed(_OVERHEADS[node.macro].once))
        before = self._locals
        self._locals = before | self._iteration(node)
        step = self._step(node)
        made: _Entry | None = None
        if node.macro in _LISTS:
            made = _EMPTY_LIST.union(_Entry(ONE, self._collected_size(node), is_list=True))
        self._locals = before
        count = self.size(node.range)
        self._sizes[node] = ONE if node.macro in _DECIDERS else count
        self._set_entry(node, made)
        return total.plus(count.times(step))

    def _collected_size(self, node: Comprehension) -> Range:
        """Return the size of the elements that a macro collects in a list."""
        if node.transform is not None:
            return self.size(node.transform)
        # A filter collects its iteration variable.
        local = self._locals[node.variables[0]]
        most = self._declared.find(local.path)
        if most is not None:
            return Range(0, most)
        params = self.type_of(node.range).params
        return ONE if params and _is_scalar(params[0]) else local.size or UNKNOWN

    def _iteration(self, node: Comprehension) -> dict[str, _Local]:
        """Return the iteration variables, with their paths and sizes."""
        entry, path = self._entry(node.range), self._path(node.range)
        is_list = entry.is_list if entry is not None else self.type_of(node.range).kind is Kind.LIST
        value = _Local((*path, "@items" if is_list else "@values"), None if entry is None else entry.value)
        key = _Local((*path, "@indices" if is_list else "@keys"), None if entry is None else entry.key)
        if len(node.variables) == 1:
            return {node.variables[0]: value if is_list else key}
        return dict(zip(node.variables, (key, value), strict=True))

    def _step(self, node: Comprehension) -> Range:
        """Return the cost of one iteration: the macro's overhead, the condition and the transformation."""
        overhead = _OVERHEADS[node.macro]
        condition = self.cost(node.condition) if node.condition is not None else ZERO
        made = self.cost(node.transform) if node.transform is not None else ZERO
        if node.macro in (Macro.ALL, Macro.EXISTS):
            # The condition is not evaluated once the result is known.
            return Range(overhead.each, min(overhead.each + condition.most, UINT_MAX))
        taken = fixed(overhead.each).plus(made)
        if node.condition is None:
            return taken
        # An element that the condition rejects costs one access to the accumulator.
        return condition.plus(taken.union(ONE))

    def _bind(self, node: Bind) -> Range:
        value = self.cost(node.value)
        before = self._locals
        local = _Local(self._path(node.value), self._known_size(node.value), self._entry(node.value))
        self._locals = before | {node.name: local}
        body = self.cost(node.body)
        self._locals = before
        self._copy_sizes(node, node.body)
        # A bind is a fold over an empty list, whose creation is charged.
        return fixed(LIST_COST).plus(value).plus(body)

    def _optional_map(self, node: OptionalMap) -> Range:
        target = self.cost(node.target)
        held = self.type_of(node.target).params
        before = self._locals
        self._locals = before | {node.name: _Local((), ONE if held and _is_scalar(held[0]) else None)}
        body = self.cost(node.body)
        self._locals = before
        # value() and the bind's list; optMap wraps the result by optional.of.
        present = target.plus(body).plus(fixed(LIST_COST + (1 if node.flat else 2)))
        # hasValue(), and optional.none() otherwise.
        return target.plus(ONE).plus(present.union(ONE))


def _literal_size(node: Node) -> Range | None:
    if isinstance(node, Literal):
        return fixed(len(node.value)) if isinstance(node.value, (str, bytes)) else ONE
    if isinstance(node, ListNode):
        return fixed(len(node.elements))
    return fixed(len(node.entries)) if isinstance(node, MapNode) else None


def _is_scalar(given: Type) -> bool:
    return given.kind in SCALARS or (given.is_optional and _is_scalar(given.params[0]))


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
_LISTS: Final = frozenset({Macro.MAP, Macro.FILTER, Macro.TRANSFORM_LIST})


# --- Costs that are charged at run time independently of values.


def static_cost(checked: Checked, node: Node) -> int:
    """Return the maximum cost of running the node once, without loops and calls that charge themselves."""
    if isinstance(node, Literal):
        return 0
    if isinstance(node, Ident) or node in checked.type_values:
        return 1
    if isinstance(node, Select):
        # As in Kubernetes, a presence test costs nothing, and a step from a computed value one more.
        return (0 if node.test else 1) + _computed(node.operand) + static_cost(checked, node.operand)
    if isinstance(node, Comprehension):
        overhead = _OVERHEADS[node.macro]
        # After the decision, `all` and `exists` test the accumulator once more.
        return overhead.once + overhead.each + static_cost(checked, node.range)
    if isinstance(node, OptionalMap):
        # hasValue(), value() and optional.of(); the target is evaluated twice.
        return 3 + 2 * static_cost(checked, node.target) + static_cost(checked, node.body)
    own = _static_own(checked, node)
    children = node.args if isinstance(node, Call) and node in checked.namespaced else tree.children(node)
    return own + sum(static_cost(checked, child) for child in children)


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
    if node.function in (tree.INDEX, tree.OPTIONAL_INDEX):
        return 1 + _computed(node.args[0])
    overloads = checked.overloads[node]
    if len(overloads) == 1 and all(isinstance(given, Literal) for given in node.args) and node.target is None:
        # Generated code computes such calls once.
        return max(
            1, cost_of(node.function)(overloads[0], [arg.value for arg in node.args if isinstance(arg, Literal)], None)
        )
    return 0 if all(overload.dynamic_cost for overload in overloads) else 1


def _computed(operand: Node) -> int:
    """Return 1 for a value that is neither a variable nor a step from one."""
    steps = (tree.INDEX, tree.OPTIONAL_INDEX)
    step = isinstance(operand, Ident | Select) or (isinstance(operand, Call) and operand.function in steps)
    return 0 if step else 1


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
