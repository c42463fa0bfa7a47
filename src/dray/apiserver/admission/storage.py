"""Storage: the default class of volume claims, and the finalizers that keep volumes and claims while they are used."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dray.api.document import Document, GroupResource
from dray.api.persistent_volumes import CLASS_ANNOTATION, DEFAULT_CLASS_ANNOTATIONS, PV_PROTECTION, PVC_PROTECTION
from dray.apiserver.admission.plugin import AdmissionAttributes, AdmissionPlugin, Operation
from dray.apiserver.object_cache import ObjectCache

CLAIMS: Final = GroupResource("", "persistentvolumeclaims")
_FINALIZERS: Final = {CLAIMS: PVC_PROTECTION, GroupResource("", "persistentvolumes"): PV_PROTECTION}


class DefaultStorageClass(AdmissionPlugin):
    """Gives a new claim that names no class the default one; an empty name asks for none."""

    name = "DefaultStorageClass"

    def __init__(self, cache: ObjectCache) -> None:
        self._cache = cache

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in creates of claims."""
        return resource == CLAIMS and operation is Operation.CREATE and not subresource

    async def admit(self, attributes: AdmissionAttributes) -> None:
        """Set the class."""
        claim = attributes.object
        assert claim is not None
        spec = claim.setdefault("spec", {})
        if spec.get("storageClassName") is not None or CLASS_ANNOTATION in (claim["metadata"].get("annotations") or {}):
            return
        chosen = default_class(self._cache.storage_classes.values())
        if chosen:
            spec["storageClassName"] = chosen


def default_class(classes: Iterable[Document]) -> str:
    """Return the name of the default class: the newest, then the first by name; empty if there is none."""
    found = [item for item in classes if is_default(item)]
    found.sort(key=lambda item: item["metadata"]["name"])
    found.sort(key=lambda item: item["metadata"].get("creationTimestamp") or "", reverse=True)
    return found[0]["metadata"]["name"] if found else ""


def is_default(storage_class: Document) -> bool:
    """Return whether a class is marked as the default."""
    annotations = storage_class["metadata"].get("annotations") or {}
    return any(annotations.get(name) == "true" for name in DEFAULT_CLASS_ANNOTATIONS)


class StorageObjectInUseProtection(AdmissionPlugin):
    """Gives every new volume and claim the finalizer that the protection controllers remove."""

    name = "StorageObjectInUseProtection"

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in creates of volumes and claims."""
        return resource in _FINALIZERS and operation is Operation.CREATE and not subresource

    async def admit(self, attributes: AdmissionAttributes) -> None:
        """Add the finalizer."""
        assert attributes.object is not None
        finalizers, own = attributes.object["metadata"].setdefault("finalizers", []), _FINALIZERS[attributes.resource]
        if own not in finalizers:
            finalizers.append(own)
