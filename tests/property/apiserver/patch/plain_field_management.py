"""Field management in plain steps: the reference for what the API server computes in fewer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from dray.api.document import Document
from dray.api.schema.model import StructType
from dray.api.timestamps import format_time
from dray.apiserver.patch.managed_fields import apply, update, walk
from dray.apiserver.patch.managed_fields.entries import Entry, Managed, Manager, encode
from dray.apiserver.patch.managed_fields.field_set import LEAF, FieldSet, Tree, ordered
from dray.apiserver.patch.managed_fields.shape import MISSING, Shape, Slot, struct_shape
from dray.apiserver.patch.managed_fields.update import Change, without_changed


class PlainComparison(msgspec.Struct, frozen=True):
    """The difference of two documents, with added and modified fields apart."""

    added: FieldSet
    modified: FieldSet
    removed: FieldSet

    @property
    def changed(self) -> FieldSet:
        return self.modified | self.added


def compare(old: Document | None, new: Document, struct: StructType, *, as_sent: bool = False) -> PlainComparison:
    found = _Walk(as_sent=as_sent)
    found.maps({} if old is None else old, new, struct_shape(struct))
    return PlainComparison(*(FieldSet(ordered(tree)) for tree in (found.added, found.modified, found.removed)))


def _written(side: Any, slot: Slot) -> Any:
    return slot.zero if side is MISSING else side or walk._as_written(side, slot)


class _Walk:
    def __init__(self, *, as_sent: bool) -> None:
        self.as_sent = as_sent
        self.added: Tree = {}
        self.modified: Tree = {}
        self.removed: Tree = {}

    def maps(self, old: Document, new: Document, shape: Shape) -> None:
        for name in old | new:
            left, right = old.get(name, MISSING), new.get(name, MISSING)
            slot = shape.slots.get(name)
            if slot is None:
                self._values(f"f:{name}", left, right, shape.item)
                continue
            if left == right:
                continue
            left = _written(left, slot)
            if right is MISSING or not self.as_sent:
                right = _written(right, slot)
            if left is not MISSING or right is not MISSING:
                self._values(slot.element, left, right, slot.shape)

    def _values(self, element: str, left: Any, right: Any, shape: Shape) -> None:
        if left is MISSING:
            self.added[element] = walk.everything(right, shape, as_sent=self.as_sent)
        elif right is MISSING:
            self.removed[element] = walk.everything(left, shape)
        elif not shape.is_leaf:
            self._containers(element, left, right, shape)
        elif left != right:
            self.modified[element] = LEAF

    def _containers(self, element: str, left: Any, right: Any, shape: Shape) -> None:
        left_is_leaf, right_is_leaf = not isinstance(left, shape.walked), not isinstance(right, shape.walked)
        if (left_is_leaf and right_is_leaf) or not (left or right):
            if left != right:
                self.modified[element] = LEAF
            return
        below = _Walk(as_sent=self.as_sent)
        if shape.is_map:
            below.maps({} if left_is_leaf else left, {} if right_is_leaf else right, shape)
        else:
            below.lists([] if left_is_leaf else left, [] if right_is_leaf else right, shape)
        if below.added:
            self.added[element] = ordered(below.added)
        if below.removed:
            self.removed[element] = ordered(below.removed)
        if (left_is_leaf and left is not None) or (right_is_leaf and right is not None):
            self.modified[element] = {".": LEAF, **ordered(below.modified)} if below.modified else LEAF
        elif below.modified:
            self.modified[element] = ordered(below.modified)

    def lists(self, old: list[Any], new: list[Any], shape: Shape) -> None:
        lefts, rights = walk._grouped(old, shape), walk._grouped(new, shape)
        for element in lefts | rights:
            left, right = lefts.get(element, ()), rights.get(element, ())
            if len(left) <= 1 and len(right) <= 1:
                pair = (left[0] if left else MISSING, right[0] if right else MISSING)
                self._values(element, *pair, shape.item)
            else:
                self._repeated(element, left, right, shape.item)

    def _repeated(self, element: str, left: Sequence[Any], right: Sequence[Any], shape: Shape) -> None:
        if len(left) > 1 and len(right) > 1:
            if left != right:
                self.modified[element] = LEAF
        elif len(left) > 1:
            if right:
                self.added[element] = walk.everything(right[0], shape, as_sent=self.as_sent)
            self.removed[element] = LEAF
        else:
            if left:
                self.removed[element] = walk.everything(left[0], shape)
            self.added[element] = LEAF


def take_over(managed: Managed, change: Change, me: Manager, now: str) -> Managed:
    """Take the changed fields from everyone, then give them to the updater."""
    taken = change.main.changed - update._UNMANAGED
    result = without_changed(managed, change)
    if taken:
        mine = result.get(me)
        result[me] = Entry(taken if mine is None else taken | mine.fields, me.api_version, now)
    return result


def created(new: Document, me: Manager, request: update.FieldWrite) -> list[Document] | None:
    """Compare with the empty object; what has no manager does not count, whatever it contains."""
    metadata = new.get("metadata") or {}
    managed = {name: value for name, value in new.items() if name not in update._UNMANAGED_FIELDS}
    managed["metadata"] = {name: value for name, value in metadata.items() if name not in update._UNMANAGED_METADATA}
    change = Change(None, managed, request.struct, request.api_version, request.ignored, None)
    return encode(take_over({}, change, me, format_time(request.now)))


def _comparison(old: Document | None, new: Document, struct: StructType, *, as_sent: bool = False) -> walk.Comparison:
    found = compare(old, new, struct, as_sent=as_sent)
    return walk.Comparison(found.changed, found.removed)


@contextmanager
def plain_steps() -> Iterator[None]:
    """Let updates and applies take the plain steps."""
    with (
        patch.object(update, "compare", _comparison),
        patch.object(update, "take_over", take_over),
        patch.object(update, "_created", created),
        patch.object(update, "without_unmanaged", lambda fields: fields - update._UNMANAGED),
        patch.object(apply, "compare", _comparison),
        patch.object(apply, "take_over", take_over),
        patch.object(apply, "plain_fields", lambda *_: None),
        patch.object(apply, "add_unowned_fields", lambda *_: None),
        patch.object(apply, "without_unmanaged", lambda fields: fields - update._UNMANAGED),
    ):
        yield
