"""The rules of cdi.k8s.io: ResourceClass, ResourceClaim and the inline claim template of a Pod.

Neither the existence of a claim's class nor the content of its parameters is validated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, duplicate, forbidden, invalid, not_supported, required, too_many
from dray.api.validation import resource_fields as fields
from dray.api.validation.meta_v1 import validate_conditions

ALLOCATION_MODES: Final = ("Delayed", "Immediate")
# KEP-3063 also calls the last one "Deallocate"; this is its name on the wire.
PHASES: Final = ("Allocated", "Pending", "Reallocate")
UNLIMITED_USERS: Final = -1

_SPEC: Final = Path("spec")
_STATUS: Final = Path("status")


def validate_resource_class(resource_class: Document) -> FieldErrors:
    """Return the validation errors of a class."""
    errors = fields.driver_name(resource_class.get("driverName"), Path("driverName"))
    return errors + _parameters(resource_class.get("parameters"), Path("parameters"))


def validate_claim(claim: Document) -> FieldErrors:
    """Return the validation errors of a new claim."""
    return _claim_spec(claim.get("spec") or {}, _SPEC)


def validate_claim_update(claim: Document, old: Document) -> FieldErrors:
    """Validate a changed claim; its spec is immutable."""
    spec = claim.get("spec")
    return [] if spec == old.get("spec") else [invalid(_SPEC, spec, fields.IMMUTABLE)]


def validate_claim_template(template: Document, path: Path) -> FieldErrors:
    """Validate the inline claim template of a Pod: labels, annotations and a spec."""
    errors = fields.labels_only(template.get("metadata"), path.child("metadata"))
    return errors + _claim_spec(template.get("spec") or {}, path.child("spec"))


def validate_claim_status(claim: Document, old: Document) -> FieldErrors:
    """Return the validation errors of a claim's status."""
    status, old_status = claim.get("status") or {}, old.get("status") or {}
    errors: FieldErrors = []
    phase = status.get("phase") or "Pending"
    if phase not in PHASES:
        errors.append(not_supported(_STATUS.child("phase"), phase, PHASES))
    if status.get("driverName"):
        errors += fields.driver_name(status["driverName"], _STATUS, "driverName")
    elif phase != "Pending":
        errors.append(required(_STATUS.child("driverName"), f"must be specified when `phase` is '{phase}'"))
    errors += _scheduling(status.get("scheduling") or {}, _STATUS.child("scheduling"))
    errors += _user_limit(status)
    errors += _conditions(status.get("conditions") or (), _STATUS.child("conditions"))
    return errors + _reserved_for(claim, status, old_status)


def _claim_spec(spec: Document, path: Path) -> FieldErrors:
    class_name = spec.get("resourceClassName")
    if class_name:
        errors = fields.subdomain(class_name, path, "resourceClassName")
    else:
        errors = [required(path.child("resourceClassName"))]
    mode = spec.get("allocationMode") or "Delayed"
    if mode not in ALLOCATION_MODES:
        errors.append(not_supported(path.child("allocationMode"), mode, ALLOCATION_MODES))
    return errors + _parameters(spec.get("parameters"), path.child("parameters"))


def _parameters(parameters: Any, path: Path) -> FieldErrors:
    """Validate that the parameters are a JSON object."""
    if parameters is None or isinstance(parameters, dict):
        return []
    return [invalid(path, "<value omitted>", "must be a valid JSON object")]


def _scheduling(scheduling: Document, path: Path) -> FieldErrors:
    scheduler, driver = scheduling.get("scheduler") or {}, scheduling.get("driver") or {}
    errors: FieldErrors = []
    if scheduler.get("selectedNode"):
        errors += fields.node_name(scheduler["selectedNode"], path, "scheduler", "selectedNode")
    errors += fields.each(scheduler.get("potentialNodes"), fields.node_name, path.child("scheduler", "potentialNodes"))
    errors += fields.each(driver.get("unsuitableNodes"), fields.node_name, path.child("driver", "unsuitableNodes"))
    if driver.get("availableOnNodes") is not None:
        errors += fields.node_selector(driver["availableOnNodes"], path.child("driver", "availableOnNodes"))
    return errors


def _user_limit(status: Document) -> FieldErrors:
    limit = status.get("userLimit", 1)
    if limit is None or limit > 0 or limit == UNLIMITED_USERS:
        return []
    return [invalid(_STATUS.child("userLimit"), limit, "must be greater than zero, or -1 for any number of users")]


def _conditions(conditions: Sequence[Document], path: Path) -> FieldErrors:
    if len(conditions) > fields.CONDITIONS_MAX:
        return [too_many(path, len(conditions), fields.CONDITIONS_MAX)]
    return validate_conditions(conditions, path)


def _reserved_for(claim: Document, status: Document, old_status: Document) -> FieldErrors:
    reserved_for = status.get("reservedFor")
    if not reserved_for:
        return []
    path = _STATUS.child("reservedFor")
    errors = fields.each(reserved_for, _user, path)
    seen: set[str] = set()
    for index, user in enumerate(reserved_for):
        if user.get("uid") in seen:
            errors.append(duplicate(path.index(index), user.get("uid")))
        seen.add(user.get("uid") or "")
    before = {user.get("uid") for user in old_status.get("reservedFor") or ()}
    return errors + _new_users(claim, status, [user for user in reserved_for if user.get("uid") not in before], path)


def _user(user: Document, path: Path) -> FieldErrors:
    return [required(path.child(name)) for name in ("apiVersion", "kind", "name", "uid") if not user.get(name)]


def _new_users(claim: Document, status: Document, added: list[Document], path: Path) -> FieldErrors:
    """Validate added consumers: they need an allocated claim that is not being deallocated and is below its limit."""
    if not added:
        return []
    if (status.get("phase") or "Pending") != "Allocated":
        return [forbidden(path, "may not be added to unless `phase` is 'Allocated'")]
    if (claim.get("metadata") or {}).get("deletionTimestamp"):
        return [forbidden(path, "new entries may not be added while `deletionTimestamp` is set")]
    limit = status.get("userLimit") or 1
    if limit != UNLIMITED_USERS and len(status["reservedFor"]) > limit:
        return [forbidden(path, f"may not have more than {limit} entries")]
    return []
