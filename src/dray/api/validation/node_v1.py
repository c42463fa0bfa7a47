"""RuntimeClasses."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, duplicate, invalid
from dray.api.names import dns1123_label
from dray.api.validation.core_v1_resources import validate_resource_requirements
from dray.api.validation.core_v1_scheduling import validate_tolerations
from dray.api.validation.meta_v1 import validate_immutable, validate_labels

_HANDLER: Final = Path("handler")
_SCHEDULING: Final = Path("scheduling")


def validate_runtime_class(runtime_class: Document) -> FieldErrors:
    """Validate handler, overhead and scheduling."""
    handler = runtime_class.get("handler") or ""
    errors = [invalid(_HANDLER, handler, problem) for problem in dns1123_label(handler)]
    overhead = (runtime_class.get("overhead") or {}).get("podFixed")
    if overhead:
        errors += validate_resource_requirements({"limits": overhead}, Path("overhead"))
    scheduling = runtime_class.get("scheduling") or {}
    errors += validate_labels(scheduling.get("nodeSelector") or {}, _SCHEDULING.child("nodeSelector"))
    tolerations, path = scheduling.get("tolerations") or (), _SCHEDULING.child("tolerations")
    errors += validate_tolerations(tolerations, path)
    seen: set[tuple[tuple[str, object], ...]] = set()
    for index, item in enumerate(tolerations):
        key = tuple(sorted(item.items()))
        if key in seen:
            errors.append(duplicate(path.index(index), item))
        seen.add(key)
    return errors


def validate_runtime_class_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed class; its handler is immutable."""
    return validate_runtime_class(new) + validate_immutable(new.get("handler"), old.get("handler"), _HANDLER)
