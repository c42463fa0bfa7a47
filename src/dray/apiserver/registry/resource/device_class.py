"""DeviceClasses."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.validation.resource_claim import validate_class
from dray.apiserver.registry.columns import AGE, NAME
from dray.apiserver.registry.gated_fields import CLASS_FIELDS, drop_disabled_fields
from dray.apiserver.registry.resource.group import (
    GROUP,
    STORAGE_VERSION,
    VERSIONS,
    compile_stored_selector,
    selector_compiler,
)
from dray.apiserver.registry.strategy import (
    ResourceDefinition,
    Strategy,
    WriteContext,
    carry_generation,
    spec_changed,
    start_generation,
)


class ClassStrategy(Strategy):
    """Strategy of classes."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Set the generation, and drop disabled fields."""
        start_generation(obj)
        context.warnings.extend(drop_disabled_fields(CLASS_FIELDS, obj, None, context.gates))

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate the class."""
        return validate_class(obj, selector_compiler(context.gates))

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Drop disabled fields, and increment the generation of a changed spec."""
        drop_disabled_fields(CLASS_FIELDS, obj, old, context.gates)
        carry_generation(obj, old, changed=spec_changed(obj, old))

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the class; unchanged fields are ratcheted."""
        return validate_class(obj, compile_stored_selector, old)


CLASSES: Final = ResourceDefinition(
    group=GROUP,
    resource="deviceclasses",
    singular="deviceclass",
    kind="DeviceClass",
    namespaced=False,
    versions=VERSIONS,
    storage_version=STORAGE_VERSION,
    strategy=ClassStrategy(),
    columns=(NAME, AGE),
)
