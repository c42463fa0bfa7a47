"""Metadata of an object whatever its Python type: a document or a typed structure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dray.api.document import UID, NamespacedName


class OwnerReference(msgspec.Struct, frozen=True, gc=False):
    """An owner as a dependent names it."""

    api_version: str
    kind: str
    name: str
    uid: UID
    controller: bool = False
    block_owner_deletion: bool = False


def key_of(obj: Any) -> NamespacedName:
    """The object's namespace and name."""
    if isinstance(obj, dict):
        metadata = obj.get("metadata") or {}
        return NamespacedName(metadata.get("namespace") or "", metadata.get("name") or "")
    metadata = obj.metadata
    return NamespacedName(metadata.namespace or "", metadata.name or "")


def uid_of(obj: Any) -> UID:
    """The object's uid."""
    return UID(_text(obj, "uid", "uid"))


def resource_version_of(obj: Any) -> str:
    """The object's resource version; empty when it has none."""
    return _text(obj, "resourceVersion", "resource_version")


def state_of(obj: Any) -> tuple[str, str]:
    """The object's uid and resource version, which tell this state of it from any other."""
    if isinstance(obj, dict):
        document = obj.get("metadata") or {}
        return document.get("uid") or "", document.get("resourceVersion") or ""
    metadata = obj.metadata
    return metadata.uid or "", metadata.resource_version or ""


def labels_of(obj: Any) -> Mapping[str, str]:
    """The object's labels."""
    if isinstance(obj, dict):
        return (obj.get("metadata") or {}).get("labels") or {}
    return obj.metadata.labels or {}


def owners_of(obj: Any) -> tuple[OwnerReference, ...]:
    """The object's owner references."""
    if isinstance(obj, dict):
        raw = (obj.get("metadata") or {}).get("ownerReferences") or ()
        return tuple(_owner_from_document(item) for item in raw)
    return tuple(_owner_from_structure(item) for item in obj.metadata.owner_references or ())


def controller_of(obj: Any) -> OwnerReference | None:
    """The owner that manages the object, if any."""
    if isinstance(obj, dict):
        return next((owner for owner in owners_of(obj) if owner.controller), None)
    for item in obj.metadata.owner_references or ():
        if item.controller:
            return _owner_from_structure(item)
    return None


def _text(obj: Any, document_key: str, attribute: str) -> str:
    if isinstance(obj, dict):
        return (obj.get("metadata") or {}).get(document_key) or ""
    return getattr(obj.metadata, attribute) or ""


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
