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

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Drop the fields of coordinated elections."""
        _drop_coordination(obj, {})

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Drop the fields of coordinated elections, unless the stored lease has them."""
        _drop_coordination(obj, old)

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate the lease."""
        return validate_lease(obj)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the lease."""
        return validate_lease(obj)


def _drop_coordination(lease: Document, old: Document) -> None:
    """Drop what belongs to the gate CoordinatedLeaderElection, which Kubernetes disables by default."""
    spec, before = lease.get("spec") or {}, old.get("spec") or {}
    for field in ("strategy", "preferredHolder"):
        if before.get(field) is None:
            spec.pop(field, None)


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
