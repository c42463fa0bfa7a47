"""Defaults of volumes, volume claims and storage classes."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.defaults import Defaulters
from dray.api.defaults.pod_spec import canonicalize_quantities
from dray.api.document import Document, GroupVersion


def default_persistent_volume_claim(obj: Document, _now: datetime) -> None:
    """Default a claim, or the template of one."""
    spec = obj.setdefault("spec", {})
    if not spec.get("volumeMode"):
        spec["volumeMode"] = "Filesystem"
    resources = spec.get("resources") or {}
    canonicalize_quantities(resources.get("requests"))
    canonicalize_quantities(resources.get("limits"))
    status = obj.setdefault("status", {})
    if not status.get("phase"):
        status["phase"] = "Pending"


def _default_persistent_volume(obj: Document, _now: datetime) -> None:
    spec = obj.setdefault("spec", {})
    canonicalize_quantities(spec.get("capacity"))
    if not spec.get("persistentVolumeReclaimPolicy"):
        spec["persistentVolumeReclaimPolicy"] = "Retain"
    if not spec.get("volumeMode"):
        spec["volumeMode"] = "Filesystem"
    host_path = spec.get("hostPath")
    if host_path is not None and host_path.get("type") is None:
        host_path["type"] = ""
    status = obj.setdefault("status", {})
    if not status.get("phase"):
        status["phase"] = "Pending"


def _default_storage_class(obj: Document, _now: datetime) -> None:
    if not obj.get("reclaimPolicy"):
        obj["reclaimPolicy"] = "Delete"
    if not obj.get("volumeBindingMode"):
        obj["volumeBindingMode"] = "Immediate"


def _default_csi_driver(obj: Document, _now: datetime) -> None:
    spec = obj.setdefault("spec", {})
    for field, value in (
        ("attachRequired", True),
        ("podInfoOnMount", False),
        ("storageCapacity", False),
        ("fsGroupPolicy", "ReadWriteOnceWithFSType"),
        ("requiresRepublish", False),
        ("seLinuxMount", False),
    ):
        if spec.get(field) is None:
            spec[field] = value
    if not spec.get("volumeLifecycleModes"):
        spec["volumeLifecycleModes"] = ["Persistent"]


_STORAGE: Final = GroupVersion("storage.k8s.io", "v1")

DEFAULTERS: Final[Defaulters] = {
    GroupVersion("", "v1").kind("PersistentVolume"): _default_persistent_volume,
    GroupVersion("", "v1").kind("PersistentVolumeClaim"): default_persistent_volume_claim,
    _STORAGE.kind("StorageClass"): _default_storage_class,
    _STORAGE.kind("CSIDriver"): _default_csi_driver,
}
