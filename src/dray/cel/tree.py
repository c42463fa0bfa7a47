"""The syntax tree. Macros are kept as nodes; nothing is expanded into folds."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

# Deeper expressions are rejected: every stage recurses over the tree, within Python's limit of a thousand
# calls. Chains of operators deepen the tree; brackets also cost the parser several calls each.
DEPTH_MAX: Final = 200
NESTING_MAX: Final = 100


class Macro(enum.StrEnum):
    """The comprehensions, by their result."""

    ALL = "all"
    EXISTS = "exists"
    EXISTS_ONE = "exists_one"
    MAP = "map"
    FILTER = "filter"
    TRANSFORM_LIST = "transformList"
    TRANSFORM_MAP = "transformMap"
    TRANSFORM_MAP_ENTRY = "transformMapEntry"


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A constant."""

    offset: int
    depth: int
    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Ident:
    """A variable, a type name, or the first part of a qualified name."""

    offset: int
    depth: int
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Select:
    """`operand.field`, `operand.?field` when optional, `has(operand.field)` when a test."""

    offset: int
    depth: int
    operand: Node
    field: str
    optional: bool = False
    test: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A function, method or operator; operators have names such as `_+_`."""

    offset: int
    depth: int
    function: str
    target: Node | None
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ListNode:
    """A list; an optional element is included only when it has a value."""

    offset: int
    depth: int
    elements: tuple[tuple[Node, bool], ...]


@dataclass(frozen=True, slots=True, eq=False)
class MapNode:
    """A map of key, value and whether the value is optional."""

    offset: int
    depth: int
    entries: tuple[tuple[Node, Node, bool], ...]


@dataclass(frozen=True, slots=True, eq=False)
class StructNode:
    """A message; no environment declares one, so it never passes the checker."""

    offset: int
    depth: int
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Comprehension:
    """A macro over a list or map; `condition` filters or decides, `transform` computes the result."""

    offset: int
    depth: int
    macro: Macro
    range: Node
    variables: tuple[str, ...]
    condition: Node | None
    transform: Node | None


@dataclass(frozen=True, slots=True, eq=False)
class Bind:
    """`cel.bind(name, value, body)`."""

    offset: int
    depth: int
    name: str
    value: Node
    body: Node


@dataclass(frozen=True, slots=True, eq=False)
class OptionalMap:
    """`target.optMap(name, body)`; flat when the body itself is optional."""

    offset: int
    depth: int
    target: Node
    name: str
    body: Node
    flat: bool


Node: TypeAlias = Literal | Ident | Select | Call | ListNode | MapNode | StructNode | Comprehension | Bind | OptionalMap

AND: Final = "_&&_"
OR: Final = "_||_"
CONDITIONAL: Final = "_?_:_"
INDEX: Final = "_[_]"
OPTIONAL_INDEX: Final = "_[?_]"
NOT: Final = "!_"
NEGATE: Final = "-_"
IN: Final = "@in"
EQUALS: Final = "_==_"
NOT_EQUALS: Final = "_!=_"


def qualified_name(node: Node | None) -> str | None:
    """Return the dotted name of a chain of selections, None if it is not one."""
    if isinstance(node, Ident):
        return node.name
    if isinstance(node, Select) and not node.test and not node.optional:
        head = qualified_name(node.operand)
        return f"{head}.{node.field}" if head else None
    return None


def children(node: Node) -> list[Node]:
    """Return the child nodes."""
    found: list[Node | None] = []
    if isinstance(node, Select):
        found = [node.operand]
    elif isinstance(node, Call):
        found = [node.target, *node.args]
    elif isinstance(node, ListNode):
        found = [element for element, _ in node.elements]
    elif isinstance(node, MapNode):
        found = [child for key, value, _ in node.entries for child in (key, value)]
    elif isinstance(node, Comprehension):
        found = [node.range, node.condition, node.transform]
    elif isinstance(node, Bind):
        found = [node.value, node.body]
    elif isinstance(node, OptionalMap):
        found = [node.target, node.body]
    return [child for child in found if child is not None]


def walk(root: Node) -> Iterator[Node]:
    """Yield the node and its descendants."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += children(node)
