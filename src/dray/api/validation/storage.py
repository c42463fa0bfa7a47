"""Persistent volumes and claims, and storage classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, forbidden, invalid, not_supported, required
from dray.api.names import dns1123_subdomain, qualified_name
from dray.api.quantity import Quantity
from dray.api.validation.core_v1_resources import parse_quantity
from dray.api.validation.core_v1_scheduling import validate_node_selector
from dray.api.validation.core_v1_volume import validate_host_path
from dray.api.validation.meta_v1 import validate_immutable, validate_label_selector

_SPEC: Final = Path("spec")
_ACCESS_MODES: Final = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
_SINGLE_POD: Final = "ReadWriteOncePod"
_VOLUME_MODES: Final = ("Block", "Filesystem")
_RECLAIM: Final = ("Delete", "Recycle", "Retain")
_BINDING: Final = ("Immediate", "WaitForFirstConsumer")
_ZERO: Final = Quantity(0)
_PARAMETERS_MAX: Final = 512
_PARAMETERS_SIZE_MAX: Final = 256 * 1024


def _validate_access_modes(modes: Sequence[str], path: Path) -> FieldErrors:
    errors: FieldErrors = [not_supported(path, mode, _ACCESS_MODES) for mode in modes if mode not in _ACCESS_MODES]
    if _SINGLE_POD in modes and len(modes) > 1:
        errors.append(forbidden(path, "may not use ReadWriteOncePod with other access modes"))
    return errors


def _validate_mode(spec: Document) -> FieldErrors:
    mode = spec.get("volumeMode")
    if mode is None or mode in _VOLUME_MODES:
        return []
    return [not_supported(_SPEC.child("volumeMode"), mode, _VOLUME_MODES)]


def _validate_class_name(spec: Document) -> FieldErrors:
    name = spec.get("storageClassName") or ""
    path = _SPEC.child("storageClassName")
    return [invalid(path, name, problem) for problem in dns1123_subdomain(name)] if name else []


def _validate_storage(value: object, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    quantity = parse_quantity(value, path, errors)
    if quantity is not None and quantity <= _ZERO:
        errors.append(invalid(path, str(quantity), "must be greater than zero"))
    return errors


# --- Claims.


def validate_persistent_volume_claim(claim: Document) -> FieldErrors:
    """Validate a claim: access modes, size, class and source."""
    spec = claim.get("spec") or {}
    modes, path = spec.get("accessModes") or (), _SPEC.child("accessModes")
    errors: FieldErrors = []
    if not modes:
        errors.append(required(path, "at least 1 access mode is required"))
    errors += validate_label_selector(spec.get("selector"), _SPEC.child("selector"))
    errors += _validate_access_modes(modes, path)
    storage = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    path = _SPEC.child("resources").key("storage")
    errors += [required(path)] if storage is None else _validate_storage(storage, path)
    errors += _validate_class_name(spec) + _validate_mode(spec)
    for field in ("dataSource", "dataSourceRef"):
        if spec.get(field) is not None:
            errors += _validate_source(spec[field], _SPEC.child(field))
    return errors


def _validate_source(source: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    kind = source.get("kind") or ""
    if not source.get("name"):
        errors.append(required(path.child("name")))
    if not kind:
        errors.append(required(path.child("kind")))
    if not source.get("apiGroup") and kind != "PersistentVolumeClaim":
        text = "must be 'PersistentVolumeClaim' when referencing the default apiGroup"
        errors.append(invalid(path, kind, text))
    return errors


_CLAIM_FIXED: Final = (
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
)


def validate_persistent_volume_claim_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed claim: its volume is set once, and a bound one may grow."""
    errors = validate_persistent_volume_claim(new)
    spec, before = (dict(item.get("spec") or {}) for item in (new, old))
    mutable = ["volumeAttributesClassName"]
    if not before.get("volumeName"):
        mutable.append("volumeName")
    if before.get("storageClassName") is None:
        mutable.append("storageClassName")
    if (old.get("status") or {}).get("phase") == "Bound":
        mutable.append("resources")
        errors += _validate_growth(spec, before, old.get("status") or {})
    for field in mutable:
        spec.pop(field, None)
        before.pop(field, None)
    if spec != before:
        errors.append(forbidden(_SPEC, _CLAIM_FIXED))
    return errors


def _validate_growth(spec: Document, before: Document, status: Document) -> FieldErrors:
    sizes = [((item.get("resources") or {}).get("requests") or {}).get("storage", "0") for item in (spec, before)]
    capacity = (status.get("capacity") or {}).get("storage", "0")
    wanted, stored = map(Quantity.parse, sizes)
    if wanted < stored and wanted <= Quantity.parse(capacity):
        path = _SPEC.child("resources", "requests", "storage")
        return [forbidden(path, "field can not be less than status.capacity")]
    return []


# --- Volumes.

_NOT_SOURCES: Final = frozenset(
    {
        "capacity",
        "accessModes",
        "claimRef",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "mountOptions",
        "volumeMode",
        "nodeAffinity",
        "volumeAttributesClassName",
    }
)


def _sources(spec: Document) -> list[str]:
    return sorted(name for name, value in spec.items() if name not in _NOT_SOURCES and value is not None)


def validate_persistent_volume(volume: Document) -> FieldErrors:
    """Validate a volume: one source, a size, access modes and policies."""
    spec = volume.get("spec") or {}
    errors: FieldErrors = []
    if not spec.get("accessModes"):
        errors.append(required(_SPEC.child("accessModes")))
    errors += _validate_access_modes(spec.get("accessModes") or (), _SPEC.child("accessModes"))
    capacity, path = spec.get("capacity") or {}, _SPEC.child("capacity")
    if not capacity:
        errors.append(required(path))
    elif "storage" not in capacity or len(capacity) > 1:
        errors.append(not_supported(path, capacity, ("storage",)))
    else:
        errors += _validate_storage(capacity["storage"], path.key("storage"))
    policy = spec.get("persistentVolumeReclaimPolicy")
    if policy and policy not in _RECLAIM:
        errors.append(not_supported(_SPEC.child("persistentVolumeReclaimPolicy"), policy, _RECLAIM))
    affinity = spec.get("nodeAffinity")
    if affinity is not None:
        errors += _validate_affinity(affinity, _SPEC.child("nodeAffinity"))
    errors += _validate_volume_source(spec)
    return errors + _validate_class_name(spec) + _validate_mode(spec)


def _validate_affinity(affinity: Document, path: Path) -> FieldErrors:
    if affinity.get("required") is None:
        return [required(path.child("required"), "must specify required node constraints")]
    return validate_node_selector(affinity["required"], path.child("required"))


# Source -> the fields that it needs.
_NEEDED: Final = {
    "local": ("path",),
    "nfs": ("server", "path"),
    "csi": ("driver", "volumeHandle"),
}


def _validate_volume_source(spec: Document) -> FieldErrors:
    sources = _sources(spec)
    if not sources:
        return [required(_SPEC, "must specify a volume type")]
    errors: FieldErrors = [
        forbidden(_SPEC.child(name), "may not specify more than one volume type") for name in sources[1:]
    ]
    source = spec[sources[0]]
    errors += [
        required(_SPEC.child(sources[0], field)) for field in _NEEDED.get(sources[0], ()) if not source.get(field)
    ]
    if sources[0] == "local" and spec.get("nodeAffinity") is None:
        errors.append(required(_SPEC.child("nodeAffinity"), "Local volume requires node affinity"))
    if sources[0] == "hostPath":
        errors += validate_host_path(source, _SPEC.child("hostPath"))
    elif ".." in (source.get("path") or "").split("/") and sources[0] == "local":
        errors.append(invalid(_SPEC.child(sources[0], "path"), source["path"], "must not contain '..'"))
    return errors


def validate_persistent_volume_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed volume; its source and mode are immutable."""
    errors = validate_persistent_volume(new)
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    sources = [{name: item[name] for name in _sources(item)} for item in (spec, before)]
    if sources[0] != sources[1]:
        text = "spec.persistentvolumesource is immutable after creation"
        errors.append(forbidden(_SPEC.child("persistentvolumesource"), text))
    return errors + validate_immutable(spec.get("volumeMode"), before.get("volumeMode"), _SPEC.child("volumeMode"))


# --- Classes.


def validate_storage_class(storage_class: Document) -> FieldErrors:
    """Validate a storage class."""
    provisioner, path = storage_class.get("provisioner") or "", Path("provisioner")
    errors: FieldErrors = []
    if not provisioner:
        errors.append(required(path))
    else:
        errors += [invalid(path, provisioner, problem) for problem in qualified_name(provisioner.lower())]
    parameters = storage_class.get("parameters") or {}
    if len(parameters) > _PARAMETERS_MAX:
        text = f"must have at most {_PARAMETERS_MAX} entries"
        errors.append(invalid(Path("parameters"), len(parameters), text))
    if sum(len(key) + len(value) for key, value in parameters.items()) > _PARAMETERS_SIZE_MAX:
        text = f"must have a total size of at most {_PARAMETERS_SIZE_MAX} bytes"
        errors.append(invalid(Path("parameters"), len(parameters), text))
    if any(not key for key in parameters):
        errors.append(invalid(Path("parameters"), "", "field can not be empty."))
    policy, mode = storage_class.get("reclaimPolicy"), storage_class.get("volumeBindingMode")
    if policy and policy not in ("Delete", "Retain"):
        errors.append(not_supported(Path("reclaimPolicy"), policy, ("Delete", "Retain")))
    if not mode:
        errors.append(required(Path("volumeBindingMode")))
    elif mode not in _BINDING:
        errors.append(not_supported(Path("volumeBindingMode"), mode, _BINDING))
    return errors


def validate_storage_class_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed class; volumes were made by its parameters, which stay."""
    errors = validate_storage_class(new)
    for field in ("parameters", "provisioner", "reclaimPolicy"):
        if (new.get(field) or None) != (old.get(field) or None):
            errors.append(forbidden(Path(field), f"updates to {field} are forbidden."))
    path = Path("volumeBindingMode")
    return errors + validate_immutable(new.get("volumeBindingMode"), old.get("volumeBindingMode"), path)
