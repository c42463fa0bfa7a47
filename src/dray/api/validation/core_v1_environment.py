"""Environment of a container: literal variables, references, and whole ConfigMaps or Secrets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, invalid, not_supported, required
from dray.api.names import config_map_key, dns1123_subdomain, relaxed_env_var_name
from dray.lib.processor_time import ticking

_ONE_FIELD_ONLY: Final = "may not have more than one field specified at a time"


def validate_env(variables: Sequence[Document], path: Path) -> FieldErrors:
    """Validate the variables of a container."""
    errors: FieldErrors = []
    for i, variable in enumerate(ticking(variables)):
        name = variable.get("name") or ""
        if not name:
            errors.append(required(path.index(i).child("name")))
        else:
            problems = relaxed_env_var_name(name)
            errors += [invalid(path.index(i).child("name"), name, problem) for problem in problems]
        source = variable.get("valueFrom")
        if source is not None:
            errors += _validate_env_source(source, variable.get("value") or "", path.index(i).child("valueFrom"))
    return errors


def _validate_env_source(source: Document, value: str, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    set_sources = [name for name in _ENV_SOURCES if source.get(name) is not None]
    for name in set_sources:
        errors += _ENV_SOURCES[name](source[name], path.child(name))
    if not set_sources:
        listed = (
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        )
        errors.append(invalid(path, "", listed))
    elif value:
        errors.append(invalid(path, "", "may not be specified when `value` is not empty"))
    elif len(set_sources) > 1:
        errors.append(invalid(path, "", _ONE_FIELD_ONLY))
    return errors


_DOWNWARD_FIELDS: Final = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
_DOWNWARD_MAPS: Final = ("metadata.annotations", "metadata.labels")
_RESOURCE_FIELDS: Final = (
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
)


def _validate_field_ref(reference: Document, path: Path) -> FieldErrors:
    target = reference.get("fieldPath") or ""
    if not reference.get("apiVersion"):
        return [required(path.child("apiVersion"))]
    if not target:
        return [required(path.child("fieldPath"))]
    head, subscripted, _ = target.partition("['")
    if subscripted and target.endswith("']"):
        return [] if head in _DOWNWARD_MAPS else [invalid(path, head, "does not support subscript")]
    if target in _DOWNWARD_MAPS:
        return [not_supported(path.child("fieldPath"), target, _DOWNWARD_FIELDS)]
    if target in _DOWNWARD_FIELDS:
        return []
    text = f"error converting fieldPath: field label not supported: {target}"
    return [invalid(path.child("fieldPath"), target, text)]


def _validate_resource_field_ref(reference: Document, path: Path) -> FieldErrors:
    resource = reference.get("resource") or ""
    if not resource:
        return [required(path.child("resource"))]
    if resource in _RESOURCE_FIELDS or resource.startswith(("limits.hugepages-", "requests.hugepages-")):
        return []
    return [not_supported(path.child("resource"), resource, _RESOURCE_FIELDS)]


def _validate_key_ref(reference: Document, path: Path) -> FieldErrors:
    name, key = reference.get("name") or "", reference.get("key") or ""
    errors = [invalid(path.child("name"), name, problem) for problem in dns1123_subdomain(name)]
    if not key:
        errors.append(required(path.child("key")))
    else:
        errors += [invalid(path.child("key"), key, problem) for problem in config_map_key(key)]
    return errors


def _validate_file_ref(reference: Document, path: Path) -> FieldErrors:
    return [required(path.child(name)) for name in ("key", "volumeName", "path") if not reference.get(name)]


_ENV_SOURCES: Final = {
    "fieldRef": _validate_field_ref,
    "resourceFieldRef": _validate_resource_field_ref,
    "configMapKeyRef": _validate_key_ref,
    "secretKeyRef": _validate_key_ref,
    "fileKeyRef": _validate_file_ref,
}


def validate_env_from(sources: Sequence[Document], path: Path) -> FieldErrors:
    """Validate the ConfigMaps and Secrets that become variables."""
    errors: FieldErrors = []
    for i, source in enumerate(sources):
        if prefix := source.get("prefix"):
            problems = relaxed_env_var_name(prefix)
            errors += [invalid(path.index(i).child("prefix"), prefix, problem) for problem in problems]
        chosen = [name for name in ("configMapRef", "secretRef") if source.get(name) is not None]
        for name in chosen:
            errors += _validate_reference_name(source[name].get("name") or "", path.index(i).child(name, "name"))
        if not chosen:
            errors.append(invalid(path, "", "must specify one of: `configMapRef` or `secretRef`"))
        elif len(chosen) > 1:
            errors.append(invalid(path, "", _ONE_FIELD_ONLY))
    return errors


def _validate_reference_name(name: str, path: Path) -> FieldErrors:
    if not name:
        return [required(path)]
    return [invalid(path, name, problem) for problem in dns1123_subdomain(name)]
