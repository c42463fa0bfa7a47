"""Code generation: Python code objects from a checked expression.

The code is built as a syntax tree in which every name is generated and every text of the author is a constant; it has a
fixed namespace and no builtins. There are two versions. The strict one is plain Python that stops at the first error.
Only if it fails, the careful one runs: it absorbs an error in a logical operator or a quantifier if another operand
decides, and raises the language's error messages.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Final

from dray.cel import control, runtime, tree
from dray.cel.checker import Checked
from dray.cel.cost import compares_plainly, iteration_cost
from dray.cel.errors import CELRuntimeError
from dray.cel.signatures import Dispatcher, Overload
from dray.cel.tree import Bind, Call, Comprehension, Ident, Literal, Macro, Node, OptionalMap, Select
from dray.cel.types import Kind, Type
from dray.cel.values import Optional

_PLACE: Final[dict[str, Any]] = {"lineno": 1, "col_offset": 0, "end_lineno": 1, "end_col_offset": 0}
_BUDGET: Final = "budget"
_COMPARE: Final[dict[str, type[ast.cmpop]]] = {"_<_": ast.Lt, "_<=_": ast.LtE, "_>_": ast.Gt, "_>=_": ast.GtE}
_RAW_KEYS: Final = frozenset({Kind.STRING, Kind.INT, Kind.UINT})
_DOUBLE_OPERATORS: Final[dict[str, type[ast.operator]]] = {"_+_": ast.Add, "_-_": ast.Sub, "_*_": ast.Mult}
# Constructors whose result is computed once when their arguments are literals.
_FOLDED: Final = frozenset({"quantity", "semver", "timestamp", "duration", "ip", "cidr", "url", "bytes"})
# Functions whose last argument is evaluated lazily.
_LAZY: Final[dict[str, Callable[..., Any]]] = {"or": control.optional_or, "orValue": control.optional_or_value}


@dataclass(frozen=True, slots=True)
class Compiled:
    """A function of the budget and the variables; without `uses_budget` the budget may be None."""

    function: Callable[..., Any]
    uses_budget: bool


def generate(checked: Checked, *, careful: bool) -> Compiled:
    """Compile one of the two versions."""
    emitter = _Emitter(checked, careful=careful)
    body = emitter.emit(checked.root)
    names = [_BUDGET, *emitter.parameters]
    code = compile(ast.Expression(_lambda(names, body), **{}), "<cel>", "eval")
    inner = next(constant for constant in code.co_consts if isinstance(constant, CodeType))
    function = FunctionType(inner, {"__builtins__": {}, **emitter.namespace})
    return Compiled(function, emitter.uses_budget)


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load(), **_PLACE)


def _store(name: str) -> ast.Name:
    return ast.Name(name, ast.Store(), **_PLACE)


def _constant(value: Any) -> ast.Constant:
    return ast.Constant(value, **_PLACE)


def _tuple(*parts: ast.expr) -> ast.Tuple:
    return ast.Tuple(list(parts), ast.Load(), **_PLACE)


def _lambda(names: Sequence[str], body: ast.expr) -> ast.Lambda:
    arguments = ast.arguments([], [ast.arg(name, **_PLACE) for name in names], None, [], [], None, [])
    return ast.Lambda(arguments, body, **_PLACE)


def _compare(operator: ast.cmpop, left: ast.expr, right: ast.expr) -> ast.Compare:
    return ast.Compare(left, [operator], [right], **_PLACE)


def _invoke(function: ast.expr, args: Sequence[ast.expr]) -> ast.Call:
    return ast.Call(function, list(args), [], **_PLACE)


def _never_boolean(value: Any) -> bool:
    """Report whether Python's equality is correct for any other operand; it treats True as 1."""
    return value is None or isinstance(value, (str, bytes))


class _Emitter:
    def __init__(self, checked: Checked, *, careful: bool) -> None:
        self._checked = checked
        self._careful = careful
        self._names = 0
        self._interned: dict[int, str] = {}
        self.namespace: dict[str, Any] = {}
        self.uses_budget = False
        # Identifier -> local name and whether it holds a lazy value.
        self._scope: dict[str, tuple[str, bool]] = {}
        self.parameters: list[str] = []
        for variable in checked.variables:
            self.parameters.append(self._fresh("variable"))
            self._scope[variable] = (self.parameters[-1], False)
        self._emitters: dict[type, Callable[[Any], ast.expr]] = {
            Literal: lambda node: self._value(node.value),
            Ident: self._ident,
            Select: self._select,
            Call: self._call,
            tree.ListNode: self._list,
            tree.MapNode: self._map,
            Comprehension: self._comprehension,
            Bind: self._bind,
            OptionalMap: self._optional_map,
        }

    def emit(self, node: Node) -> ast.expr:
        """Return the Python expression for a node."""
        named = self._checked.type_values.get(node)
        if named is not None:
            return self._object(named)
        return self._emitters[type(node)](node)

    def _fresh(self, hint: str) -> str:
        self._names += 1
        return f"{hint}_{self._names}"

    def _object(self, value: Any) -> ast.Name:
        """Return the name of a host object in the namespace."""
        name = self._interned.get(id(value))
        if name is None:
            name = self._interned[id(value)] = self._fresh("object")
            self.namespace[name] = value
        return _name(name)

    def _value(self, value: Any) -> ast.expr:
        if value is None or type(value) in (bool, int, float, str, bytes):
            return _constant(value)
        return self._object(value)

    def _helper(self, function: Callable[..., Any], *args: ast.expr) -> ast.Call:
        return _invoke(self._object(function), args)

    def _budget(self) -> ast.Name:
        self.uses_budget = True
        return _name(_BUDGET)

    def _type(self, node: Node) -> Type:
        return self._checked.types[node]

    def _condition(self, node: Node) -> ast.expr:
        """Return the node as a Python truth value, with a run-time check that it is a boolean."""
        value = self.emit(node)
        return value if self._type(node).kind is Kind.BOOL else self._helper(control.boolean, value)

    # --- Identifiers and fields.

    def _ident(self, node: Ident) -> ast.expr:
        name, lazy = self._scope[node.name]
        if lazy:
            return _invoke(ast.Attribute(_name(name), "get", ast.Load(), **_PLACE), [])
        return _name(name)

    def _select(self, node: Select) -> ast.expr:
        operand = self.emit(node.operand)
        given = self._type(node.operand)
        if given.kind is Kind.OBJECT:
            return self._object_field(node, given, operand)
        field = _constant(node.field)
        if node.test:
            return self._helper(runtime.has, operand, field)
        if node.optional:
            return self._helper(runtime.optional_select, operand, field)
        if given.kind is Kind.MAP and not self._careful:
            return ast.Subscript(operand, field, ast.Load(), **_PLACE)
        return self._helper(runtime.select, operand, field)

    def _object_field(self, node: Select, given: Type, operand: ast.expr) -> ast.expr:
        key = given.fields[node.field].key
        if given.by_attribute:
            if node.test:
                return _constant(value=True)
            value: ast.expr = ast.Attribute(operand, key, ast.Load(), **_PLACE)
            return self._helper(Optional, value) if node.optional else value
        if node.test:
            return self._helper(runtime.has, operand, _constant(key))
        if node.optional:
            return self._helper(runtime.optional_select, operand, _constant(key))
        if not self._careful:
            return ast.Subscript(operand, _constant(key), ast.Load(), **_PLACE)
        return self._helper(runtime.select, operand, _constant(key))

    # --- Calls.

    def _call(self, node: Call) -> ast.expr:
        if node.function in (tree.AND, tree.OR):
            return self._logical(node)
        if node.function == tree.CONDITIONAL:
            condition, truthy, falsy = node.args
            return ast.IfExp(self._condition(condition), self.emit(truthy), self.emit(falsy), **_PLACE)
        overloads = self._checked.overloads[node]
        inputs = self._inputs(node)
        direct = len(overloads) == 1 and not any(self._type(given).is_dyn for given in inputs)
        if direct:
            folded = self._folded(node, overloads[0], inputs)
            if folded is not None:
                return folded
        if node.function in _LAZY:
            return self._helper(_LAZY[node.function], self.emit(inputs[0]), _lambda([], self.emit(inputs[1])))
        special = self._operator(node, inputs)
        if special is not None:
            return special
        args = [self.emit(given) for given in inputs]
        return self._direct(overloads[0], args) if direct else self._dispatched(node, overloads, args)

    def _inputs(self, node: Call) -> list[Node]:
        if node.target is None or node in self._checked.namespaced:
            return list(node.args)
        return [node.target, *node.args]

    def _folded(self, node: Call, overload: Overload, inputs: list[Node]) -> ast.expr | None:
        if node.function not in _FOLDED or overload.budgeted:
            return None
        literals = [given.value for given in inputs if isinstance(given, Literal)]
        if len(literals) != len(inputs):
            return None
        try:
            return self._value(overload.implementation(*literals))
        except CELRuntimeError:
            return None

    def _direct(self, overload: Overload, args: list[ast.expr]) -> ast.expr:
        if overload.dynamic_cost:
            return self._helper(overload.with_budget(), self._budget(), *args)
        return self._helper(overload.implementation, *args)

    def _dispatched(self, node: Call, overloads: list[Overload], args: list[ast.expr]) -> ast.expr:
        if node.function == tree.INDEX:
            return self._helper(runtime.index, *args)
        budgeted = any(overload.dynamic_cost for overload in overloads)
        dispatcher = Dispatcher(node.function, overloads, budgeted=budgeted)
        return self._helper(dispatcher, *([self._budget()] if budgeted else []), *args)

    def _logical(self, node: Call) -> ast.expr:
        if not self._careful:
            operator = ast.And() if node.function == tree.AND else ast.Or()
            return ast.BoolOp(operator, [self._condition(arg) for arg in node.args], **_PLACE)
        helper = control.logical_and if node.function == tree.AND else control.logical_or
        return self._helper(helper, *(_lambda([], self.emit(arg)) for arg in node.args))

    def _operator(self, node: Call, inputs: list[Node]) -> ast.expr | None:
        """Return plain Python for operators whose operand types are known."""
        kinds = [self._type(given).kind for given in inputs]
        if node.function in (tree.EQUALS, tree.NOT_EQUALS):
            return self._equality(node.function, inputs, kinds)
        if node.function in _COMPARE:
            return self._order(node.function, inputs, kinds)
        if node.function == tree.NOT and kinds[0] is Kind.BOOL:
            return ast.UnaryOp(ast.Not(), self.emit(inputs[0]), **_PLACE)
        return None if self._careful else self._raw_operator(node, inputs, kinds)

    def _raw_operator(self, node: Call, inputs: list[Node], kinds: list[Kind]) -> ast.expr | None:
        """Return a Python operator; the careful version raises the error messages."""
        if node.function == tree.INDEX and kinds[0] is Kind.MAP and kinds[1] in _RAW_KEYS:
            return ast.Subscript(self.emit(inputs[0]), self.emit(inputs[1]), ast.Load(), **_PLACE)
        if node.function == tree.IN and kinds[1] is Kind.MAP and kinds[0] in _RAW_KEYS:
            return _compare(ast.In(), self.emit(inputs[0]), self.emit(inputs[1]))
        if node.function in _DOUBLE_OPERATORS and kinds == [Kind.DOUBLE, Kind.DOUBLE]:
            operator = _DOUBLE_OPERATORS[node.function]()
            return ast.BinOp(self.emit(inputs[0]), operator, self.emit(inputs[1]), **_PLACE)
        return None

    def _equality(self, function: str, inputs: list[Node], kinds: list[Kind]) -> ast.expr | None:
        if not compares_plainly(self._checked, function, inputs):
            return None
        if kinds[0] is kinds[1] or self._compares_data_with_text(inputs):
            operator = ast.Eq() if function == tree.EQUALS else ast.NotEq()
            return _compare(operator, self.emit(inputs[0]), self.emit(inputs[1]))
        helper = runtime.equals_scalar if function == tree.EQUALS else runtime.unequal_scalar
        return self._helper(helper, self.emit(inputs[0]), self.emit(inputs[1]))

    def _compares_data_with_text(self, inputs: list[Node]) -> bool:
        """Report whether a field or element is compared with a text on the right.

        Python's equality is then correct: of Kubernetes' types only versions occur there, and they raise an error.
        """
        left, right = inputs
        path = isinstance(left, Select) or (isinstance(left, Call) and left.function == tree.INDEX)
        return path and isinstance(right, Literal) and _never_boolean(right.value)

    def _order(self, function: str, inputs: list[Node], kinds: list[Kind]) -> ast.expr | None:
        # Python compares integers with doubles exactly, Go rounds the integer.
        rounds = kinds.count(Kind.DOUBLE) == 1
        if rounds or not compares_plainly(self._checked, function, inputs):
            return None
        return _compare(_COMPARE[function](), self.emit(inputs[0]), self.emit(inputs[1]))

    # --- Aggregates.

    def _list(self, node: tree.ListNode) -> ast.expr:
        if not any(optional for _, optional in node.elements):
            return ast.List([self.emit(element) for element, _ in node.elements], ast.Load(), **_PLACE)
        parts = [_tuple(self.emit(element), _constant(optional)) for element, optional in node.elements]
        return self._helper(runtime.optional_elements, *parts)

    def _map(self, node: tree.MapNode) -> ast.expr:
        keys = [key.value for key, _, optional in node.entries if isinstance(key, Literal) and not optional]
        if len(keys) == len(node.entries) == len(set(keys)) and all(isinstance(key, str) for key in keys):
            values = [self.emit(value) for _, value, _ in node.entries]
            return ast.Dict([_constant(key) for key in keys], values, **_PLACE)
        parts = [_tuple(self.emit(key), self.emit(value), _constant(optional)) for key, value, optional in node.entries]
        return self._helper(runtime.make_map, *parts)

    # --- Macros.

    def _in_scope(self, names: dict[str, tuple[str, bool]], emit: Callable[[], ast.expr]) -> ast.expr:
        before = self._scope
        self._scope = before | names
        made = emit()
        self._scope = before
        return made

    def _comprehension(self, node: Comprehension) -> ast.expr:
        steps = self._helper(
            control.iterate if len(node.variables) == 1 else control.iterate_pairs,
            self._budget(),
            _constant(iteration_cost(self._checked, node)),
            self.emit(node.range),
        )
        locals_ = [self._fresh("local") for _ in node.variables]
        scope = {name: (local, False) for name, local in zip(node.variables, locals_, strict=True)}
        return self._in_scope(scope, lambda: self._loop(node, steps, locals_))

    def _loop(self, node: Comprehension, steps: ast.expr, locals_: list[str]) -> ast.expr:
        if self._careful and node.macro in (Macro.ALL, Macro.EXISTS):
            assert node.condition is not None
            condition: ast.expr = _lambda(locals_, self.emit(node.condition))
            if len(locals_) > 1:
                condition = self._helper(control.unpacked, condition)
            helper = control.absorb_all if node.macro is Macro.ALL else control.absorb_exists
            return self._helper(helper, steps, condition)
        target = (
            _store(locals_[0]) if len(locals_) == 1 else ast.Tuple([_store(n) for n in locals_], ast.Store(), **_PLACE)
        )
        filtering = node.macro not in _DECIDERS and node.condition is not None
        conditions = [self._condition(node.condition)] if filtering and node.condition is not None else []
        clause = ast.comprehension(target, steps, conditions, 0)
        if node.macro in _LISTS:
            element = _name(locals_[0]) if node.transform is None else self.emit(node.transform)
            return ast.ListComp(element, [clause], **_PLACE)
        return self._helper(_COLLECTORS[node.macro], ast.GeneratorExp(self._step(node, locals_), [clause], **_PLACE))

    def _step(self, node: Comprehension, locals_: list[str]) -> ast.expr:
        if node.macro in _DECIDERS:
            assert node.condition is not None
            return self._condition(node.condition)
        assert node.transform is not None
        made = self.emit(node.transform)
        return _tuple(_name(locals_[0]), made) if node.macro is Macro.TRANSFORM_MAP else made

    def _bind(self, node: Bind) -> ast.expr:
        value = self.emit(node.value)
        local = self._fresh("local")
        if self._careful:
            # An error in a value that is never used is ignored.
            value = self._helper(control.Lazy, _lambda([], value))
        body = self._in_scope({node.name: (local, self._careful)}, lambda: self.emit(node.body))
        return _invoke(_lambda([local], body), [value])

    def _optional_map(self, node: OptionalMap) -> ast.expr:
        target = self.emit(node.target)
        local = self._fresh("local")
        body = self._in_scope({node.name: (local, False)}, lambda: self.emit(node.body))
        helper = control.optional_flat_map if node.flat else control.optional_map
        return self._helper(helper, target, _lambda([local], body))


_DECIDERS: Final = frozenset({Macro.ALL, Macro.EXISTS, Macro.EXISTS_ONE})
_LISTS: Final = frozenset({Macro.MAP, Macro.FILTER, Macro.TRANSFORM_LIST})
_COLLECTORS: Final[dict[Macro, Callable[..., Any]]] = {
    Macro.ALL: all,
    Macro.EXISTS: any,
    Macro.EXISTS_ONE: control.exactly_one,
    Macro.TRANSFORM_MAP: control.collect_map,
    Macro.TRANSFORM_MAP_ENTRY: control.merge_entries,
}
