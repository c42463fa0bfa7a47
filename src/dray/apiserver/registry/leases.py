"""Leases."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.validation.other_groups import validate_lease
from dray.apiserver.registry.columns import AGE, NAME, text_cell
from dray.apiserver.registry.strategy import Column, ResourceDefinition, Strategy, WriteContext


class LeaseStrategy(Strategy):
    """Strategy of leases; holders compete for a lease, so an update requires a resourceVersion."""

    allow_create_on_update = True
    allow_unconditional_update = False

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate the lease."""
        return validate_lease(obj)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the lease."""
        return validate_lease(obj)


LEASES: Final = ResourceDefinition(
    group="coordination.k8s.io",
    resource="leases",
    singular="lease",
    kind="Lease",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=LeaseStrategy(),
    columns=(NAME, Column("Holder", "string", "The holder of the lease.", text_cell("spec", "holderIdentity")), AGE),
)

DEFINITIONS: Final = (LEASES,)
