"""Volumes of a pod: each has a name and exactly one source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import (
    FieldErrors,
    Path,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
)
from dray.api.names import caseless_subdomain, dns1123_label, dns1123_subdomain
from dray.api.quantity import Quantity, QuantityError

_MODE_MAX: Final = 0o777
_BAD_MODE: Final = "must be a number between 0 and 0777 (octal), both inclusive"
_TOKEN_SECONDS_MIN: Final = 600
_TOKEN_SECONDS_MAX: Final = 1 << 32
_HOST_PATH_TYPES: Final = (
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
)
_PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")


def validate_volumes(volumes: Sequence[Document], path: Path) -> FieldErrors:
    """Validate all volumes of a pod."""
    errors: FieldErrors = []
    seen: set[str] = set()
    for i, volume in enumerate(volumes):
        at = path.index(i)
        errors += _validate_source(volume, at)
        name = volume.get("name") or ""
        if not name:
            errors.append(required(at.child("name")))
            continue
        errors += [invalid(at.child("name"), name, problem) for problem in dns1123_label(name)]
        if name in seen:
            errors.append(duplicate(at.child("name"), name))
        seen.add(name)
    return errors


def _validate_source(volume: Document, path: Path) -> FieldErrors:
    sources = [name for name, value in volume.items() if name != "name" and value is not None]
    if not sources:
        return [required(path, "must specify a volume type")]
    errors = [forbidden(path.child(name), "may not specify more than 1 volume type") for name in sources[1:]]
    validate = _SOURCES.get(sources[0])
    if validate is not None:
        errors += validate(volume[sources[0]], path.child(sources[0]))
    return errors


def validate_no_backsteps(target: str, path: Path) -> FieldErrors:
    """Validate a path without `..`."""
    return [invalid(path, target, "must not contain '..'")] if ".." in target.split("/") else []


def validate_descending(target: str, path: Path) -> FieldErrors:
    """Validate a relative path without `..`."""
    errors = [invalid(path, target, "must be a relative path")] if target.startswith("/") else []
    return errors + validate_no_backsteps(target, path)


def _validate_mode(mode: int | None, path: Path) -> FieldErrors:
    if mode is None or 0 <= mode <= _MODE_MAX:
        return []
    return [invalid(path, mode, _BAD_MODE)]


def _validate_items(items: Sequence[Document], path: Path) -> FieldErrors:
    errors: FieldErrors = []
    for i, item in enumerate(items):
        at = path.index(i)
        if not item.get("key"):
            errors.append(required(at.child("key")))
        errors += _validate_item_path(item.get("path") or "", at.child("path"))
        errors += _validate_mode(item.get("mode"), at.child("mode"))
    return errors


def _validate_item_path(target: str, path: Path) -> FieldErrors:
    if not target:
        return [required(path)]
    errors = validate_descending(target, path)
    if target.startswith("..") and not errors:
        errors.append(invalid(path, target, "must not start with '..'"))
    return errors


def _validate_empty_dir(source: Document, path: Path) -> FieldErrors:
    try:
        negative = Quantity.parse(source.get("sizeLimit") or 0).sign < 0
    except QuantityError:
        negative = True
    return [forbidden(path.child("sizeLimit"), "SizeLimit field must be a valid resource quantity")] if negative else []


def validate_host_path(source: Document, path: Path) -> FieldErrors:
    """Validate a path of the node."""
    target, kind = source.get("path") or "", source.get("type") or ""
    errors = validate_no_backsteps(target, path.child("path")) if target else [required(path.child("path"))]
    if kind not in _HOST_PATH_TYPES:
        errors.append(not_supported(path.child("type"), kind, _HOST_PATH_TYPES))
    return errors


def _validate_secret(source: Document, path: Path) -> FieldErrors:
    errors = [] if source.get("secretName") else [required(path.child("secretName"))]
    errors += _validate_mode(source.get("defaultMode"), path.child("defaultMode"))
    return errors + _validate_items(source.get("items") or (), path.child("items"))


def _validate_config_map(source: Document, path: Path) -> FieldErrors:
    errors = [] if source.get("name") else [required(path.child("name"))]
    errors += _validate_mode(source.get("defaultMode"), path.child("defaultMode"))
    return errors + _validate_items(source.get("items") or (), path.child("items"))


def _validate_downward_api(source: Document, path: Path) -> FieldErrors:
    errors = _validate_mode(source.get("defaultMode"), path.child("defaultMode"))
    for i, item in enumerate(source.get("items") or ()):
        errors += _validate_downward_file(item, path.index(i))
    return errors


def _validate_downward_file(item: Document, path: Path) -> FieldErrors:
    errors = _validate_item_path(item.get("path") or "", path.child("path"))
    field, resource = item.get("fieldRef"), item.get("resourceFieldRef")
    if field is not None:
        if not field.get("fieldPath"):
            errors.append(required(path.child("fieldRef", "fieldPath")))
        if resource is not None:
            errors.append(
                invalid(path, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
            )
    elif resource is not None:
        if not resource.get("containerName"):
            errors.append(required(path.child("resourceFieldRef", "containerName")))
        elif not resource.get("resource"):
            errors.append(required(path.child("resourceFieldRef", "resource")))
    else:
        errors.append(required(path, "one of fieldRef and resourceFieldRef is required"))
    return errors + _validate_mode(item.get("mode"), path.child("mode"))


def _validate_projected(source: Document, path: Path) -> FieldErrors:
    errors = _validate_mode(source.get("defaultMode"), path.child("defaultMode"))
    for i, projection in enumerate(source.get("sources") or ()):
        errors += _validate_projection(projection, path.child("sources").index(i))
    return errors


def _validate_projection(projection: Document, path: Path) -> FieldErrors:
    kinds = [name for name, value in projection.items() if value is not None]
    if not kinds:
        return [required(path, "must specify a volume projection type")]
    errors = [forbidden(path.child(name), "may not specify more than 1 volume type") for name in kinds[1:]]
    kind, value = kinds[0], projection[kinds[0]]
    if kind in ("secret", "configMap"):
        if not value.get("name"):
            errors.append(required(path.child(kind, "name")))
        errors += _validate_items(value.get("items") or (), path.child(kind, "items"))
    elif kind == "downwardAPI":
        errors += _validate_downward_api(value, path.child(kind))
    elif kind == "serviceAccountToken":
        errors += _validate_token(value, path.child(kind))
    return errors


def _validate_token(token: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    seconds = token.get("expirationSeconds") or 0
    if seconds < _TOKEN_SECONDS_MIN:
        errors.append(
            invalid(path.child("expirationSeconds"), seconds, "may not specify a duration less than 10 minutes")
        )
    if seconds > _TOKEN_SECONDS_MAX:
        errors.append(
            invalid(path.child("expirationSeconds"), seconds, "may not specify a duration larger than 2^32 seconds")
        )
    return errors + _validate_item_path(token.get("path") or "", path.child("path"))


def _validate_claim(source: Document, path: Path) -> FieldErrors:
    return [] if source.get("claimName") else [required(path.child("claimName"))]


def _validate_ephemeral(source: Document, path: Path) -> FieldErrors:
    return [] if source.get("volumeClaimTemplate") else [required(path.child("volumeClaimTemplate"))]


def _validate_nfs(source: Document, path: Path) -> FieldErrors:
    errors = [required(path.child(name)) for name in ("server", "path") if not source.get(name)]
    target = source.get("path") or ""
    if target and not target.startswith("/"):
        errors.append(invalid(path.child("path"), target, "must be an absolute path"))
    return errors


def _validate_csi(source: Document, path: Path) -> FieldErrors:
    driver = source.get("driver") or ""
    if not driver:
        return [required(path.child("driver"))]
    errors = [invalid(path.child("driver"), driver, problem) for problem in caseless_subdomain(driver)]
    secret = (source.get("nodePublishSecretRef") or {}).get("name")
    if source.get("nodePublishSecretRef") is not None and not secret:
        errors.append(required(path.child("nodePublishSecretRef", "name")))
    elif secret:
        errors += [
            invalid(path.child("nodePublishSecretRef", "name"), secret, problem)
            for problem in dns1123_subdomain(secret)
        ]
    return errors


def _validate_image(source: Document, path: Path) -> FieldErrors:
    errors = [] if source.get("reference") else [required(path.child("reference"))]
    policy = source.get("pullPolicy") or ""
    if policy and policy not in _PULL_POLICIES:
        errors.append(not_supported(path.child("pullPolicy"), policy, _PULL_POLICIES))
    return errors


_SOURCES: Final[Mapping[str, Callable[[Document, Path], FieldErrors]]] = {
    "emptyDir": _validate_empty_dir,
    "hostPath": validate_host_path,
    "secret": _validate_secret,
    "configMap": _validate_config_map,
    "downwardAPI": _validate_downward_api,
    "projected": _validate_projected,
    "persistentVolumeClaim": _validate_claim,
    "ephemeral": _validate_ephemeral,
    "nfs": _validate_nfs,
    "csi": _validate_csi,
    "image": _validate_image,
}
