"""The resources of cdi.k8s.io: classes, and claims that drivers allocate."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.defaults.other_groups import default_cdi_claim_status
from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.validation.cdi_v1alpha1 import (
    validate_claim,
    validate_claim_status,
    validate_claim_update,
    validate_resource_class,
)
from dray.apiserver.registry.columns import AGE, NAME, text_cell
from dray.apiserver.registry.resource.group import restore_for_status, restore_status
from dray.apiserver.registry.strategy import Column, ResourceDefinition, Strategy, WriteContext

GROUP: Final = "cdi.k8s.io"
VERSION: Final = "v1alpha1"


class ResourceClassStrategy(Strategy):
    """Strategy of resource classes."""

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate the class."""
        return validate_resource_class(obj)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the class."""
        return validate_resource_class(obj)


class ResourceClaimStrategy(Strategy):
    """Strategy of claims."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Reset the status; a new claim is pending."""
        obj["status"] = {}
        default_cdi_claim_status(obj["status"])

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate the spec; its class need not exist."""
        return validate_claim(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the status."""
        restore_status(obj, old)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Reject changes of the spec."""
        return validate_claim_update(obj, old)


class ResourceClaimStatusStrategy(Strategy):
    """Strategy of claim statuses, which scheduler and driver write in turns.

    Several schedulers may compete for a claim, so an update requires a resourceVersion.
    """

    allow_unconditional_update = False

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore spec and metadata."""
        restore_for_status(obj, old)
        default_cdi_claim_status(obj.setdefault("status", {}))

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the status."""
        return validate_claim_status(obj, old)


RESOURCE_CLASSES: Final = ResourceDefinition(
    group=GROUP,
    resource="resourceclasses",
    singular="resourceclass",
    kind="ResourceClass",
    namespaced=False,
    versions=(VERSION,),
    storage_version=VERSION,
    strategy=ResourceClassStrategy(),
    columns=(
        NAME,
        Column("DriverName", "string", "The driver that allocates resources of the class.", text_cell("driverName")),
        AGE,
    ),
)


def _state(claim: Document, _now: datetime) -> str:
    phase: str = (claim.get("status") or {}).get("phase") or ""
    return f"deleted,{phase}" if claim["metadata"].get("deletionTimestamp") else phase


RESOURCE_CLAIMS: Final = ResourceDefinition(
    group=GROUP,
    resource="resourceclaims",
    singular="resourceclaim",
    kind="ResourceClaim",
    namespaced=True,
    versions=(VERSION,),
    storage_version=VERSION,
    strategy=ResourceClaimStrategy(),
    status_strategy=ResourceClaimStatusStrategy(),
    columns=(
        NAME,
        Column("ResourceClassName", "string", "The class of the claim.", text_cell("spec", "resourceClassName")),
        Column("AllocationMode", "string", "The allocation mode of the claim.", text_cell("spec", "allocationMode")),
        Column("State", "string", "The allocation phase, and whether the claim is being deleted.", _state),
        AGE,
    ),
)

DEFINITIONS: Final[tuple[ResourceDefinition, ...]] = (RESOURCE_CLASSES, RESOURCE_CLAIMS)
