"""ResourceClaims and ResourceClaimTemplates."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Final

from dray.api.devices import results_in
from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.validation.resource_claim import (
    validate_claim,
    validate_claim_update,
    validate_template,
    validate_template_update,
)
from dray.api.validation.resource_claim_status import device_id, validate_claim_status_update
from dray.api.validation.valid_specs import ValidSpecs
from dray.apiserver.registry.columns import AGE, NAME
from dray.apiserver.registry.gated_fields import CLAIM_FIELDS, drop_disabled_fields, drop_disabled_status_fields
from dray.apiserver.registry.resource.admin_access import (
    validate_admin_requests,
    validate_admin_results,
    validate_extended_resource_annotation,
    validate_status_permissions,
)
from dray.apiserver.registry.resource.group import (
    GROUP,
    STORAGE_VERSION,
    VERSIONS,
    CompilerFeatures,
    compiler_features,
    compilers,
    restore_for_status,
    restore_status,
)
from dray.apiserver.registry.strategy import Column, ResourceDefinition, Strategy, WriteContext


@cache
def _valid_specs(features: CompilerFeatures) -> ValidSpecs:
    """Return the specs that were found valid with these features of the compilers."""
    return ValidSpecs()


class ClaimStrategy(Strategy):
    """Strategy of claims; the spec is immutable."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Reset the status, and drop disabled fields."""
        obj["status"] = {}
        context.warnings.extend(drop_disabled_fields(CLAIM_FIELDS, obj, None, context.gates))

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate the spec and its use of admin access."""
        spec, gates = obj.get("spec") or {}, context.gates
        valid = _valid_specs(compiler_features(gates))
        errors = valid.errors(spec, lambda: validate_claim(obj, compilers(gates)))
        errors = validate_extended_resource_annotation(obj, None, context) + errors
        return validate_admin_requests(spec, context) + errors

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the status."""
        restore_status(obj, old)
        drop_disabled_fields(CLAIM_FIELDS, obj, old, context.gates)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Reject changes of the spec."""
        return validate_extended_resource_annotation(obj, old, context) + validate_claim_update(obj, old)


class ClaimStatusStrategy(Strategy):
    """Strategy of the status, which scheduler, controller and drivers share."""

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore spec and metadata, and drop the status of deallocated devices."""
        restore_for_status(obj, old)
        obj["status"] = obj.get("status") or {}
        _drop_deallocated_devices(obj, old)
        drop_disabled_status_fields(CLAIM_FIELDS, obj, old, context.gates)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the status and the caller's permissions."""
        errors = validate_admin_results(obj, old, context)
        errors += validate_status_permissions(obj, old, context)
        return errors + validate_claim_status_update(obj, old)


def _drop_deallocated_devices(claim: Document, old: Document) -> None:
    """Drop the status of deallocated devices, which clients that clear an allocation need not do."""
    status: Document = claim["status"]
    devices = status.get("devices")
    if not devices:
        return
    deallocated = {device_id(result) for result in results_in(old)} - {
        device_id(result) for result in results_in(claim)
    }
    if not deallocated:
        return
    kept = [item for item in devices if device_id(item) not in deallocated]
    if kept:
        status["devices"] = kept
    else:
        del status["devices"]


def _state(claim: Document, now: datetime) -> str:
    deleted = bool((claim.get("metadata") or {}).get("deletionTimestamp"))
    status = claim.get("status") or {}
    states = ["deleted"] if deleted else []
    if status.get("allocation") is not None:
        states.append("allocated")
        if status.get("reservedFor"):
            states.append("reserved")
    elif not deleted:
        states.append("pending")
    return ",".join(states)


CLAIMS: Final = ResourceDefinition(
    group=GROUP,
    resource="resourceclaims",
    singular="resourceclaim",
    kind="ResourceClaim",
    namespaced=True,
    versions=VERSIONS,
    storage_version=STORAGE_VERSION,
    strategy=ClaimStrategy(),
    status_strategy=ClaimStatusStrategy(),
    columns=(
        NAME,
        Column("State", "string", "A summary of the current state (allocated, pending, reserved, etc.).", _state),
        AGE,
    ),
)


class TemplateStrategy(Strategy):
    """Strategy of claim templates; the spec is immutable."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Drop disabled fields."""
        context.warnings.extend(drop_disabled_fields(CLAIM_FIELDS, _claim(obj), None, context.gates))

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate the template and its use of admin access."""
        return validate_admin_requests(_claim(obj).get("spec") or {}, context) + validate_template(
            obj, compilers(context.gates)
        )

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Drop disabled fields."""
        drop_disabled_fields(CLAIM_FIELDS, _claim(obj), _claim(old), context.gates)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Reject changes of the spec."""
        return validate_template_update(obj, old)


def _claim(template: Document) -> Document:
    """Return the part of the template that has the form of a claim."""
    claim: Document = template.get("spec") or {}
    return claim


TEMPLATES: Final = ResourceDefinition(
    group=GROUP,
    resource="resourceclaimtemplates",
    singular="resourceclaimtemplate",
    kind="ResourceClaimTemplate",
    namespaced=True,
    versions=VERSIONS,
    storage_version=STORAGE_VERSION,
    strategy=TemplateStrategy(),
    columns=(NAME, AGE),
)
