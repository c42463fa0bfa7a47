"""ResourceSlices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, quote
from dray.api.validation.resource_slice import validate_slice
from dray.apiserver.registry.columns import AGE, NAME, text_cell
from dray.apiserver.registry.gated_fields import SLICE_FIELDS, drop_disabled_fields
from dray.apiserver.registry.resource.group import (
    GROUP,
    STORAGE_VERSION,
    VERSIONS,
)
from dray.apiserver.registry.strategy import (
    Column,
    ResourceDefinition,
    Strategy,
    WriteContext,
    carry_generation,
    spec_changed,
    start_generation,
)

FRACTIONAL_RANGES: Final = "DRAFractionalCapacityRange"


class SliceStrategy(Strategy):
    """Strategy of slices."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Set the generation, and drop disabled fields."""
        start_generation(obj)
        context.warnings.extend(drop_disabled_fields(SLICE_FIELDS, obj, None, context.gates))

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate the slice."""
        return validate_slice(obj, fractional=context.gates.enabled(FRACTIONAL_RANGES))

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Drop disabled fields, and increment the generation of a changed spec."""
        drop_disabled_fields(SLICE_FIELDS, obj, old, context.gates)
        carry_generation(obj, old, changed=spec_changed(obj, old))

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the slice and its immutable fields."""
        return validate_slice(obj, old, fractional=context.gates.enabled(FRACTIONAL_RANGES))

    def warnings(self, obj: Document, old: Document | None, context: WriteContext) -> Sequence[str]:
        """Warn about upper case in a driver name, since names are compared exactly."""
        driver = _driver(obj)
        if driver == driver.lower():
            return ()
        return (f"spec.driver: driver names should be lowercase; {quote(driver)} contains uppercase characters",)


def _driver(obj: Document) -> str:
    driver: str = (obj.get("spec") or {}).get("driver") or ""
    return driver


def _pool_name(obj: Document) -> str:
    name: str = ((obj.get("spec") or {}).get("pool") or {}).get("name") or ""
    return name


def _node_name(obj: Document) -> str:
    name: str = (obj.get("spec") or {}).get("nodeName") or ""
    return name


SLICES: Final = ResourceDefinition(
    group=GROUP,
    resource="resourceslices",
    singular="resourceslice",
    kind="ResourceSlice",
    namespaced=False,
    versions=VERSIONS,
    storage_version=STORAGE_VERSION,
    strategy=SliceStrategy(),
    columns=(
        NAME,
        Column("Node", "string", "The node with the devices, if it is a single one.", text_cell("spec", "nodeName")),
        Column("Driver", "string", "The driver of the devices.", text_cell("spec", "driver")),
        Column("Pool", "string", "The pool of the slice.", text_cell("spec", "pool", "name")),
        AGE,
    ),
    selectable_fields={"spec.nodeName": _node_name, "spec.driver": _driver, "spec.pool.name": _pool_name},
)
