"""Managed fields of creates, updates and patches other than apply: a manager takes over the fields that it changes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec

from dray.api.document import Document
from dray.api.schema.model import StructType
from dray.api.timestamps import format_time
from dray.apiserver.patch.managed_fields.entries import (
    UPDATE,
    Entry,
    Managed,
    ManagedFieldsError,
    Manager,
    cap_updaters,
    decode,
    encode,
    is_reset,
    write,
)
from dray.apiserver.patch.managed_fields.field_set import NOTHING, FieldSet
from dray.apiserver.patch.managed_fields.walk import Comparison, compare, created_fields

# The object at another version with that version's type; None when the version is no longer served.
Converter: TypeAlias = Callable[[Document, str], tuple[Document, StructType] | None]

# Identity and server-owned metadata have no manager.
_UNMANAGED_METADATA: Final = frozenset(
    {
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    }
)
_UNMANAGED_FIELDS: Final = frozenset({"apiVersion", "kind"})
_UNMANAGED: Final = FieldSet.of(
    *((f"f:{name}",) for name in sorted(_UNMANAGED_FIELDS)),
    ("f:metadata",),
    *(("f:metadata", f"f:{name}") for name in sorted(_UNMANAGED_METADATA)),
)

# The elements that a tree with any of these fields has, at its root and below the metadata.
_UNMANAGED_ELEMENTS: Final = frozenset(_UNMANAGED.tree) - {"f:metadata"}
_UNMANAGED_METADATA_ELEMENTS: Final = frozenset(_UNMANAGED.tree["f:metadata"])


class FieldWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A write by a field manager; the documents are at `api_version`, whose type is `struct`."""

    struct: StructType
    manager: str
    api_version: str
    now: datetime
    subresource: str = ""
    # The fields that the endpoint ignores; None for the default of the kind and subresource.
    reset: FieldSet | None = None
    convert: Converter | None = None

    @property
    def ignored(self) -> FieldSet:
        """Return the fields that the endpoint ignores."""
        return default_reset(self.struct, self.subresource) if self.reset is None else self.reset


@lru_cache(maxsize=4096)
def default_reset(struct: StructType, subresource: str) -> FieldSet:
    """Return the fields that an endpoint ignores: the main one the status, the status one everything else.

    Kinds without a status endpoint ignore nothing: their callers pass `NOTHING` instead.
    """
    if "status" not in struct.fields or subresource not in ("", "status"):
        return NOTHING
    if not subresource:
        return FieldSet.of(("f:status",))
    return FieldSet.of(*((f"f:{name}",) for name in struct.fields if name not in ("status", "apiVersion", "kind")))


def update_managed_fields(old: Document | None, new: Document, request: FieldWrite) -> list[Document] | None:
    """Return the object's `managedFields` after an update, None when it has none; `old` is None on create.

    `new` may have the managedFields that the client sent; those sent to the main endpoint replace the stored ones.
    """
    sent = (new.get("metadata") or {}).get("managedFields")
    me = Manager(request.manager, UPDATE, request.api_version, request.subresource)
    if old is None and not sent:
        return _created(new, me, request)
    managed = _current(old, sent, request.subresource)
    if not managed and old is not None:
        # Without managed fields, tracking stays disabled until the first apply.
        return None
    # Nobody owns managedFields, so the lists are not compared.
    before = None if old is None else without_managed_fields(old)
    after = without_managed_fields(new)
    change = Change(before, after, request.struct, request.api_version, request.ignored, request.convert)
    return encode(cap_updaters(take_over(managed, change, me, format_time(request.now))))


def without_managed_fields(document: Document) -> Document:
    """Return the document without the list; all else is shared."""
    metadata = document.get("metadata")
    if not metadata or "managedFields" not in metadata:
        return document
    metadata = dict(metadata)
    del metadata["managedFields"]
    return {**document, "metadata": metadata}


def _created(new: Document, me: Manager, request: FieldWrite) -> list[Document] | None:
    metadata = new.get("metadata") or {}
    # What is unmanaged is left out first, so that it is not traversed; the traversal sorts the rest.
    managed, managed_metadata = dict(new), dict(metadata)
    for name in _UNMANAGED_FIELDS & managed.keys():
        del managed[name]
    for name in _UNMANAGED_METADATA & managed_metadata.keys():
        del managed_metadata[name]
    managed["metadata"] = managed_metadata
    fields = without_unmanaged(created_fields(managed, request.struct).without_below(request.ignored))
    return [write(me, Entry(fields, me.api_version, format_time(request.now)))] if fields.tree else None


def _current(old: Document | None, sent: Any, subresource: str) -> Managed:
    """Return the managers before the change: those that the client sent, else the stored ones."""
    stored = None if old is None else (old.get("metadata") or {}).get("managedFields")
    # A client that sends back what it read sends the list in this server's order.
    if not subresource and sent is not None and sent != stored:
        if is_reset(sent):
            return {}
        managed = _decoded(sent, trusted=False)
        if managed:
            return managed
    return _decoded(stored, trusted=True)


def _decoded(entries: Any, *, trusted: bool) -> Managed:
    try:
        return decode(entries if isinstance(entries, list) else None, trusted=trusted)
    except ManagedFieldsError:
        return {}


class Change:
    """An object before and after, compared at every version in use by a manager."""

    def __init__(  # noqa: PLR0913 - a comparison and how to make it at other versions
        self,
        old: Document | None,
        new: Document,
        struct: StructType,
        api_version: str,
        ignored: FieldSet,
        convert: Converter | None,
        *,
        as_sent: bool = False,
    ) -> None:
        self._old, self._new, self._convert, self._ignored = old, new, convert, ignored
        main = compare(old, new, struct, as_sent=as_sent)
        self.main = main.without_below(ignored) if ignored.tree else main
        self.api_version = api_version
        self._by_version: dict[str, Comparison | None] = {}

    def at(self, api_version: str) -> Comparison | None:
        """Return the comparison at a version, None when it is no longer served."""
        if api_version == self.api_version:
            return self.main
        if api_version not in self._by_version:
            self._by_version[api_version] = self._compare_at(api_version)
        return self._by_version[api_version]

    def _compare_at(self, api_version: str) -> Comparison | None:
        if self._convert is None:
            return self.main
        new = self._convert(self._new, api_version)
        old = None if self._old is None else self._convert(self._old, api_version)
        if new is None or (self._old is not None and old is None):
            return None
        return compare(None if old is None else old[0], new[0], new[1]).without_below(self._ignored)


def without_changed(managed: Managed, change: Change, spared: Manager | None = None) -> Managed:
    """Return the managers without the fields that changed or were removed; managers without fields are dropped."""
    kept: Managed = {}
    for manager, entry in managed.items():
        if manager == spared:
            kept[manager] = entry
            continue
        # Nearly all managers write the same version.
        comparison = change.main if entry.api_version == change.api_version else change.at(entry.api_version)
        if comparison is None:
            continue
        fields = entry.fields
        if comparison.changed.tree:
            fields -= comparison.changed
        if comparison.removed.tree:
            fields -= comparison.removed
        if fields is entry.fields:
            kept[manager] = entry
        elif fields.tree:
            kept[manager] = Entry(fields, entry.api_version, entry.time)
    return kept


def conflicts_of(managed: Managed, change: Change, me: Manager) -> Managed:
    """Return the changed fields of other managers."""
    conflicts: Managed = {}
    for manager, entry in managed.items():
        comparison = None if manager == me else change.at(entry.api_version)
        if comparison is None:
            continue
        changed = entry.fields & comparison.changed
        if changed:
            conflicts[manager] = Entry(changed, entry.api_version)
    return conflicts


def take_over(managed: Managed, change: Change, me: Manager, now: str) -> Managed:
    """Return the managers after an update: the updater owns what changed, and no other manager does."""
    main = change.main
    taken = without_unmanaged(main.changed)
    if not taken.tree:
        return without_changed(managed, change)
    # An updater has most of what it changes already, so that this is not taken from it first.
    spared = me if taken is main.changed else None
    result = without_changed(managed, change, spared)
    mine = result.get(me)
    if mine is not None:
        taken = (mine.fields - main.removed if spared else mine.fields) | taken
    result[me] = Entry(taken, me.api_version, now)
    return result


def without_unmanaged(fields: FieldSet) -> FieldSet:
    """Return the fields without those that have no manager."""
    tree = fields.tree
    metadata = tree.get("f:metadata")
    # Most writes do not change any of these.
    if _UNMANAGED_ELEMENTS.isdisjoint(tree) and (
        metadata is None or (metadata and _UNMANAGED_METADATA_ELEMENTS.isdisjoint(metadata))
    ):
        return fields
    return fields - _UNMANAGED


def equal_except_times(old: list[Document] | None, new: list[Document] | None) -> bool:
    """Report whether two managedFields lists differ only in times, so that the old one can stay."""
    if old == new:
        return True
    return [{**entry, "time": None} for entry in old or ()] == [{**entry, "time": None} for entry in new or ()]
