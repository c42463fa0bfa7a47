"""Accessors for the metadata of an object, whether document or typed structure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dray.api.document import UID, GroupVersionKind, NamespacedName
from dray.api.types import meta_v1


class OwnerReference(msgspec.Struct, frozen=True, gc=False):
    """An owner reference of a document or typed structure."""

    api_version: str
    kind: str
    name: str
    uid: UID
    controller: bool = False
    block_owner_deletion: bool = False


def key_of(obj: Any) -> NamespacedName:
    """Return the object's namespace and name."""
    if isinstance(obj, dict):
        document = obj.get("metadata") or {}
        return NamespacedName(document.get("namespace") or "", document.get("name") or "")
    metadata = obj.metadata
    return NamespacedName(metadata.namespace or "", metadata.name or "")


def uid_of(obj: Any) -> UID:
    """Return the object's uid."""
    if isinstance(obj, dict):
        return (obj.get("metadata") or {}).get("uid") or UID("")
    return obj.metadata.uid or UID("")


def resource_version_of(obj: Any) -> str:
    """Return the object's resource version, or an empty string."""
    if isinstance(obj, dict):
        return (obj.get("metadata") or {}).get("resourceVersion") or ""
    return obj.metadata.resource_version or ""


def compare_states(one: Any, other: Any) -> tuple[bool, bool]:
    """Return whether two objects of a resource have the same uid, and whether they have the same resource version."""
    if isinstance(one, dict):
        return uid_of(one) == uid_of(other), resource_version_of(one) == resource_version_of(other)
    metadata, others = one.metadata, other.metadata
    return metadata.uid == others.uid, metadata.resource_version == others.resource_version


def is_older(one: Any, other: Any) -> bool:
    """Return whether `one` was written before `other`; a version that is not a number is never older."""
    try:
        return int(resource_version_of(one)) < int(resource_version_of(other))
    except ValueError:
        return False


def labels_of(obj: Any) -> Mapping[str, str]:
    """Return the object's labels."""
    if isinstance(obj, dict):
        return (obj.get("metadata") or {}).get("labels") or {}
    return obj.metadata.labels or {}


def owners_of(obj: Any) -> tuple[OwnerReference, ...]:
    """Return the object's owner references."""
    if isinstance(obj, dict):
        raw = (obj.get("metadata") or {}).get("ownerReferences") or ()
        return tuple(_owner_from_document(item) for item in raw)
    references = obj.metadata.owner_references
    return tuple([_owner_from_structure(item) for item in references]) if references else ()


def owner_uids(obj: Any) -> tuple[str, ...]:
    """Return the uids of the object's owners."""
    if isinstance(obj, dict):
        documents = (obj.get("metadata") or {}).get("ownerReferences")
        return tuple([owner.get("uid") or "" for owner in documents]) if documents else ()
    references = obj.metadata.owner_references
    return tuple([owner.uid or "" for owner in references]) if references else ()


def controller_reference(kind: GroupVersionKind, metadata: meta_v1.ObjectMeta) -> meta_v1.OwnerReference:
    """Return the owner reference of a managing controller."""
    return meta_v1.OwnerReference(
        api_version=kind.api_version,
        kind=kind.kind,
        name=metadata.name or "",
        uid=metadata.uid or "",
        controller=True,
        block_owner_deletion=True,
    )


def controller_of(obj: Any) -> OwnerReference | None:
    """Return the owner reference of the managing controller, if any."""
    if isinstance(obj, dict):
        return next((owner for owner in owners_of(obj) if owner.controller), None)
    for item in obj.metadata.owner_references or ():
        if item.controller:
            return _owner_from_structure(item)
    return None


def _owner_from_document(item: Mapping[str, Any]) -> OwnerReference:
    return OwnerReference(
        item.get("apiVersion", ""),
        item.get("kind", ""),
        item.get("name", ""),
        UID(item.get("uid", "")),
        bool(item.get("controller")),
        bool(item.get("blockOwnerDeletion")),
    )


def _owner_from_structure(item: Any) -> OwnerReference:
    return OwnerReference(
        item.api_version or "",
        item.kind or "",
        item.name or "",
        UID(item.uid or ""),
        bool(item.controller),
        bool(item.block_owner_deletion),
    )
