"""Persistent volumes, volume claims and storage classes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.persistent_volumes import DEFAULT_CLASS_ANNOTATIONS
from dray.api.timestamps import format_time
from dray.api.validation.storage import (
    validate_persistent_volume,
    validate_persistent_volume_claim,
    validate_persistent_volume_claim_update,
    validate_persistent_volume_update,
    validate_storage_class,
    validate_storage_class_update,
)
from dray.apiserver.registry.columns import AGE, NAME, text_cell
from dray.apiserver.registry.generic import GenericStatusStrategy, GenericStrategy
from dray.apiserver.registry.strategy import Column, ResourceDefinition, WriteContext

_SHORT_MODES: Final = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}
_UNSET: Final = "<unset>"


def _modes(modes: Sequence[str] | None) -> str:
    present = modes or ()
    return ",".join(short for mode, short in _SHORT_MODES.items() if mode in present)


def _phase(obj: Document, now: datetime) -> str:
    if (obj.get("metadata") or {}).get("deletionTimestamp"):
        return "Terminating"
    return (obj.get("status") or {}).get("phase") or ""


def _spec(obj: Document) -> Document:
    spec: Document = obj.get("spec") or {}
    return spec


def _attributes_class(obj: Document, now: datetime) -> str:
    return _spec(obj).get("volumeAttributesClassName") or _UNSET


def _volume_mode(obj: Document, now: datetime) -> str:
    return _spec(obj).get("volumeMode") or _UNSET


_VOLUME_MODE: Final = Column("VolumeMode", "string", "Block or Filesystem.", _volume_mode, priority=1)
_ATTRIBUTES: Final = Column("VolumeAttributesClass", "string", "The class of its attributes.", _attributes_class)


def _claim_capacity(claim: Document, now: datetime) -> str:
    if not _spec(claim).get("volumeName"):
        return ""
    return ((claim.get("status") or {}).get("capacity") or {}).get("storage") or "0"


def _claim_modes(claim: Document, now: datetime) -> str:
    return _modes((claim.get("status") or {}).get("accessModes")) if _spec(claim).get("volumeName") else ""


class ClaimStrategy(GenericStrategy):
    """Strategy of volume claims: both fields for the source of their data say the same, unless both are given."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Drop sources that only the newer field may have, and copy one field to the other."""
        super().prepare_for_create(obj, context)
        spec = obj["spec"]
        _drop_data_source(spec, {})
        source, reference = spec.get("dataSource"), spec.get("dataSourceRef")
        if source is not None and reference is None:
            spec["dataSourceRef"] = dict(source)
        elif reference is not None and source is None:
            spec["dataSource"] = dict(reference)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the status, and drop sources that only the newer field may have."""
        super().prepare_for_update(obj, old, context)
        _drop_data_source(obj["spec"], old.get("spec") or {})


def _drop_data_source(spec: Document, old: Document) -> None:
    # Sources in other namespaces belong to a gate that Kubernetes disables by default.
    if (spec.get("dataSourceRef") or {}).get("namespace") and old.get("dataSourceRef") is None:
        del spec["dataSourceRef"]
    if old.get("dataSource") is not None or old.get("dataSourceRef") is not None or spec.get("dataSourceRef"):
        return
    source = spec.get("dataSource") or {}
    if (source.get("apiGroup") or "", source.get("kind")) not in _DATA_SOURCES:
        spec.pop("dataSource", None)


# Kubernetes silently ignores all others in `dataSource`.
_DATA_SOURCES: Final = (("", "PersistentVolumeClaim"), ("snapshot.storage.k8s.io", "VolumeSnapshot"))


PERSISTENT_VOLUME_CLAIMS: Final = ResourceDefinition(
    group="",
    resource="persistentvolumeclaims",
    singular="persistentvolumeclaim",
    kind="PersistentVolumeClaim",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=ClaimStrategy(
        validate_persistent_volume_claim,
        validate_persistent_volume_claim_update,
        initial_status={"phase": "Pending"},
        generation=False,
    ),
    status_strategy=GenericStatusStrategy(),
    short_names=("pvc",),
    columns=(
        NAME,
        Column("Status", "string", "The state of the claim.", _phase),
        Column("Volume", "string", "The bound volume.", text_cell("spec", "volumeName")),
        Column("Capacity", "string", "The size of the volume.", _claim_capacity),
        Column("Access Modes", "string", "How the volume is mounted.", _claim_modes),
        Column("StorageClass", "string", "The class of the claim.", text_cell("spec", "storageClassName")),
        _ATTRIBUTES,
        AGE,
        _VOLUME_MODE,
    ),
)


def _claim_of(volume: Document, now: datetime) -> str:
    reference = _spec(volume).get("claimRef")
    return f"{reference.get('namespace', '')}/{reference.get('name', '')}" if reference else ""


class VolumeStrategy(GenericStrategy):
    """Strategy of volumes, which record when their phase changed."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Reset the status."""
        super().prepare_for_create(obj, context)
        obj["status"]["lastPhaseTransitionTime"] = format_time(context.now)


class VolumeStatusStrategy(GenericStatusStrategy):
    """Strategy of the status of volumes."""

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the desired state, and record when the phase changed, unless the writer does."""
        super().prepare_for_update(obj, old, context)
        status, before = obj.get("status") or {}, old.get("status") or {}
        given = status.get("lastPhaseTransitionTime")
        if status.get("phase") == before.get("phase"):
            if given is None and before.get("lastPhaseTransitionTime"):
                status["lastPhaseTransitionTime"] = before["lastPhaseTransitionTime"]
        elif given in (None, before.get("lastPhaseTransitionTime")):
            status["lastPhaseTransitionTime"] = format_time(context.now)


PERSISTENT_VOLUMES: Final = ResourceDefinition(
    group="",
    resource="persistentvolumes",
    singular="persistentvolume",
    kind="PersistentVolume",
    namespaced=False,
    versions=("v1",),
    storage_version="v1",
    strategy=VolumeStrategy(
        validate_persistent_volume,
        validate_persistent_volume_update,
        initial_status={"phase": "Pending"},
        generation=False,
    ),
    status_strategy=VolumeStatusStrategy(),
    short_names=("pv",),
    columns=(
        NAME,
        Column(
            "Capacity",
            "string",
            "The size of the volume.",
            lambda volume, now: (_spec(volume).get("capacity") or {}).get("storage") or "0",
        ),
        Column(
            "Access Modes",
            "string",
            "How the volume can be mounted.",
            lambda volume, now: _modes(_spec(volume).get("accessModes")),
        ),
        Column("Reclaim Policy", "string", "After its release.", text_cell("spec", "persistentVolumeReclaimPolicy")),
        Column("Status", "string", "The state of the volume.", _phase),
        Column("Claim", "string", "The bound claim.", _claim_of),
        Column("StorageClass", "string", "The class of the volume.", text_cell("spec", "storageClassName")),
        _ATTRIBUTES,
        Column("Reason", "string", "Why it is in its state.", text_cell("status", "reason")),
        AGE,
        _VOLUME_MODE,
    ),
)


def _class_name(storage_class: Document, now: datetime) -> str:
    metadata = storage_class.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    is_default = any(annotations.get(name) == "true" for name in DEFAULT_CLASS_ANNOTATIONS)
    return f"{metadata.get('name', '')} (default)" if is_default else metadata.get("name", "")


STORAGE_CLASSES: Final = ResourceDefinition(
    group="storage.k8s.io",
    resource="storageclasses",
    singular="storageclass",
    kind="StorageClass",
    namespaced=False,
    versions=("v1",),
    storage_version="v1",
    strategy=GenericStrategy(validate_storage_class, validate_storage_class_update, generation=False),
    short_names=("sc",),
    columns=(
        Column("Name", "string", NAME.description, _class_name, "name"),
        Column("Provisioner", "string", "What makes its volumes.", text_cell("provisioner")),
        Column("ReclaimPolicy", "string", "Of its volumes.", text_cell("reclaimPolicy")),
        Column("VolumeBindingMode", "string", "When volumes are bound.", text_cell("volumeBindingMode")),
        Column(
            "AllowVolumeExpansion",
            "string",
            "Whether claims can grow.",
            lambda item, now: bool(item.get("allowVolumeExpansion")),
        ),
        AGE,
    ),
)

DEFINITIONS: Final = (PERSISTENT_VOLUMES, PERSISTENT_VOLUME_CLAIMS, STORAGE_CLASSES)
