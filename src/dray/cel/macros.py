"""Macros: calls that bind variables or use their arguments unevaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from dray.cel.tree import Bind, Call, Comprehension, Ident, Macro, Node, OptionalMap, Select

Report = Callable[[int, str], None]
_ACCUMULATORS: Final = frozenset({"__result__", "@result"})

# Not a valid identifier in source text.
_SORTED: Final = "@sorted"

# Name and number of arguments -> macro and number of iteration variables.
_COMPREHENSIONS: Final[Mapping[tuple[str, int], tuple[Macro, int]]] = {
    ("all", 2): (Macro.ALL, 1),
    ("exists", 2): (Macro.EXISTS, 1),
    ("exists_one", 2): (Macro.EXISTS_ONE, 1),
    ("existsOne", 2): (Macro.EXISTS_ONE, 1),
    ("map", 2): (Macro.MAP, 1),
    ("map", 3): (Macro.MAP, 1),
    ("filter", 2): (Macro.FILTER, 1),
    ("all", 3): (Macro.ALL, 2),
    ("exists", 3): (Macro.EXISTS, 2),
    ("exists_one", 3): (Macro.EXISTS_ONE, 2),
    ("existsOne", 3): (Macro.EXISTS_ONE, 2),
    ("transformList", 3): (Macro.TRANSFORM_LIST, 2),
    ("transformList", 4): (Macro.TRANSFORM_LIST, 2),
    ("transformMap", 3): (Macro.TRANSFORM_MAP, 2),
    ("transformMap", 4): (Macro.TRANSFORM_MAP, 2),
    ("transformMapEntry", 3): (Macro.TRANSFORM_MAP_ENTRY, 2),
    ("transformMapEntry", 4): (Macro.TRANSFORM_MAP_ENTRY, 2),
}
_DECIDING: Final = frozenset({Macro.ALL, Macro.EXISTS, Macro.EXISTS_ONE, Macro.FILTER})


def expand(report: Report, *, offset: int, name: str, target: Node | None, args: tuple[Node, ...]) -> Node | None:
    """Return the macro that the call stands for, None for a plain call."""
    if target is None:
        return _expand_has(report, offset, args) if name == "has" and len(args) == 1 else None
    match name, args:
        case "bind", (_, _, _) if isinstance(target, Ident) and target.name == "cel":
            return _expand_bind(report, offset, args)
        case "optMap" | "optFlatMap", (_, _):
            return _expand_optional(report, offset, target=target, args=args, flat=name == "optFlatMap")
        case "sortBy", (_, _):
            return _expand_sort(report, offset, target=target, args=args)
    found = _COMPREHENSIONS.get((name, len(args)))
    return None if found is None else _expand_comprehension(report, offset, found=found, target=target, args=args)


def _depth(*nodes: Node | None) -> int:
    return 1 + max((node.depth for node in nodes if node is not None), default=0)


def _expand_has(report: Report, offset: int, args: tuple[Node, ...]) -> Node:
    (argument,) = args
    if not isinstance(argument, Select) or argument.test or argument.optional:
        report(argument.offset, "invalid argument to has() macro")
        return argument
    return replace(argument, test=True, offset=offset)


def _expand_bind(report: Report, offset: int, args: tuple[Node, ...]) -> Node:
    name, value, body = args
    if not isinstance(name, Ident):
        report(name.offset, "cel.bind() variable names must be simple identifiers")
        return body
    return Bind(offset, _depth(value, body), name.name, value, body)


def _expand_optional(report: Report, offset: int, *, target: Node, args: tuple[Node, ...], flat: bool) -> Node:
    name, body = args
    if not isinstance(name, Ident):
        macro = "optFlatMap" if flat else "optMap"
        report(name.offset, f"{macro}() variable name must be a simple identifier")
        return body
    return OptionalMap(offset, _depth(target, body), target, name.name, body, flat)


def _expand_sort(report: Report, offset: int, *, target: Node, args: tuple[Node, ...]) -> Node:
    """Expand `sortBy` to the list, sorted by the list of its elements' keys."""
    values = Ident(offset, 1, _SORTED)
    found = (Macro.MAP, 1)
    keys = _expand_comprehension(report, offset, found=found, target=values, args=args)
    ordered = Call(offset, _depth(keys), "@sortByAssociatedKeys", values, (keys,))
    return Bind(offset, _depth(target, ordered), _SORTED, target, ordered)


def _expand_comprehension(
    report: Report, offset: int, *, found: tuple[Macro, int], target: Node, args: tuple[Node, ...]
) -> Node:
    macro, count = found
    names = tuple(name for name in (_variable(report, node) for node in args[:count]) if name)
    if len(names) == count > len(set(names)):
        report(args[1].offset, f"duplicate variable name: {names[1]}")
    rest = args[count:]
    condition: Node | None
    transform: Node | None
    if macro in _DECIDING:
        condition, transform = rest[0], None
    else:
        condition, transform = (rest[0], rest[1]) if len(rest) > 1 else (None, rest[0])
    return Comprehension(
        offset=offset,
        depth=_depth(target, *rest),
        macro=macro,
        range=target,
        variables=names,
        condition=condition,
        transform=transform,
    )


def _variable(report: Report, node: Node) -> str | None:
    if not isinstance(node, Ident):
        report(node.offset, "argument must be a simple name")
        return None
    if node.name in _ACCUMULATORS:
        report(node.offset, "iteration variable overwrites accumulator variable")
    return node.name
