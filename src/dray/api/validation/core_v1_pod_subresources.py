"""Changes of a Pod through its subresources `ephemeralcontainers` and `resize`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, forbidden
from dray.api.validation.core_v1_pod import SPEC, validate_pod_spec
from dray.api.validation.core_v1_pod_diff import spec_diff

_MIRROR: Final = "kubernetes.io/config.mirror"
_WHOLE: Final = Path("")
_EPHEMERAL: Final = SPEC.child("ephemeralContainers")
_CONTAINER_KINDS: Final = ("containers", "initContainers")
_RESIZABLE: Final = ("cpu", "memory")
_ONLY_COMPUTE: Final = "only cpu and memory resources are mutable"
_ONLY_COMPUTE_OF_INIT: Final = "only cpu and memory resources for init or sidecar containers are mutable"
_RESTARTED_INIT: Final = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized"


def validate_ephemeral_containers_update(new: Document, old: Document) -> FieldErrors:
    """Validate new ephemeral containers; existing ones can neither be changed nor removed."""
    if _is_static(old):
        return [forbidden(_WHOLE, "static pods do not support ephemeral containers")]
    spec, previous = new.get("spec") or {}, old.get("spec") or {}
    errors = validate_pod_spec(spec, SPEC, metadata=new.get("metadata") or {})
    by_name = {item.get("name"): item for item in spec.get("ephemeralContainers") or ()}
    for container in previous.get("ephemeralContainers") or ():
        name = container.get("name") or ""
        found = by_name.get(name)
        if found is None:
            errors.append(forbidden(_EPHEMERAL, f'existing ephemeral containers "{name}" may not be removed\n'))
        elif found != container:
            shown = spec_diff({"ephemeralContainers": [found]}, {"ephemeralContainers": [container]})
            errors.append(forbidden(_EPHEMERAL, f'existing ephemeral containers "{name}" may not be changed\n{shown}'))
    return errors


def validate_resize(new: Document, old: Document) -> FieldErrors:
    """Validate a resize: only requests and limits of CPU and memory change, and none of them is removed."""
    spec, previous = new.get("spec") or {}, old.get("spec") or {}
    if _is_static(old):
        return [forbidden(_WHOLE, "static pods cannot be resized")]
    if (previous.get("os") or {}).get("name") == "windows":
        return [forbidden(_WHOLE, "windows pods cannot be resized")]
    errors = validate_pod_spec(spec, SPEC, metadata=new.get("metadata") or {})
    errors += _validate_pod_level(spec, previous)
    if not _is_supported(old.get("status") or {}):
        errors.append(forbidden(SPEC, "Pod running on node without support for resize"))
    disorder = _validate_order(spec, previous)
    if disorder:
        return errors + disorder
    for kind in _CONTAINER_KINDS:
        for i, (container, before) in enumerate(zip(spec.get(kind) or (), previous.get(kind) or (), strict=True)):
            errors += _validate_container(kind, i, container, before)
    undone = {
        **_unresized_pod_level(spec, previous),
        **{kind: _unresized(spec, previous, kind) for kind in _CONTAINER_KINDS if spec.get(kind)},
    }
    if not errors and undone != previous:
        errors.append(forbidden(SPEC, _ONLY_COMPUTE))
    return errors


def _validate_pod_level(spec: Document, previous: Document) -> FieldErrors:
    """Validate the change of the resources of the Pod as a whole."""
    errors: FieldErrors = []
    resources, before = spec.get("resources") or {}, previous.get("resources") or {}
    for field in ("requests", "limits"):
        if (before.get(field) or {}).keys() - (resources.get(field) or {}).keys():
            text = f"pod-level resource {field} cannot be removed"
            errors.append(forbidden(SPEC.child("resources", field), text))
    if _unresized_pod_level(spec, previous).get("resources") != previous.get("resources"):
        errors.append(forbidden(SPEC, "only cpu and memory resources are mutable at pod-level"))
    return errors


def _unresized_pod_level(spec: Document, previous: Document) -> Document:
    """Return the spec with the allowed changes of the Pod's own resources undone."""
    undone = _unresized_resources(spec.get("resources") or {}, previous.get("resources") or {})
    rest = {name: value for name, value in spec.items() if name != "resources"}
    return {**rest, "resources": undone} if undone or "resources" in previous else rest


def _is_static(pod: Document) -> bool:
    return _MIRROR in ((pod.get("metadata") or {}).get("annotations") or {})


def _is_supported(status: Document) -> bool:
    """Return whether the node reports resources of running containers, or none runs yet."""
    for container in status.get("containerStatuses") or ():
        if (container.get("state") or {}).get("running") is not None:
            return container.get("resources") is not None
    return True


def _validate_order(spec: Document, previous: Document) -> FieldErrors:
    errors: FieldErrors = []
    for kind in _CONTAINER_KINDS:
        names, before = ([item.get("name") for item in each.get(kind) or ()] for each in (spec, previous))
        at = SPEC.child(kind)
        if len(names) != len(before):
            errors.append(forbidden(at, f"{kind} may not be added or removed on resize"))
            continue
        text = f"{kind} may not be renamed or reordered on resize"
        changed = (i for i, (name, old) in enumerate(zip(names, before, strict=True)) if name != old)
        errors += [forbidden(at.index(i).child("name"), text) for i in changed]
    return errors


def _validate_container(kind: str, index: int, container: Document, before: Document) -> FieldErrors:
    path = SPEC.child(kind).index(index)
    resources, previous = container.get("resources") or {}, before.get("resources") or {}
    errors: FieldErrors = []
    for field in ("requests", "limits"):
        if (previous.get(field) or {}).keys() - (resources.get(field) or {}).keys():
            errors.append(forbidden(path.child("resources", field), f"resource {field} cannot be removed"))
    is_init = kind == "initContainers"
    if _unresized_container(container, before) != before:
        errors.append(forbidden(path, _ONLY_COMPUTE_OF_INIT) if is_init else forbidden(SPEC, _ONLY_COMPUTE))
    if is_init and before.get("restartPolicy") != "Always" and container != before:
        policies = container.get("resizePolicy") or ()
        errors += [
            forbidden(path, _RESTARTED_INIT) for item in policies if item.get("restartPolicy") == "RestartContainer"
        ]
    return errors


def _unresized(spec: Document, previous: Document, kind: str) -> list[Document]:
    """Return the new containers with the allowed changes undone."""
    return list(map(_unresized_container, spec[kind], previous[kind]))


def _unresized_container(container: Document, before: Document) -> Document:
    undone = {
        **container,
        "resources": _unresized_resources(container.get("resources") or {}, before.get("resources") or {}),
    }
    if "resizePolicy" in before:
        undone["resizePolicy"] = before["resizePolicy"]
    else:
        undone.pop("resizePolicy", None)
    return undone


def _unresized_resources(resources: Document, previous: Document) -> Document:
    made: dict[str, Any] = dict(resources)
    for field in ("requests", "limits"):
        amounts = _unresized_amounts(resources.get(field) or {}, previous.get(field) or {})
        if amounts:
            made[field] = amounts
        else:
            made.pop(field, None)
    return made


def _unresized_amounts(amounts: Mapping[str, str], previous: Mapping[str, str]) -> dict[str, str]:
    others = {name: amount for name, amount in amounts.items() if name not in _RESIZABLE}
    return {name: amount for name, amount in previous.items() if name in _RESIZABLE} | others
