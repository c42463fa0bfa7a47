"""How the collector watches a kind: by an informer that caches compact metadata, or by a shared informer. Pure."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from dray.api.document import UID, Document, GroupResource
from dray.client.interface import Resource
from dray.controllers.garbage_collector.graph import Observed, observe, observe_structure

if TYPE_CHECKING:
    from dray.client.shared_informers import SharedInformer

_UID_LENGTH: Final = 36


class CompactMetadata(msgspec.Struct, frozen=True, gc=False):
    """An object without owners and finalizers that is not being deleted.

    As numbers, uid and resource version take half the memory.
    """

    namespace: str
    name: str
    uid_number: int
    version_number: int

    # Has the attributes of an object and its metadata, as `Observed` does.

    @property
    def metadata(self) -> CompactMetadata:
        """The object itself: it has name, namespace, uid and resource version."""
        return self

    @property
    def uid(self) -> UID:
        """The uid as text."""
        return _uid_text(self.uid_number)

    @property
    def resource_version(self) -> str:
        """The resource version as text."""
        return str(self.version_number)

    def observed(self, resource: GroupResource) -> Observed:
        """Return the full form."""
        return Observed(self.uid, resource, self.namespace, self.name, resource_version=self.resource_version)


ReducedMetadata: TypeAlias = CompactMetadata | Observed


def reduce_metadata(resource: GroupResource, document: Document) -> ReducedMetadata:
    """Return what the informer caches of an object: the compact form where it loses nothing."""
    metadata = document.get("metadata") or {}
    if metadata.get("ownerReferences") or metadata.get("finalizers") or metadata.get("deletionTimestamp"):
        return observe(resource, document)
    uid, version = metadata.get("uid") or "", metadata.get("resourceVersion") or ""
    if len(uid) != _UID_LENGTH or not version.isdecimal():
        return observe(resource, document)
    try:
        compact = CompactMetadata(
            sys.intern(metadata.get("namespace") or ""),
            metadata.get("name") or "",
            int(uid.replace("-", ""), 16),
            int(version),
        )
    except ValueError:
        return observe(resource, document)
    # Upper case and leading zeros would be lost.
    return compact if compact.uid == uid and compact.resource_version == version else observe(resource, document)


def full_metadata(resource: GroupResource, cached: ReducedMetadata) -> Observed:
    """Return the full form of what the informer cached."""
    return cached.observed(resource) if isinstance(cached, CompactMetadata) else cached


def _uid_text(number: int) -> UID:
    digits = f"{number:032x}"
    return UID(f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}")


@dataclass(frozen=True, slots=True)
class Monitor:
    """A kind whose informer caches reduced metadata."""

    kind: GroupResource
    # For live reads of single objects.
    requests: Resource[Document]
    informer: SharedInformer[Any]
    # When the monitor was started.
    since: float

    def find(self, name: str, namespace: str) -> Observed | None:
        """Return one object from the cache."""
        obj = self.informer.lister.get(name, namespace if self.requests.namespaced else "")
        return self.observe(obj) if obj is not None else None

    def observe(self, obj: Any) -> Observed:
        """Return what the graph needs of a cached object."""
        return full_metadata(self.kind, obj)

    def may_be_dependent(self, obj: Any) -> bool:
        """Return whether it may have owners, or may be being deleted: the graph has other objects only as owners."""
        return not isinstance(obj, CompactMetadata)

    def is_relevant_change(self, old: Any, new: Any) -> bool:
        """Return whether owners, finalizers or deletion have changed; most writes change a status only."""
        if isinstance(old, CompactMetadata) and isinstance(new, CompactMetadata):
            return False
        before, after = self.observe(old), self.observe(new)
        return (before.finalizers, before.being_deleted, before.owners) != (
            after.finalizers,
            after.being_deleted,
            after.owners,
        )


@dataclass(frozen=True, slots=True)
class SharedMonitor(Monitor):
    """A kind whose informer caches whole objects, since other controllers need them."""

    def observe(self, obj: Any) -> Observed:
        """Return what the graph needs of a cached object."""
        return observe_structure(self.kind, obj)

    def may_be_dependent(self, obj: Any) -> bool:
        """Return whether it has owners or is being deleted: the graph has other objects only as owners."""
        metadata = obj.metadata
        return bool(metadata.owner_references) or metadata.deletion_timestamp is not None

    def is_relevant_change(self, old: Any, new: Any) -> bool:
        """Return whether owners, finalizers or deletion have changed; most writes change a status only."""
        before, after = old.metadata, new.metadata
        return bool(
            before.finalizers != after.finalizers
            or (before.deletion_timestamp is None) != (after.deletion_timestamp is None)
            or before.owner_references != after.owner_references
        )
