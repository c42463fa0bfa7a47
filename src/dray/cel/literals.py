"""Literals that cannot work: refused when an expression is compiled, with the messages of cel-go.

Patterns, durations, timestamps and format strings are checked with the types; conversions of constants are evaluated,
and fail as the instantiation of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from dray.cel import tree
from dray.cel.checker import Checked
from dray.cel.errors import CELError, CELRuntimeError, Issue
from dray.cel.library.formatting import ERRORS, clauses
from dray.cel.library.kubernetes import pattern
from dray.cel.library.times import parse_duration, parse_timestamp
from dray.cel.tree import Call, ListNode, Literal, MapNode, Node
from dray.cel.types import Kind

# The functions whose first argument is checked if it is a literal text.
_PARSERS: Final[dict[str, Callable[[str], object]]] = {
    "matches": pattern,
    "duration": parse_duration,
    "timestamp": parse_timestamp,
}
# Conversions are evaluated if their argument is a constant.
_CONVERSIONS: Final = frozenset({"bool", "bytes", "double", "duration", "int", "string", "timestamp", "uint"})
# Patterns of these functions are compiled with the program.
_COMPILED: Final = frozenset({"find", "findAll"})

_INTEGERS: Final = frozenset({Kind.INT, Kind.UINT})
_DOUBLES: Final = frozenset({Kind.DOUBLE, Kind.STRING})
_HEX: Final = _INTEGERS | {Kind.STRING, Kind.BYTES}
_TEXTS: Final = _HEX | {
    *(Kind.LIST, Kind.MAP, Kind.DOUBLE, Kind.BOOL, Kind.TIMESTAMP, Kind.DURATION, Kind.TYPE, Kind.NULL),
}
_KINDS: Final = {
    "s": _TEXTS,
    "d": _INTEGERS,
    "o": _INTEGERS,
    "b": _INTEGERS | {Kind.BOOL},
    "f": _DOUBLES,
    "e": _DOUBLES,
    "x": _HEX,
    "X": _HEX,
}
_UNKNOWN: Final = object()


def check_literals(checked: Checked) -> None:
    """Raise a `CELError` if a literal of the expression can never work."""
    issues = [issue for node in tree.walk(checked.root) if isinstance(node, Call) for issue in _issues(checked, node)]
    if issues:
        raise CELError.of(checked.source, issues)
    for node in tree.walk(checked.root):
        if isinstance(node, Call):
            _instantiate(checked, node)


def _issues(checked: Checked, node: Call) -> Iterator[Issue]:
    parse = _PARSERS.get(node.function)
    if parse is not None and node.args and _is_text(node.args[0]) and not _works(parse, node.args[0]):
        yield Issue(node.args[0].offset, f"invalid {node.function} argument")
    if node.function == "format" and isinstance(node.target, Literal) and len(node.args) == 1:
        template, args = node.target.value, node.args[0]
        if isinstance(template, str) and isinstance(args, ListNode):
            yield from _format_issues(checked, node, template, [element for element, _ in args.elements])


def _is_text(node: Node) -> bool:
    return isinstance(node, Literal) and isinstance(node.value, str)


def _works(parse: Callable[[str], object], node: Node) -> bool:
    assert isinstance(node, Literal), "only literal texts are parsed"
    try:
        parse(node.value)
    except CELRuntimeError:
        return False
    return True


def _format_issues(checked: Checked, node: Call, template: str, args: Sequence[Node]) -> Iterator[Issue]:
    """Yield the first mistake in a format string, or that it has too few clauses for the arguments."""
    used = 0
    try:
        for clause in clauses(template):
            if not clause.verb:
                break
            if used >= len(args):
                yield Issue(node.offset, f"index {used} out of range")
                return
            bad = _unformattable(checked, clause.verb, args[used])
            if bad is not None:
                shown = checked.types[bad].type_name
                yield Issue(bad.offset, f"error during formatting: {ERRORS[clause.verb]}, was given {shown}")
                return
            used += 1
    except CELRuntimeError as error:
        yield Issue(node.offset, str(error))
        return
    if len(args) > used:
        text = f"too many arguments supplied to string.format (expected {used}, got {len(args)})"
        yield Issue(node.offset, text)


def _unformattable(checked: Checked, verb: str, node: Node) -> Node | None:
    """Return the argument, or the part of it, that the clause cannot format."""
    given = checked.types[node]
    if not given.is_dyn and given.kind not in _KINDS[verb]:
        return node
    if verb != "s":
        return None
    parts: list[Node] = []
    if isinstance(node, ListNode):
        parts = [element for element, _ in node.elements]
    elif isinstance(node, MapNode):
        parts = [part for key, value, _ in node.entries for part in (key, value)]
    return next((bad for part in parts if (bad := _unformattable(checked, verb, part)) is not None), None)


# --- Constants


def _instantiate(checked: Checked, node: Call) -> None:
    if node.function in _CONVERSIONS and node.target is None:
        _constant(checked, node)
    elif node.function in _COMPILED and node.args and _is_text(node.args[0]):
        literal = node.args[0]
        assert isinstance(literal, Literal), "a text"
        _evaluated(lambda: pattern(literal.value))


def _constant(checked: Checked, node: Node) -> Any:
    """Return the value of a literal, or of a conversion of one; raises an error if it cannot be converted."""
    if isinstance(node, Literal):
        return node.value
    if not isinstance(node, Call) or node.function not in _CONVERSIONS or node.target is not None:
        return _UNKNOWN
    overloads = checked.overloads.get(node, [])
    value = _constant(checked, node.args[0]) if len(node.args) == 1 else _UNKNOWN
    if value is _UNKNOWN or len(overloads) != 1:
        return _UNKNOWN
    return _evaluated(lambda: overloads[0].implementation(value))


def _evaluated(evaluate: Callable[[], Any]) -> Any:
    try:
        return evaluate()
    except CELRuntimeError as error:
        raise CELError(f"program instantiation failed: {error}") from None
