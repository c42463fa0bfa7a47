"""Walks over documents by shape: the fields of one, the difference of two, the removal of a set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dray.api.document import Document
from dray.api.schema.model import StructType
from dray.apiserver.patch.managed_fields.field_set import FieldSet, Tree, is_member, sorted_elements
from dray.apiserver.patch.managed_fields.shape import DEDUCED, MISSING, Form, ItemKeyError, Shape, Slot, shape_of


class Comparison:
    """What became of the fields from one document to the next; no field is in two of the sets."""

    __slots__ = ("added", "changed", "modified", "removed")

    def __init__(self, added: FieldSet, modified: FieldSet, removed: FieldSet) -> None:
        self.added = added
        self.modified = modified
        self.removed = removed
        # What an updater takes over.
        self.changed = modified | added

    def without_below(self, ignored: FieldSet) -> Comparison:
        """The comparison without some fields and all below them."""
        if not ignored:
            return self
        sets = (self.added, self.modified, self.removed)
        return Comparison(*(fields.without_below(ignored) for fields in sets))


def fields_of(document: Document, struct: StructType) -> FieldSet:
    """The fields that a configuration sets, as an applier owns them: leaves, list items and map entries."""
    return FieldSet(set_fields(document, shape_of(struct)))


def set_fields(value: Any, shape: Shape) -> Tree:
    """The node of a value; empty for a leaf, so only for callers that know the value is not one."""
    form = _form(value, shape)
    if form is Form.MAP:
        return _set_map_fields(value, shape)
    if form in (Form.SET, Form.KEYED) and isinstance(value, list):
        return _set_item_fields(value, shape)
    return {}


def _set_map_fields(value: Document, shape: Shape) -> Tree:
    tree: Tree = {}
    for name, item in value.items():
        child = member_shape(shape, name)
        if _is_leaf(item, child):
            tree[f"f:{name}"] = {}
            continue
        node = set_fields(item, child)
        declared = name in shape.slots
        if node:
            tree[f"f:{name}"] = node if declared else {".": {}, **node}
        elif not declared or item == {}:
            tree[f"f:{name}"] = {}
    return tree


def _set_item_fields(items: list[Any], shape: Shape) -> Tree:
    tree: Tree = {}
    repeated: set[str] = set()
    for item in items:
        element = element_of(item, shape)
        if element is None:
            continue
        if element in tree:
            repeated.add(element)
        node = set_fields(item, shape.item or DEDUCED)
        tree[element] = {".": {}, **node} if node else {}
    # Items with the same keys cannot be told apart, so only their being there is owned.
    for element in repeated:
        tree[element] = {}
    return tree


def member_shape(shape: Shape, name: str) -> Shape:
    """The shape of a map's member; unknown members are judged by their value."""
    return DEDUCED if shape.form is Form.DEDUCED else shape.named(name) or DEDUCED


def element_of(item: Any, shape: Shape) -> str | None:
    """The path element of a list item, None when it has none."""
    try:
        return shape.item_element(item)
    except ItemKeyError:
        return None


def _form(value: Any, shape: Shape) -> Form:
    """How this value is walked: what is not of the shape's form is a leaf."""
    form = shape.form
    if form is Form.DEDUCED or form is Form.MAP:
        return Form.MAP if isinstance(value, dict) else Form.LEAF
    return form if form is Form.LEAF or isinstance(value, list) else Form.LEAF


def _is_leaf(value: Any, shape: Shape) -> bool:
    return _form(value, shape) is Form.LEAF


# --- comparison


def compare(old: Document | None, new: Document, struct: StructType) -> Comparison:
    """What changed from the old document (None: from the empty object of its kind) to the new one."""
    walk = _Walk()
    walk.maps({} if old is None else old, new, shape_of(struct))
    return Comparison(FieldSet(walk.added), FieldSet(walk.modified), FieldSet(walk.removed))


def created_fields(new: Document, struct: StructType) -> FieldSet:
    """What a creator owns: all that differs from the empty object of the kind, in Kubernetes' order."""
    return FieldSet(_created(new, shape_of(struct)))


def _created(value: Document, shape: Shape) -> Tree:
    """The added and modified fields against an empty map of the shape, in one walk and in order."""
    tree: Tree = {}
    slots = shape.slots
    for name in sorted(value):
        item = value[name]
        slot = slots.get(name)
        if slot is None:
            child = member_shape(shape, name)
            tree[f"f:{name}"] = {} if child.form is Form.LEAF else everything(item, child)
            continue
        if not item:
            item = _as_written(item, slot)
            if item is MISSING:
                continue
        if slot.zero is MISSING:
            tree[slot.element] = {} if slot.shape.form is Form.LEAF else everything(item, slot.shape)
        elif item != slot.zero:
            _created_from_zero(tree, slot, item)
    return tree


def _created_from_zero(tree: Tree, slot: Slot, item: Any) -> None:
    if _is_leaf(item, slot.shape):
        tree[slot.element] = {}
        return
    if slot.shape.form is Form.MAP:
        node = _created(item, slot.shape)
    else:
        node = {name: node for name, node in everything(item, slot.shape).items() if name != "."}
    if node:
        tree[slot.element] = node
    elif not item:
        tree[slot.element] = {}


def everything(value: Any, shape: Shape) -> Tree:
    """The node of a value that is new or gone: it, and all below it."""
    form = shape.form
    if form is Form.LEAF or not value:
        return {}
    if isinstance(value, dict) and (form is Form.MAP or form is Form.DEDUCED):
        return _every_member(value, shape)
    if isinstance(value, list) and (form is Form.KEYED or form is Form.SET):
        return _every_item(value, shape)
    return {}


def _every_member(value: Document, shape: Shape) -> Tree:
    tree: Tree = {".": {}}
    slots = shape.slots
    item_shape = DEDUCED if shape.form is Form.DEDUCED else shape.item
    for name in sorted(value):
        item = value[name]
        slot = slots.get(name)
        if slot is None:
            child = item_shape or DEDUCED
            tree[f"f:{name}"] = {} if child.form is Form.LEAF else everything(item, child)
        elif is_written(item, slot):
            tree[slot.element] = {} if slot.shape.form is Form.LEAF else everything(item, slot.shape)
    return tree if len(tree) > 1 else {}


def is_written(item: Any, slot: Slot) -> bool:
    """Whether the server's own encoding of the object has the field at all."""
    if item is None:
        return slot.writes_null or slot.zero is None
    return bool(item) or not slot.drops_empty


# The dot, and the item itself.
_ONE_ITEM: Final = 2


def _every_item(items: list[Any], shape: Shape) -> Tree:
    tree: Tree = {".": {}}
    repeated: set[str] = set()
    for item in items:
        element = element_of(item, shape)
        if element is None:
            continue
        if element in tree:
            repeated.add(element)
        tree[element] = {} if shape.form is Form.SET else everything(item, shape.item or DEDUCED)
    for element in repeated:
        tree[element] = {}
    if len(tree) > _ONE_ITEM:
        return {element: tree[element] for element in sorted_elements(tree)}
    return tree if len(tree) == _ONE_ITEM else {}


class _Walk:
    """A comparison under way: the three trees of one level."""

    __slots__ = ("added", "modified", "removed")

    def __init__(self) -> None:
        self.added: Tree = {}
        self.modified: Tree = {}
        self.removed: Tree = {}

    def maps(self, old: Document, new: Document, shape: Shape) -> None:
        """Compare two maps of a shape, member by member."""
        for name, left in old.items():
            right = new.get(name, MISSING)
            # Most members are as they were.
            if left is not right and (left != right or type(left) is not type(right)):
                self._member(name, left, right, shape)
        for name, right in new.items():
            if name not in old:
                self._member(name, MISSING, right, shape)

    def _member(self, name: str, left: Any, right: Any, shape: Shape) -> None:
        slot = shape.slots.get(name)
        if slot is None:
            self._values(f"f:{name}", left, right, member_shape(shape, name))
            return
        left, right = _as_written(left, slot), _as_written(right, slot)
        if left is not MISSING or right is not MISSING:
            self._values(slot.element, left, right, slot.shape)

    def _values(self, element: str, left: Any, right: Any, shape: Shape) -> None:
        if left is MISSING:
            self.added[element] = everything(right, shape)
        elif right is MISSING:
            self.removed[element] = everything(left, shape)
        elif left != right or type(left) is not type(right):
            self._changed(element, left, right, shape)

    def _changed(self, element: str, left: Any, right: Any, shape: Shape) -> None:
        left_form, right_form = _form(left, shape), _form(right, shape)
        if (left_form is Form.LEAF and right_form is Form.LEAF) or not (left or right):
            if left != right:
                self.modified[element] = {}
            return
        below = _Walk()
        if Form.MAP in (left_form, right_form):
            below.maps(_map_or_empty(left), _map_or_empty(right), shape)
        else:
            below.lists(_list_or_empty(left), _list_or_empty(right), shape)
        # Null is an empty list or map; any other leaf was replaced.
        replaced = (left_form is Form.LEAF and left is not None) or (right_form is Form.LEAF and right is not None)
        self._attach(element, below, replaced=replaced)

    def _attach(self, element: str, below: _Walk, *, replaced: bool) -> None:
        if below.added:
            self.added[element] = below.added
        if below.removed:
            self.removed[element] = below.removed
        if replaced:
            self.modified[element] = {".": {}, **below.modified} if below.modified else {}
        elif below.modified:
            self.modified[element] = below.modified

    def lists(self, old: list[Any], new: list[Any], shape: Shape) -> None:
        """Compare two sets or keyed lists, item by item; order does not count."""
        lefts, rights = _grouped(old, shape), _grouped(new, shape)
        for element in _names(lefts, rights):
            left, right = lefts.get(element, []), rights.get(element, [])
            if len(left) <= 1 and len(right) <= 1:
                pair = (left[0] if left else MISSING, right[0] if right else MISSING)
                self._values(element, *pair, shape.item or DEDUCED)
            else:
                self._repeated(element, left, right, shape.item or DEDUCED)

    def _repeated(self, element: str, left: list[Any], right: list[Any], shape: Shape) -> None:
        """Items that share their keys are compared as a whole."""
        if len(left) > 1 and len(right) > 1:
            if left != right:
                self.modified[element] = {}
        elif len(left) > 1:
            if right:
                self.added[element] = everything(right[0], shape)
            self.removed[element] = {}
        else:
            if left:
                self.removed[element] = everything(left[0], shape)
            self.added[element] = {}


def _names(left: dict[str, Any], right: dict[str, Any]) -> Iterator[str]:
    yield from left
    for name in right:
        if name not in left:
            yield name


def _as_written(value: Any, slot: Slot) -> Any:
    """The field's value in the server's own encoding of the object."""
    if value is MISSING or (value is None and slot.drops_null):
        return slot.zero
    return value if value or not slot.drops_empty else MISSING


def _map_or_empty(value: Any) -> Document:
    return value if isinstance(value, dict) else {}


def _list_or_empty(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _grouped(items: list[Any], shape: Shape) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for item in items:
        element = element_of(item, shape)
        if element is not None:
            groups.setdefault(element, []).append(item)
    return groups


# --- removal


def remove(document: Document, fields: FieldSet, struct: StructType) -> Document:
    """The document without some fields; a list or map that loses all it had goes too."""
    found = _without(document, fields.tree, shape_of(struct))
    return found if isinstance(found, dict) else {}


def _without(value: Any, tree: Tree, shape: Shape) -> Any:
    form = _form(value, shape)
    if form is Form.MAP:
        return _without_members(value, tree, shape)
    return value if form is Form.LEAF else _without_items(value, tree, shape)


def _without_members(value: Document, tree: Tree, shape: Shape) -> Any:
    kept: Document = {}
    for name, item in value.items():
        node = tree.get(f"f:{name}")
        if node is None:
            kept[name] = item
        elif not is_member(node):
            left = _without(item, node, member_shape(shape, name))
            if left is not MISSING:
                kept[name] = left
    return kept or MISSING


def _without_items(value: list[Any], tree: Tree, shape: Shape) -> Any:
    kept = []
    for item in value:
        element = element_of(item, shape)
        node = None if element is None else tree.get(element)
        if node is None:
            kept.append(item)
        elif not is_member(node):
            left = _without(item, node, shape.item or DEDUCED)
            kept.append(None if left is MISSING else left)
    return kept or MISSING


def with_named_fields(fields: FieldSet, struct: StructType) -> FieldSet:
    """The set with every declared field that has something of the set below it."""
    return FieldSet(_with_named(fields.tree, shape_of(struct)))


def _with_named(tree: Tree, shape: Shape) -> Tree:
    result: Tree = {}
    for element, node in tree.items():
        if element == "." or not node:
            result[element] = node
            continue
        name = element[2:] if element.startswith("f:") else ""
        child = (shape.item if not name else member_shape(shape, name)) or DEDUCED
        below = _with_named(node, child)
        declared = bool(name) and shape.form is Form.MAP and name in shape.slots
        result[element] = {".": {}, **below} if declared and "." not in below else below
    return result
