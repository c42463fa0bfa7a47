"""How the collector follows one kind: by metadata alone, or through an informer that others read too."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from dray.api.document import UID, Document, GroupResource
from dray.client.interface import Resource
from dray.client.shared_informers import SharedInformer
from dray.controllers.garbage_collector.graph import Observed, observe, observe_structure


@dataclass(frozen=True, slots=True)
class Monitor:
    """A kind whose informer keeps nothing but what matters."""

    kind: GroupResource
    # How the server is asked for single objects.
    requests: Resource[Document]
    informer: SharedInformer[Any]
    # When the kind began to be followed.
    since: float

    def find(self, name: str, namespace: str) -> Observed | None:
        """One object, as far as the informer knows."""
        obj = self.informer.lister.get(name, namespace if self.requests.namespaced else "")
        return self.observe(obj) if obj is not None else None

    def observe(self, obj: Any) -> Observed:
        """What matters of an object that the informer tells of."""
        return full(self.kind, obj)

    def is_news(self, old: Any, new: Any) -> bool:
        """Whether anything that matters has changed; most writes change a status."""
        if isinstance(old, Plain) and isinstance(new, Plain):
            return False
        before, after = self.observe(old), self.observe(new)
        return (before.finalizers, before.being_deleted, before.owners) != (
            after.finalizers,
            after.being_deleted,
            after.owners,
        )


@dataclass(frozen=True, slots=True)
class SharedMonitor(Monitor):
    """A kind whose informer keeps whole objects, since others need them."""

    def observe(self, obj: Any) -> Observed:
        """What matters of an object that the informer tells of."""
        return observe_structure(self.kind, obj)

    def is_news(self, old: Any, new: Any) -> bool:
        """Whether anything that matters has changed; most writes change a status."""
        before, after = old.metadata, new.metadata
        return bool(
            before.finalizers != after.finalizers
            or (before.deletion_timestamp is None) != (after.deletion_timestamp is None)
            or before.owner_references != after.owner_references
        )


_UID_LENGTH = 36


class Plain(msgspec.Struct, frozen=True, gc=False):
    """An object that has no owners and no finalizers and stays; as numbers uid and version take half the memory."""

    namespace: str
    name: str
    uid_number: int
    version_number: int

    # It stands in for an object and its metadata, as `Observed` does.

    @property
    def metadata(self) -> Plain:
        """Where name, namespace, uid and version are found."""
        return self

    @property
    def uid(self) -> UID:
        """The uid as it is written."""
        return _uid_text(self.uid_number)

    @property
    def resource_version(self) -> str:
        """The version as it is written."""
        return str(self.version_number)

    def observed(self, resource: GroupResource) -> Observed:
        """The same at full length."""
        return Observed(self.uid, resource, self.namespace, self.name, resource_version=self.resource_version)


Kept: TypeAlias = Plain | Observed


def keep(resource: GroupResource, document: Document) -> Kept:
    """What to keep of an object's metadata; one whose uid or version is of another form is kept at full length."""
    metadata = document.get("metadata") or {}
    if metadata.get("ownerReferences") or metadata.get("finalizers") or metadata.get("deletionTimestamp"):
        return observe(resource, document)
    uid, version = metadata.get("uid") or "", metadata.get("resourceVersion") or ""
    if len(uid) != _UID_LENGTH or not version.isdecimal():
        return observe(resource, document)
    try:
        plain = Plain(
            sys.intern(metadata.get("namespace") or ""),
            metadata.get("name") or "",
            int(uid.replace("-", ""), 16),
            int(version),
        )
    except ValueError:
        return observe(resource, document)
    # Upper case and leading zeros would come back otherwise than they were.
    return plain if plain.uid == uid and plain.resource_version == version else observe(resource, document)


def full(resource: GroupResource, kept: Kept) -> Observed:
    """All that matters of what was kept."""
    return kept.observed(resource) if isinstance(kept, Plain) else kept


def _uid_text(number: int) -> UID:
    digits = f"{number:032x}"
    return UID(f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}")
