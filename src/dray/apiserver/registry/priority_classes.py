"""Priority classes."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.validation.other_groups import validate_priority_class, validate_priority_class_update
from dray.apiserver.registry.columns import AGE, NAME, text_cell
from dray.apiserver.registry.strategy import (
    Column,
    ResourceDefinition,
    Strategy,
    WriteContext,
    restore_metadata,
    start_generation,
)


class PriorityClassStrategy(Strategy):
    """Strategy of priority classes; Pods copy the value, so it is immutable."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Set generation 1, which never changes."""
        start_generation(obj)

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate name, value and policy."""
        return validate_priority_class(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the generation."""
        restore_metadata(obj, old, "generation")

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate that value and policy did not change."""
        return validate_priority_class_update(obj, old)


def _value(priority_class: Document, now: datetime) -> int:
    return priority_class.get("value") or 0


def _default(priority_class: Document, now: datetime) -> bool:
    return bool(priority_class.get("globalDefault"))


PRIORITY_CLASSES: Final = ResourceDefinition(
    group="scheduling.k8s.io",
    resource="priorityclasses",
    singular="priorityclass",
    kind="PriorityClass",
    namespaced=False,
    versions=("v1",),
    storage_version="v1",
    strategy=PriorityClassStrategy(),
    short_names=("pc",),
    columns=(
        NAME,
        Column("Value", "integer", "The priority of pods with this class; higher values are more important.", _value),
        Column("Global-Default", "boolean", "Whether this is the default class.", _default),
        AGE,
        Column(
            "PreemptionPolicy",
            "string",
            "Whether pods with this class may preempt others.",
            text_cell("preemptionPolicy"),
        ),
    ),
)

DEFINITIONS: Final = (PRIORITY_CLASSES,)
