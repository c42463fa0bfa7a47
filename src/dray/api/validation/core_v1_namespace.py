"""Namespaces, and the rule of finalizer names that the built-in kinds share."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, invalid
from dray.api.names import qualified_name
from dray.api.validation.meta_v1 import METADATA

_STANDARD_FINALIZERS: Final = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
_NEITHER: Final = "name is neither a standard finalizer name nor is it fully qualified"


def validate_kube_finalizers(obj: Document) -> FieldErrors:
    """Validate that the finalizers of a built-in kind have a domain or are standard ones."""
    finalizers = (obj.get("metadata") or {}).get("finalizers") or ()
    errors: FieldErrors = []
    for i, name in enumerate(finalizers):
        if "/" not in name and name not in _STANDARD_FINALIZERS:
            errors.append(invalid(METADATA.child("finalizers").index(i), name, _NEITHER))
    return errors


def validate_namespace(namespace: Document) -> FieldErrors:
    """Validate a namespace and its finalizers."""
    errors = validate_kube_finalizers(namespace)
    path = Path("spec.finalizers")
    for name in (namespace.get("spec") or {}).get("finalizers") or ():
        errors += [invalid(path, name, problem) for problem in qualified_name(name)]
        if "/" not in name and name not in _STANDARD_FINALIZERS:
            errors.append(invalid(path, name, _NEITHER))
    return errors


def validate_namespace_status(namespace: Document) -> FieldErrors:
    """Validate that the phase matches the deletion timestamp."""
    phase = (namespace.get("status") or {}).get("phase") or ""
    path = Path("status.Phase")
    if not (namespace.get("metadata") or {}).get("deletionTimestamp"):
        text = "may only be 'Active' if `deletionTimestamp` is empty"
        return [] if phase == "Active" else [invalid(path, phase, text)]
    text = "may only be 'Terminating' if `deletionTimestamp` is not empty"
    return [] if phase == "Terminating" else [invalid(path, phase, text)]
