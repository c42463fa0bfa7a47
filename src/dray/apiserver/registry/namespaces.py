"""Namespaces, which are deleted only when they are empty."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.defaults.core_v1 import default_namespace_label
from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.validation.core_v1_namespace import validate_namespace, validate_namespace_status
from dray.apiserver.registry.columns import AGE, NAME
from dray.apiserver.registry.strategy import (
    Column,
    ResourceDefinition,
    Strategy,
    Subresource,
    WriteContext,
    restore,
)

FINALIZER: Final = "kubernetes"


class NamespaceStrategy(Strategy):
    """Strategy of namespaces; a finalizer keeps a namespace until its content is deleted."""

    name_rule = "label"

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Set the phase, the finalizer and the name label."""
        default_namespace_label(obj)
        obj["status"] = {"phase": "Active"}
        spec = obj["spec"] = obj.get("spec") or {}
        finalizers = spec.get("finalizers") or []
        spec["finalizers"] = finalizers if FINALIZER in finalizers else [*finalizers, FINALIZER]

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate the finalizers."""
        return validate_namespace(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore spec and status, which have their own subresources."""
        restore(obj, old, "spec", "status")
        default_namespace_label(obj)


class NamespaceStatusStrategy(Strategy):
    """Strategy of the status."""

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the spec."""
        restore(obj, old, "spec")

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate that the phase matches the deletion timestamp."""
        return validate_namespace_status(obj)


def _phase(namespace: Document) -> str:
    return (namespace.get("status") or {}).get("phase") or ""


def _status(namespace: Document, now: datetime) -> str:
    return _phase(namespace)


NAMESPACES: Final = ResourceDefinition(
    group="",
    resource="namespaces",
    singular="namespace",
    kind="Namespace",
    namespaced=False,
    versions=("v1",),
    storage_version="v1",
    strategy=NamespaceStrategy(),
    status_strategy=NamespaceStatusStrategy(),
    subresources=(Subresource("finalize", verbs=("update",)),),
    short_names=("ns",),
    columns=(NAME, Column("Status", "string", "The phase of the namespace.", _status), AGE),
    selectable_fields={
        "status.phase": _phase,
        # A legacy alias of metadata.name for namespaces.
        "name": lambda namespace: (namespace.get("metadata") or {}).get("name") or "",
    },
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
)

DEFINITIONS: Final = (NAMESPACES,)
