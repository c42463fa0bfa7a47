"""Traversals of documents by shape: the fields of one, the difference of two, the removal of a set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dray.api.document import Document
from dray.api.schema.model import StructType
from dray.api.spec_cache import SpecCache
from dray.apiserver.patch.managed_fields.field_set import (
    LEAF,
    NOTHING,
    FieldSet,
    Tree,
    is_member,
    ordered,
)
from dray.apiserver.patch.managed_fields.shape import MISSING, Form, ItemKeyError, Shape, Slot, struct_shape
from dray.lib.processor_time import ticking


class Comparison(msgspec.Struct, frozen=True):
    """The difference of two documents; only an item with duplicate keys can be in both sets."""

    # The added and the modified fields, which an updater takes over.
    changed: FieldSet
    removed: FieldSet

    def without_below(self, ignored: FieldSet) -> Comparison:
        """Return the comparison without some fields and everything below them."""
        if not ignored.tree:
            return self
        return Comparison(self.changed.without_below(ignored), self.removed.without_below(ignored))


def fields_of(document: Document, struct: StructType) -> FieldSet:
    """Return the fields that a configuration sets and its applier owns: leaves, list items and map entries."""
    return FieldSet(set_fields(document, struct_shape(struct)))


def plain_fields(document: Document, struct: StructType) -> FieldSet | None:
    """Return the fields of a configuration, in the traversal that checks its types.

    None if it is not of its type, or has anything but messages, maps and lists of text; `type_errors` and `fields_of`
    then take a closer look.
    """
    tree = plain_map_fields(document, struct_shape(struct))
    return None if tree is None else FieldSet(tree)


def plain_map_fields(value: Document, shape: Shape) -> Tree | None:
    """Return the node of a message in the same traversal; None as there, and for a map that is no message."""
    tree: Tree = {}
    slots = shape.slots
    for name in ticking(sorted(value)):
        item = value[name]
        slot = slots.get(name)
        if slot is None:
            return None
        if item.__class__ is str and slot.is_text:
            tree[slot.element] = LEAF
            continue
        if item.__class__ is dict and slot.shape.form is Form.MAP:
            node = plain_map_fields(item, slot.shape)
        elif item.__class__ is list and slot.shape.form is Form.KEYED:
            node = _plain_item_fields(item, slot.shape)
        else:
            return None
        if not node:
            return None
        tree[slot.element] = node
    return tree


def _plain_item_fields(items: list[Any], shape: Shape) -> Tree | None:
    tree: Tree = {}
    if shape.item.form is not Form.MAP:
        return None
    for item in ticking(items):
        element = element_of(item, shape)
        if element is None or element in tree or item.__class__ is not dict:
            return None
        node = plain_map_fields(item, shape.item)
        if not node:
            return None
        tree[element] = {".": LEAF, **node}
    return ordered(tree)


def set_fields(value: Any, shape: Shape) -> Tree:
    """Return the node of a value that is not a leaf."""
    if not isinstance(value, shape.walked):
        return LEAF
    return _set_map_fields(value, shape) if shape.is_map else _set_item_fields(value, shape)


def _set_map_fields(value: Document, shape: Shape) -> Tree:
    tree: Tree = {}
    slots = shape.slots
    for name in ticking(sorted(value)):
        item = value[name]
        slot = slots.get(name)
        if slot is None:
            node = set_fields(item, shape.item)
            tree[f"f:{name}"] = {".": LEAF, **node} if node else LEAF
        elif slot.is_leaf or not isinstance(item, slot.shape.walked):
            tree[slot.element] = LEAF
        elif (node := set_fields(item, slot.shape)) or item == {} or (slot.shape.is_list and item):
            # A list of items without elements has none below it.
            tree[slot.element] = node
    return tree


def _set_item_fields(items: list[Any], shape: Shape) -> Tree:
    tree: Tree = {}
    for item in ticking(items):
        element = element_of(item, shape)
        if element is None:
            continue
        # Items with duplicate keys cannot be distinguished, so only their presence is owned.
        node = LEAF if element in tree else set_fields(item, shape.item)
        tree[element] = {".": LEAF, **node} if node else LEAF
    return ordered(tree)


def element_of(item: Any, shape: Shape) -> str | None:
    """Return the path element of a list item, None when it has none."""
    try:
        return shape.item_element(item)
    except ItemKeyError:
        return None


# --- Comparison.


def compare(old: Document | None, new: Document, struct: StructType, *, as_sent: bool = False) -> Comparison:
    """Compare the old document (None: the empty object of its kind) with the new one.

    In a new document `as_sent`, null and empty values are values; otherwise they are what the server writes for them.
    """
    walk = _Walk(as_sent)
    walk.maps({} if old is None else old, new, struct_shape(struct))
    # Most changes are of one kind, and in one place.
    return Comparison(
        FieldSet(ordered(walk.changed)) if walk.changed else NOTHING,
        FieldSet(ordered(walk.removed)) if walk.removed else NOTHING,
    )


def created_fields(new: Document, struct: StructType) -> FieldSet:
    """Return the fields that a creator owns: all that differ from the empty object of the kind."""
    shape, spec = struct_shape(struct), new.get("spec")
    if not spec or not isinstance(spec, dict):
        return FieldSet(_created(new, shape))
    others = dict(new)
    del others["spec"]
    of_spec = _SPEC_TREES.get(shape, spec, lambda spec: _created({"spec": spec}, shape))
    tree = _created(others, shape)
    # Most new objects have only metadata besides, which is in front of the spec.
    is_last = not tree or next(reversed(tree)) < "f:spec"
    return FieldSet(tree | of_spec if is_last else ordered(tree | of_spec))


# The part of the tree that is the spec's.
_SPEC_TREES: Final[SpecCache[Tree]] = SpecCache()


def _created(value: Document, shape: Shape) -> Tree:
    """Return the added and modified fields compared to an empty map of the shape, in one traversal."""
    tree: Tree = {}
    slots = shape.slots
    for name in sorted(value):
        item = value[name]
        slot = slots.get(name)
        if slot is None:
            tree[f"f:{name}"] = LEAF if shape.item.is_leaf else everything(item, shape.item)
            continue
        if item:
            if slot.is_leaf:
                # Every zero value is false.
                tree[slot.element] = LEAF
                continue
        else:
            item = _as_written(item, slot)
            if item is MISSING:
                continue
        if slot.zero is MISSING:
            tree[slot.element] = everything(item, slot.shape)
        elif item != slot.zero:
            _created_from_zero(tree, slot, item)
    return tree


def _created_from_zero(tree: Tree, slot: Slot, item: Any) -> None:
    shape = slot.shape
    if not isinstance(item, shape.walked):
        tree[slot.element] = LEAF
        return
    if shape.form is Form.MAP:
        node = _created(item, shape)
    else:
        node = {name: node for name, node in everything(item, shape).items() if name != "."}
    if node:
        tree[slot.element] = node
    elif not item:
        tree[slot.element] = LEAF


def everything(value: Any, shape: Shape, *, as_sent: bool = False) -> Tree:
    """Return the node of a value that was added or removed: it, and everything below it."""
    if shape.is_map:
        return _every_member(value, shape, as_sent=as_sent) if value and isinstance(value, dict) else LEAF
    return _every_item(value, shape, as_sent=as_sent) if shape.is_list and isinstance(value, list) else LEAF


def _every_member(value: Document, shape: Shape, *, as_sent: bool) -> Tree:
    tree: Tree = {".": LEAF}
    slots = shape.slots
    for name in ticking(sorted(value)):
        item = value[name]
        slot = slots.get(name)
        if slot is None:
            tree[f"f:{name}"] = LEAF if shape.item.is_leaf else everything(item, shape.item, as_sent=as_sent)
        elif item or as_sent or is_written(item, slot):
            tree[slot.element] = LEAF if slot.is_leaf else everything(item, slot.shape, as_sent=as_sent)
    return tree if len(tree) > 1 else LEAF


def is_written(item: Any, slot: Slot) -> bool:
    """Report whether the server's encoding of the object has the field."""
    if item is None:
        return slot.writes_null or slot.zero is None
    return bool(item) or not slot.drops_empty


def _every_item(items: list[Any], shape: Shape, *, as_sent: bool) -> Tree:
    tree: Tree = {}
    item_shape = shape.item
    for item in ticking(items):
        try:
            element = shape.item_element(item)
        except ItemKeyError:
            continue
        is_leaf = item_shape.is_leaf or element in tree
        tree[element] = LEAF if is_leaf else everything(item, item_shape, as_sent=as_sent)
    if not tree:
        return LEAF
    return {".": LEAF, **(ordered(tree) if len(tree) > 1 else tree)}


class _Walk(msgspec.Struct):
    """A comparison in progress: the two trees of one level, still unordered."""

    as_sent: bool
    # Every instance has its own two.
    changed: Tree = {}
    removed: Tree = {}

    def maps(self, old: Document, new: Document, shape: Shape) -> None:
        """Compare two maps of a shape, member by member."""
        get = new.get
        for name, left in ticking(old.items()):
            right = get(name, MISSING)
            # Most members are unchanged.
            if left is not right and left != right:
                self._member(name, left, right, shape)
        if not new.keys() <= old.keys():
            for name, right in ticking(new.items()):
                if name not in old:
                    self._member(name, MISSING, right, shape)

    def _member(self, name: str, left: Any, right: Any, shape: Shape) -> None:
        """Record the difference of two members that are unequal, or missing."""
        slot = shape.slots.get(name)
        if slot is None:
            self._values(f"f:{name}", left, right, shape.item)
            return
        if left is MISSING:
            left = slot.zero
        elif not left:
            left = _as_written(left, slot)
        if right is MISSING:
            right = slot.zero
        elif not right and not self.as_sent:
            right = _as_written(right, slot)
        if left is MISSING:
            if right is not MISSING:
                self.changed[slot.element] = (
                    LEAF if slot.is_leaf else everything(right, slot.shape, as_sent=self.as_sent)
                )
        elif slot.is_leaf or right is MISSING:
            self._values(slot.element, left, right, slot.shape)
        else:
            self._containers(slot.element, left, right, slot.shape)

    def _values(self, element: str, left: Any, right: Any, shape: Shape) -> None:
        """Record the difference of two values that may be unequal."""
        if left is MISSING:
            self.changed[element] = everything(right, shape, as_sent=self.as_sent)
        elif right is MISSING:
            self.removed[element] = everything(left, shape)
        elif shape.is_leaf:
            if left != right:
                self.changed[element] = LEAF
        else:
            self._containers(element, left, right, shape)

    def _containers(self, element: str, left: Any, right: Any, shape: Shape) -> None:
        left_is_leaf, right_is_leaf = not isinstance(left, shape.walked), not isinstance(right, shape.walked)
        if (left_is_leaf and right_is_leaf) or not (left or right):
            if left != right:
                self.changed[element] = LEAF
            return
        below = _Walk(self.as_sent)
        if shape.is_map:
            below.maps({} if left_is_leaf else left, {} if right_is_leaf else right, shape)
        else:
            below.lists([] if left_is_leaf else left, [] if right_is_leaf else right, shape)
        # Null is an empty list or map; any other leaf was replaced.
        replaced = (left_is_leaf and left is not None) or (right_is_leaf and right is not None)
        if below.removed:
            self.removed[element] = ordered(below.removed)
        if replaced:
            self.changed[element] = {".": LEAF, **ordered(below.changed)} if below.changed else LEAF
        elif below.changed:
            self.changed[element] = ordered(below.changed)

    def lists(self, old: list[Any], new: list[Any], shape: Shape) -> None:
        """Compare two sets or keyed lists, item by item; order is ignored."""
        lefts, rights = _grouped(old, shape), _grouped(new, shape)
        for element in ticking(lefts | rights):
            left, right = lefts.get(element, ()), rights.get(element, ())
            if len(left) <= 1 and len(right) <= 1:
                pair = (left[0] if left else MISSING, right[0] if right else MISSING)
                self._values(element, *pair, shape.item)
            else:
                self._repeated(element, left, right, shape.item)

    def _repeated(self, element: str, left: Sequence[Any], right: Sequence[Any], shape: Shape) -> None:
        """Compare items with duplicate keys as a whole."""
        if len(left) > 1 and len(right) > 1:
            if left != right:
                self.changed[element] = LEAF
        elif len(left) > 1:
            if right:
                self.changed[element] = everything(right[0], shape, as_sent=self.as_sent)
            self.removed[element] = LEAF
        else:
            if left:
                self.removed[element] = everything(left[0], shape)
            self.changed[element] = LEAF


def _as_written(value: Any, slot: Slot) -> Any:
    """Return the empty value of a field in the server's encoding of the object."""
    if value is None and slot.drops_null:
        return slot.zero
    return MISSING if slot.drops_empty else value


def _grouped(items: list[Any], shape: Shape) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for item in ticking(items):
        element = element_of(item, shape)
        if element is not None:
            groups.setdefault(element, []).append(item)
    return groups


# --- Removal.


def remove(document: Document, fields: FieldSet, struct: StructType) -> Document:
    """Return the document without some fields; a list or map that becomes empty is null."""
    found = _without(document, fields.tree, struct_shape(struct))
    return found if isinstance(found, dict) else {}


def _without(value: Any, tree: Tree, shape: Shape) -> Any:
    if not isinstance(value, shape.walked):
        return value
    return _without_members(value, tree, shape) if shape.is_map else _without_items(value, tree, shape)


def _without_members(value: Document, tree: Tree, shape: Shape) -> Any:
    kept: Document = {}
    for name, item in ticking(value.items()):
        node = tree.get(f"f:{name}")
        if node is None:
            kept[name] = item
        elif not is_member(node):
            kept[name] = _without(item, node, shape.member(name))
    return kept or None


def _without_items(value: list[Any], tree: Tree, shape: Shape) -> Any:
    kept = []
    for item in ticking(value):
        element = element_of(item, shape)
        node = None if element is None else tree.get(element)
        if node is None:
            kept.append(item)
        elif not is_member(node):
            kept.append(_without(item, node, shape.item))
    return kept or None


def with_named_fields(fields: FieldSet, struct: StructType) -> FieldSet:
    """Return the set with every declared field that has members of the set below it."""
    return FieldSet(_with_named(fields.tree, struct_shape(struct)))


def _with_named(tree: Tree, shape: Shape) -> Tree:
    result: Tree = {}
    for element, node in ticking(tree.items()):
        if element == "." or not node:
            result[element] = node
            continue
        name = element[2:] if element.startswith("f:") else ""
        below = _with_named(node, shape.member(name) if name else shape.item)
        declared = bool(name) and shape.form is Form.MAP and name in shape.slots
        result[element] = {".": LEAF, **below} if declared and "." not in below else below
    return result
