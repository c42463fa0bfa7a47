"""Type checker: the type of every node, and the overload candidates of its calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dray.cel import tree, types
from dray.cel.errors import CELError, Issue
from dray.cel.signatures import Overload, Registry
from dray.cel.tree import Bind, Call, Comprehension, Ident, Macro, Node, OptionalMap, Select, qualified_name
from dray.cel.types import BOOL, DYN, Kind, Substitution, Type
from dray.cel.values import Uint

_LITERAL_TYPES: Final[Mapping[type, Type]] = {
    bool: BOOL,
    int: types.INT,
    Uint: types.UINT,
    float: types.DOUBLE,
    str: types.STRING,
    bytes: types.BYTES,
    type(None): types.NULL,
}
# Functions that take lists of any element type.
_MIXING: Final = frozenset({"format"})
# The operator around a macro's condition after expansion, which messages name.
_CONDITION_OPERATOR: Final = {Macro.ALL: tree.AND, Macro.EXISTS: tree.OR}


@dataclass(slots=True)
class Checked:
    """A checked expression."""

    source: str
    root: Node
    types: dict[Node, Type]
    overloads: dict[Node, list[Overload]]
    # Calls whose receiver is part of the function's qualified name.
    namespaced: dict[Node, str]
    # Identifiers and selections that denote a type.
    type_values: dict[Node, Type]
    variables: Mapping[str, Type]

    @property
    def result_type(self) -> Type:
        """Return the type of the whole expression."""
        return self.types[self.root]


def check(
    source: str, root: Node, registry: Registry, variables: Mapping[str, Type], *, homogeneous: bool = True
) -> Checked:
    """Check an expression; `homogeneous` rejects literals of mixed types, as Kubernetes does."""
    checker = _Checker(registry, variables, homogeneous=homogeneous)
    try:
        checker.visit(root)
    except RecursionError:
        issue = Issue(0, f"expression recursion limit exceeded: {tree.DEPTH_MAX}")
        raise CELError.of(source, [issue]) from None
    if checker.issues:
        raise CELError.of(source, checker.issues)
    final = {
        node: checker.bindings.apply(found, unbound_to_dyn=True) if found.params or found.kind is Kind.PARAM else found
        for node, found in checker.types.items()
    }
    return Checked(
        source=source,
        root=root,
        types=final,
        overloads=checker.overloads,
        namespaced=checker.namespaced,
        type_values=checker.type_values,
        variables=checker.variables,
    )


@dataclass(slots=True)
class _Scope:
    names: dict[str, Type]
    parent: _Scope | None = None

    def find(self, name: str) -> Type | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None


class _Checker:
    def __init__(self, registry: Registry, variables: Mapping[str, Type], *, homogeneous: bool) -> None:
        self._functions = registry.functions
        self._homogeneous = homogeneous
        self._scope = _Scope(dict(variables))
        self._fresh = 0
        self.variables = variables
        self.bindings = Substitution()
        self.types: dict[Node, Type] = {}
        self.overloads: dict[Node, list[Overload]] = {}
        self.namespaced: dict[Node, str] = {}
        self.type_values: dict[Node, Type] = {}
        self.issues: list[Issue] = []
        self._visitors = {
            tree.Literal: self._literal,
            Ident: self._ident,
            Select: self._select,
            Call: self._call,
            tree.ListNode: self._list,
            tree.MapNode: self._map,
            tree.StructNode: self._struct,
            Comprehension: self._comprehension,
            Bind: self._bind,
            OptionalMap: self._optional_map,
        }

    def visit(self, node: Node) -> Type:
        """Check a node and its descendants."""
        found: Type = self._visitors[type(node)](node)  # type: ignore[operator]
        self.types[node] = found
        return found

    def _report(self, node: Node, message: str) -> Type:
        self.issues.append(Issue(node.offset, message))
        return types.ERROR

    def _shown(self, found: Type) -> str:
        return str(self.bindings.apply(found, unbound_to_dyn=True))

    def _new_param(self) -> Type:
        self._fresh += 1
        return types.param(f"_var{self._fresh}")

    def _within(self, names: Mapping[str, Type], node: Node) -> Type:
        self._scope = _Scope(dict(names), self._scope)
        found = self.visit(node)
        parent = self._scope.parent
        assert parent is not None
        self._scope = parent
        return found

    # --- Leaves.

    def _literal(self, node: tree.Literal) -> Type:
        return _LITERAL_TYPES[type(node.value)]

    def _ident(self, node: Ident) -> Type:
        return self._named(node, node.name) or self._undeclared(node, node.name)

    def _named(self, node: Node, name: str) -> Type | None:
        found = self._scope.find(name)
        if found is not None:
            return found
        named = types.TYPE_NAMES.get(name)
        if named is None:
            return None
        self.type_values[node] = named
        return types.type_of(named)

    def _undeclared(self, node: Node, name: str) -> Type:
        return self._report(node, f"undeclared reference to '{name}' (in container '')")

    def _struct(self, node: tree.StructNode) -> Type:
        return self._undeclared(node, node.name)

    # --- Selection.

    def _select(self, node: Select) -> Type:
        name = qualified_name(node)
        if name is not None and self._scope.find(name.partition(".")[0]) is None:
            named = self._named(node, name)
            if named is not None:
                return named
        operand = self.bindings.apply(self.visit(node.operand))
        if node.optional:
            inner = operand.params[0] if operand.is_optional else operand
            return types.optional_of(self._field(node, inner))
        if operand.is_optional and not node.test:
            return types.optional_of(self._field(node, operand.params[0]))
        found = self._field(node, operand.params[0] if operand.is_optional else operand)
        return BOOL if node.test and found.kind is not Kind.ERROR else found

    def _field(self, node: Select, operand: Type) -> Type:
        if operand.kind is Kind.MAP:
            return operand.params[1]
        if operand.kind is Kind.OBJECT:
            declared = operand.fields.get(node.field)
            return declared.type if declared else self._report(node, f"undefined field '{node.field}'")
        if operand.kind is Kind.PARAM:
            self.bindings.assignable(DYN, operand)
            return DYN
        if operand.is_dyn:
            return DYN if operand.kind is not Kind.ERROR else types.ERROR
        return self._report(node, f"type '{self._shown(operand)}' does not support field selection")

    # --- Calls.

    def _call(self, node: Call) -> Type:
        if node.function in (tree.AND, tree.OR):
            return self._logical(node)
        if node.function == tree.CONDITIONAL:
            return self._conditional(node)
        target = node.target
        prefix = qualified_name(target)
        if prefix is not None and f"{prefix}.{node.function}" in self._functions:
            self.namespaced[node] = f"{prefix}.{node.function}"
            args = [self.visit(arg) for arg in node.args]
            return self._resolve(node, self.namespaced[node], args, member=False)
        if node.function not in self._functions:
            for child in (target, *node.args):
                if child is not None:
                    self.visit(child)
            return self._undeclared(node, node.function)
        if node.function in _MIXING:
            return self._check_mixed_call(node)
        args = [self.visit(child) for child in ((target, *node.args) if target is not None else node.args)]
        return self._resolve(node, node.function, args, member=target is not None)

    def _check_mixed_call(self, node: Call) -> Type:
        """Check a call whose arguments may contain literals of mixed types."""
        before, self._homogeneous = self._homogeneous, False
        children = (node.target, *node.args) if node.target is not None else node.args
        args = [self.visit(child) for child in children]
        self._homogeneous = before
        return self._resolve(node, node.function, args, member=node.target is not None)

    def _resolve(self, node: Call, function: str, args: list[Type], *, member: bool) -> Type:
        matching: list[Overload] = []
        result: Type | None = None
        for overload in self._functions[function]:
            if overload.member is not member or len(overload.params) != len(args):
                continue
            params, returned = self._instantiate(overload)
            if not self.bindings.assignable_all(args, params):
                continue
            matching.append(overload)
            outcome = self.bindings.apply(returned)
            if result is None:
                result = outcome
            elif result != outcome:
                result = DYN
        if result is None:
            return self._no_overload(node, function, args, member=member)
        self.overloads[node] = matching
        return result

    def _instantiate(self, overload: Overload) -> tuple[Sequence[Type], Type]:
        """Return parameters and result with fresh type parameters."""
        if not overload.is_generic:
            return overload.params, overload.result
        names: dict[str, Type] = {}
        return [self._renamed(given, names) for given in overload.params], self._renamed(overload.result, names)

    def _renamed(self, given: Type, names: dict[str, Type]) -> Type:
        if given.kind is Kind.PARAM:
            if given.name not in names:
                names[given.name] = self._new_param()
            return names[given.name]
        if not given.params:
            return given
        return Type(given.kind, given.name, tuple([self._renamed(inner, names) for inner in given.params]))

    def _no_overload(self, node: Node, function: str, args: list[Type], *, member: bool) -> Type:
        if any(arg.kind is Kind.ERROR for arg in args):
            return types.ERROR
        shown = [self._shown(arg) for arg in args]
        applied = f"{shown[0]}.({', '.join(shown[1:])})" if member else f"({', '.join(shown)})"
        return self._report(node, f"found no matching overload for '{function}' applied to '{applied}'")

    def _logical(self, node: Call) -> Type:
        found = [self.visit(arg) for arg in node.args]
        for place, given in enumerate(found):
            if not self.bindings.assignable(given, BOOL):
                pair = [found[0], found[1]] if place <= 1 else [BOOL, given]
                return self._no_overload(node, node.function, pair, member=False)
        return BOOL

    def _conditional(self, node: Call) -> Type:
        given = [self.visit(arg) for arg in node.args]
        outcome = self._new_param()
        if not self.bindings.assignable_all(given, [BOOL, outcome, outcome]):
            return self._no_overload(node, tree.CONDITIONAL, given, member=False)
        return self.bindings.apply(outcome)

    # --- Aggregates.

    def _join(self, nodes: Iterable[tuple[Node, bool]]) -> Type:
        """Return the common type of literal elements; optional elements count by their value type."""
        joined: Type | None = None
        for node, optional in nodes:
            found = self.visit(node)
            if optional:
                found = self._unwrapped(node, found)
            if joined is None:
                joined = found
            elif self._mixes(joined, found):
                if self._homogeneous and not joined.is_dyn and not found.is_dyn:
                    self._report(node, f"expected type '{self._shown(joined)}' but found '{self._shown(found)}'")
                joined = DYN
            elif types.more_general(self.bindings.apply(found), self.bindings.apply(joined)):
                joined = found
        return self._new_param() if joined is None else joined

    def _mixes(self, joined: Type, found: Type) -> bool:
        if found.kind is Kind.DYN and joined.kind is not Kind.DYN:
            return True
        return not self.bindings.assignable(found, joined)

    def _unwrapped(self, node: Node, found: Type) -> Type:
        found = self.bindings.apply(found)
        if found.is_optional:
            return found.params[0]
        if not found.is_dyn:
            self._report(node, f"expected type 'optional_type({self._shown(found)})' but found '{self._shown(found)}'")
        return DYN

    def _list(self, node: tree.ListNode) -> Type:
        return types.list_of(self._join(node.elements))

    def _map(self, node: tree.MapNode) -> Type:
        key = self._join((entry[0], False) for entry in node.entries)
        if key.params:
            # No such key exists at run time, and types with two long branches could double with every nesting.
            key = DYN
        value = self._join((entry[1], entry[2]) for entry in node.entries)
        return types.map_of(key, value)

    # --- Macros.

    def _comprehension(self, node: Comprehension) -> Type:
        given = self.bindings.apply(self.visit(node.range))
        first, second = self._iteration_types(node, given)
        if len(node.variables) == 1:
            scope = {node.variables[0]: second if given.kind is Kind.LIST else first}
        else:
            scope = dict(zip(node.variables, (first, second), strict=True))
        if node.condition is not None:
            condition = self._within(scope, node.condition)
            if not self.bindings.assignable(condition, BOOL):
                operator = _CONDITION_OPERATOR.get(node.macro)
                applied = [BOOL, condition] if operator else [condition, DYN, DYN]
                self._no_overload(node, operator or tree.CONDITIONAL, applied, member=False)
        made = self._within(scope, node.transform) if node.transform is not None else None
        return self._made(node, made, first, next(iter(scope.values())))

    def _iteration_types(self, node: Comprehension, given: Type) -> tuple[Type, Type]:
        """Return the types of key and value; a list is iterated by index and element."""
        if given.kind is Kind.LIST:
            return types.INT, given.params[0]
        if given.kind is Kind.MAP:
            return given.params[0], given.params[1]
        if given.kind is Kind.PARAM:
            self.bindings.assignable(DYN, given)
        elif given.kind not in (Kind.DYN, Kind.ERROR):
            self._report(
                node.range,
                f"expression of type '{self._shown(given)}' cannot be range of a comprehension "
                "(must be list, map, or dynamic)",
            )
        return DYN, DYN

    def _made(self, node: Comprehension, made: Type | None, key: Type, element: Type) -> Type:
        if node.macro is Macro.FILTER:
            return types.list_of(element)
        if made is None:
            return BOOL
        if node.macro is Macro.TRANSFORM_MAP:
            return types.map_of(key, made)
        if node.macro is Macro.TRANSFORM_MAP_ENTRY:
            entry = types.map_of(self._new_param(), self._new_param())
            if not self.bindings.assignable(made, entry):
                self._no_overload(node, "cel.@mapInsert", [types.map_of(DYN, DYN), made], member=False)
            return self.bindings.apply(entry)
        return types.list_of(made)

    def _bind(self, node: Bind) -> Type:
        return self._within({node.name: self.visit(node.value)}, node.body)

    def _optional_map(self, node: OptionalMap) -> Type:
        target = self.visit(node.target)
        held = self._new_param()
        if not self.bindings.assignable(target, types.optional_of(held)):
            self._no_overload(node, "hasValue", [target], member=True)
            held = types.ERROR
        body = self._within({node.name: self.bindings.apply(held)}, node.body)
        if not node.flat:
            return types.optional_of(body)
        if not self.bindings.assignable(body, types.optional_of(self._new_param())):
            args = [BOOL, body, types.optional_of(DYN)]
            return self._no_overload(node, tree.CONDITIONAL, args, member=False)
        return self.bindings.apply(body)
