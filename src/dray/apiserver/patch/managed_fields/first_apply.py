"""The most frequent server-side apply: the first of a manager, whose configuration only adds fields without a manager.

Controllers that write one part of a status apply this way. Nothing is compared or pruned, and no other manager loses a
field, so the result follows from the configuration. It equals the result of the general algorithm in `apply`.
"""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.apiserver.patch.managed_fields.entries import Managed
from dray.apiserver.patch.managed_fields.field_set import FieldSet, Tree, ordered
from dray.apiserver.patch.managed_fields.shape import Form, struct_shape
from dray.apiserver.patch.managed_fields.update import FieldWrite
from dray.apiserver.patch.managed_fields.walk import plain_map_fields

_ENVELOPE: Final = frozenset({"apiVersion", "kind"})
# Fields of the metadata that select the object and its version; they are text, and have no manager.
_IDENTITY: Final = frozenset({"name", "namespace", "uid", "resourceVersion"})


def add_unowned_fields(
    live: Document, applied: Document, write: FieldWrite, managed: Managed
) -> tuple[Document, FieldSet] | None:
    """Return the object with the fields of a first configuration, and the fields that its manager owns.

    None if the configuration has anything else than members of messages, plain ones that the object does not have, or
    if a manager owns anything of these messages. `live` has no managedFields and is not changed.
    """
    merged, tree = dict(live), Tree()
    slots, ignored = struct_shape(write.struct).slots, write.ignored.tree
    for name, value in applied.items():
        current = live.get(name)
        if name in _ENVELOPE and value == current:
            continue
        if value.__class__ is not dict or not (current is None or current.__class__ is dict):
            return None
        if name == "metadata":
            if not (value.keys() <= _IDENTITY and value.items() <= (current or {}).items()):
                return None
            continue
        slot = slots.get(name)
        if slot is None or slot.shape.form is not Form.MAP or slot.element in ignored:
            return None
        node = plain_map_fields(value, slot.shape)
        if not node or not (current is None or value.keys().isdisjoint(current)):
            return None
        tree[slot.element] = node
        merged[name] = value if current is None else {**current, **value}
    if not tree or not _is_unowned(tree, managed, write.api_version):
        return None
    return merged, FieldSet(ordered(tree))


def _is_unowned(tree: Tree, managed: Managed, api_version: str) -> bool:
    """Report whether there are managers, all at the same version, and none owns anything below the tree's elements."""
    for entry in managed.values():
        if entry.api_version != api_version or not entry.fields.tree.keys().isdisjoint(tree):
            return False
    return bool(managed)
