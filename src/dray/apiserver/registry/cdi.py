"""The resources of cdi.k8s.io: classes, and claims that drivers allocate by themselves."""

from __future__ import annotations

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
    """The rules of writing a class."""

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """The whole class."""
        return validate_resource_class(obj)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """The whole class."""
        return validate_resource_class(obj)


class ResourceClaimStrategy(Strategy):
    """The rules of writing a claim's spec."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Status is for the system; a new claim is pending."""
        obj["status"] = {}
        default_cdi_claim_status(obj["status"])

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """The spec; its class need not exist."""
        return validate_claim(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Keep the status."""
        restore_status(obj, old)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """The spec cannot change."""
        return validate_claim_update(obj, old)


class ResourceClaimStatusStrategy(Strategy):
    """The rules of the talk between scheduler and driver; whoever is late has to read again.

    Several schedulers may compete for a claim, so a status is never written blindly.
    """

    allow_unconditional_update = False

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Keep spec and metadata."""
        restore_for_status(obj, old)
        default_cdi_claim_status(obj.setdefault("status", {}))

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """The whole status."""
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
        Column("AllocationMode", "string", "When the driver allocates.", text_cell("spec", "allocationMode")),
        Column("State", "string", "How far allocation has come.", text_cell("status", "phase")),
        AGE,
    ),
)

DEFINITIONS: Final[tuple[ResourceDefinition, ...]] = (RESOURCE_CLASSES, RESOURCE_CLAIMS)
