"""Sets of field paths in the form of `fieldsV1`.

A node is a dict from path elements to nodes: `f:name` a member, `k:{…}` a list item by its keys, `v:…` an element of a
set, `i:n` an index. An empty node is a path in the set; a path in the set with others below it has the element `.`. The
root is the empty path. Every tree is in Kubernetes' order at every level, so that it is its own wire form. Trees are
shared between sets and immutable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec

from dray.lib.processor_time import tick, ticking

Tree: TypeAlias = dict[str, Any]
Path: TypeAlias = tuple[str, ...]

_RANKS: Final = {"f": 1, "k": 2, "v": 3, "i": 4}
# Created once: `json.dumps` creates another at each call with options.
_WRITER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, sort_keys=True)
# The node of every path without paths below it.
LEAF: Final[Tree] = {}


class FieldsFormatError(ValueError):
    """An invalid `fieldsV1`."""


class FieldSet(msgspec.Struct, frozen=True):
    """An immutable set of field paths."""

    tree: Tree = {}

    @classmethod
    def of(cls, *paths: Iterable[str]) -> FieldSet:
        """Return the set of these paths, each a sequence of path elements."""
        tree: Tree = {}
        for path in paths:
            node: Tree = {}
            for element in reversed(tuple(path)):
                node = {element: node}
            tree = union(tree, node)
        return cls(tree)

    @classmethod
    def from_fields_v1(cls, fields: Any) -> FieldSet:
        """Decode the wire form, in any order and spelling."""
        if not isinstance(fields, dict):
            raise FieldsFormatError("fieldsV1 is not an object")
        return cls(_decode(fields))

    def __bool__(self) -> bool:
        return bool(self.tree)

    def __contains__(self, path: Path) -> bool:
        node: Tree | None = self.tree
        for element in path:
            node = None if node is None else node.get(element)
        return node is not None and bool(path) and is_member(node)

    def __or__(self, other: FieldSet) -> FieldSet:
        return FieldSet(union(self.tree, other.tree))

    def __and__(self, other: FieldSet) -> FieldSet:
        return FieldSet(intersection(self.tree, other.tree))

    def __sub__(self, other: FieldSet) -> FieldSet:
        """Return the difference; the set itself when they are disjoint."""
        # The keys of two trees are compared first, since most sets have nothing in common.
        if self.tree.keys().isdisjoint(other.tree):
            return self
        kept = difference(self.tree, other.tree)
        return self if kept is self.tree else FieldSet(kept)

    def without_below(self, other: FieldSet) -> FieldSet:
        """Return the set without the other's paths and everything below them; the set itself when they are disjoint."""
        if self.tree.keys().isdisjoint(other.tree):
            return self
        kept = recursive_difference(self.tree, other.tree)
        return self if kept is self.tree else FieldSet(kept)

    def paths(self) -> Iterator[Path]:
        """Yield every path in Kubernetes' order: those that end at a level before those that continue."""
        yield from _paths(self.tree, ())


NOTHING: Final = FieldSet()


def is_member(node: Tree) -> bool:
    """Report whether the node's own path is in the set."""
    return not node or "." in node


def union(left: Tree, right: Tree) -> Tree:
    """Return the paths of either tree; the left one itself when it has every path of the right one."""
    if not left or not right:
        return left or right
    if len(left) < len(right):
        # The smaller tree is merged into the larger one.
        left, right = right, left
    result = left
    for element, node in ticking(right.items()):
        mine = left.get(element)
        both = node if mine is None else _union_nodes(mine, node)
        if both is not mine:
            if result is left:
                result = dict(left)
            result[element] = both
    return result if len(result) == len(left) else ordered(result)


def _union_nodes(left: Tree, right: Tree) -> Tree:
    if left and right:
        return union(left, right)
    node = left if left or not right else right
    return node if is_member(node) else {".": LEAF, **node}


def intersection(left: Tree, right: Tree) -> Tree:
    """Return the paths of both trees."""
    result: Tree = {}
    for element, node in ticking(left.items()):
        other = right.get(element)
        if other is None or element == ".":
            continue
        both = intersection(node, other)
        if is_member(node) and is_member(other):
            result[element] = {".": LEAF, **both} if both else LEAF
        elif both:
            result[element] = both
    return result


def difference(left: Tree, right: Tree) -> Tree:
    """Return the paths of the left tree that are not in the right one; paths below a removed one stay."""
    result = left
    for element in ticking(left if len(left) <= len(right) else right):
        node, other = left.get(element), right.get(element)
        if node is None or other is None:
            continue
        kept = None
        if node != other:
            kept = _kept(node, difference(node, other), member=is_member(node) and not is_member(other))
        if kept is not node:
            result = _replaced(result, left, element, kept)
    return result


def recursive_difference(left: Tree, right: Tree) -> Tree:
    """Return the paths of the left tree that are neither in the right one nor below one of its paths."""
    result = left
    for element in ticking(left if len(left) <= len(right) else right):
        node, other = left.get(element), right.get(element)
        if node is None or other is None or element == ".":
            continue
        kept = None if is_member(other) else _kept(node, recursive_difference(node, other), member=is_member(node))
        if kept is not node:
            result = _replaced(result, left, element, kept)
    return result


def _kept(node: Tree, children: Tree, *, member: bool) -> Tree | None:
    """Return a node with only these children, and its own path or not; None when it is empty."""
    if children is node and member == is_member(node):
        return node
    if "." in children:
        children = {name: child for name, child in children.items() if name != "."}
    if children:
        return {".": LEAF, **children} if member else children
    return LEAF if member else None


def _replaced(result: Tree, original: Tree, element: str, node: Tree | None) -> Tree:
    """Return the result with another node, or without it; the shared original is copied first."""
    if result is original:
        result = dict(original)
    if node is None:
        del result[element]
    else:
        result[element] = node
    return result


def _paths(tree: Tree, prefix: Path) -> Iterator[Path]:
    tick()
    elements = [element for element in sorted_elements(tree) if element != "."]
    for element in elements:
        if is_member(tree[element]):
            yield (*prefix, element)
    for element in elements:
        yield from _paths(tree[element], (*prefix, element))


# --- Wire form.


def ordered(tree: Tree) -> Tree:
    """Return the tree with its first level in Kubernetes' order."""
    if len(tree) <= 1:
        return tree
    elements = sorted_elements(tree)
    return tree if elements == list(tree) else {element: tree[element] for element in ticking(elements)}


def sorted_elements(tree: Tree) -> list[str]:
    """Return path elements in Kubernetes' order: the dot, members, items by key, elements by value, indices."""
    elements = sorted(tree)
    # Members sort by their text, the dot before them, and everything else after them by its text.
    if not elements or elements[-1] < "g":
        return elements
    # Nearly in order, so that few are compared.
    places = {element: _order(element) for element in ticking(elements)}
    return sorted(elements, key=places.__getitem__)


# The same few items occur in nearly every object of a kind.
@lru_cache(maxsize=4096)
def _order(element: str) -> tuple[Any, ...]:
    kind, _, rest = element.partition(":")
    if kind == "k":
        return (2, tuple((name, _value_order(value)) for name, value in json.loads(rest).items()))
    if kind == "v":
        return (3, _value_order(json.loads(rest)))
    return (4, int(rest)) if kind == "i" else (_RANKS.get(kind, 0), rest)


def _value_order(value: Any) -> tuple[int, Any]:
    if isinstance(value, bool):
        return (2, value)
    if isinstance(value, int | float):
        return (0, value)
    return (1, value) if isinstance(value, str) else (3, json.dumps(value))


def key_element(keys: dict[str, Any]) -> str:
    """Return the path element of a list item with these keys."""
    return "k:" + _WRITER.encode(keys)


def value_element(value: Any) -> str:
    """Return the path element of an element of a set."""
    return f'v:"{value}"' if value.__class__ is str and is_plain_text(value) else "v:" + _WRITER.encode(value)


# Matches a text of printable ASCII characters that JSON does not escape, as nearly all names are.
is_plain_text: Final = re.compile(r"[ !#-\[\]-~]*").fullmatch


def _decode(fields: Tree) -> Tree:
    tick()
    tree: Tree = {}
    for element, raw in fields.items():
        if not isinstance(raw, dict):
            raise FieldsFormatError(f"fields of {element!r} are not an object")
        if element == ".":
            tree["."] = LEAF
            continue
        name = _decode_element(element)
        if name is not None:
            node = _decode(raw)
            tree[name] = LEAF if node.keys() == {"."} else node
    return ordered(tree)


def _decode_element(element: str) -> str | None:
    kind, colon, rest = element.partition(":")
    if not colon:
        raise FieldsFormatError(f"missing colon: {element}")
    try:
        if kind == "k":
            return key_element(dict(json.loads(rest)))
        if kind == "v":
            return value_element(json.loads(rest))
        if kind == "i":
            return f"i:{int(rest)}"
    except (ValueError, TypeError) as error:
        raise FieldsFormatError(f"{element}: {error}") from None
    # Elements of unknown kinds are skipped, for compatibility with newer writers.
    return element if kind == "f" else None


def path_text(path: Path) -> str:
    """Return a path as messages print it: `.spec.containers[name="c"].image`."""
    return "".join(map(element_text, path))


def element_text(element: str) -> str:
    """Return one path element as messages print it."""
    kind, _, rest = element.partition(":")
    if kind == "f":
        return f".{rest}"
    if kind == "k":
        keys = json.loads(rest)
        listed = ",".join(f"{name}={json.dumps(keys[name], ensure_ascii=False)}" for name in keys)
        return f"[{listed}]"
    return f"[={rest}]" if kind == "v" else f"[{rest}]"
