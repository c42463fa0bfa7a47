"""Namespaces: they hold other objects, so they go only when they are empty."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.defaults.core_v1 import default_namespace_label
from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.validation.core_v1_namespace import validate_namespace, validate_namespace_status
from dray.apiserver.registry.columns import AGE, NAME
from dray.apiserver.registry.strategy import Column, ResourceDefinition, Strategy, WriteContext, restore

FINALIZER: Final = "kubernetes"


class NamespaceStrategy(Strategy):
    """Name and label belong together; the finalizer keeps a namespace until its content is gone."""

    name_rule = "label"

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """A new namespace is active and holds the finalizer."""
        default_namespace_label(obj)
        obj["status"] = {"phase": "Active"}
        spec = obj["spec"] = obj.get("spec") or {}
        finalizers = spec.get("finalizers") or []
        spec["finalizers"] = finalizers if FINALIZER in finalizers else [*finalizers, FINALIZER]

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Finalizers have proper names."""
        return validate_namespace(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Finalizers change through `finalize` alone, the status through `status`."""
        restore(obj, old, "spec", "status")
        default_namespace_label(obj)


class NamespaceStatusStrategy(Strategy):
    """The phase of a namespace."""

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Keep the spec."""
        restore(obj, old, "spec")

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """The phase follows the deletion timestamp."""
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
    subresources=("finalize",),
    short_names=("ns",),
    columns=(NAME, Column("Status", "string", "Whether the namespace is in use or going away.", _status), AGE),
    selectable_fields={
        "status.phase": _phase,
        # An old name of metadata.name that only namespaces have.
        "name": lambda namespace: (namespace.get("metadata") or {}).get("name") or "",
    },
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
)

DEFINITIONS: Final = (NAMESPACES,)
