"""ResourcePoolStatusRequests: a question about pools of devices, and its one answer."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, invalid, required, too_long, too_many
from dray.api.validation import resource_fields as fields
from dray.api.validation.meta_v1 import validate_conditions
from dray.api.validation.resource_claim import SPEC
from dray.api.validation.resource_claim_status import STATUS

LIMIT_MAX: Final = 1000
POOLS_MAX: Final = 1000
CONDITIONS_MAX: Final = 10
SUMMARY_MAX: Final = 32
VALIDATION_ERROR_LENGTH_MAX: Final = 256

_COUNTS: Final = (
    "totalDevices",
    "allocatedDevices",
    "availableDevices",
    "unavailableDevices",
    "resourceSliceCount",
    "generation",
)


def validate_pool_status_request(request: Document) -> FieldErrors:
    """Return the validation errors of a new request."""
    spec = request.get("spec") or {}
    errors = fields.driver_name(spec.get("driver"), SPEC, "driver")
    if spec.get("poolName") is not None:
        errors += fields.pool_name(spec["poolName"], SPEC, "poolName")
    limit = spec.get("limit")
    if limit is not None and limit < 1:
        errors.append(invalid(SPEC.child("limit"), limit, "must be greater than or equal to 1"))
    elif limit is not None and limit > LIMIT_MAX:
        errors.append(invalid(SPEC.child("limit"), limit, f"must be less than or equal to {LIMIT_MAX}"))
    attribute = spec.get("defaultPartitionTypeAttribute")
    if attribute is not None:
        errors += fields.fully_qualified_id(attribute, SPEC.child("defaultPartitionTypeAttribute"))
    return errors


def validate_pool_status_request_update(request: Document, old: Document) -> FieldErrors:
    """Validate a changed request; its spec is immutable."""
    return [] if request.get("spec") == old.get("spec") else [invalid(SPEC, None, fields.IMMUTABLE)]


def validate_pool_status_answer(request: Document, old: Document) -> FieldErrors:
    """Validate a written status; a request has one answer, which never changes."""
    status, before = request.get("status"), old.get("status")
    if before is not None:
        return [] if status == before else [invalid(STATUS, None, fields.IMMUTABLE)]
    if status is None:
        return []
    errors = _pool_count(status.get("poolCount"), STATUS.child("poolCount"))
    errors += fields.bounded(status.get("pools"), POOLS_MAX, _pool, STATUS.child("pools"))
    conditions, path = status.get("conditions") or (), STATUS.child("conditions")
    if len(conditions) > CONDITIONS_MAX:
        errors.append(too_many(path, len(conditions), CONDITIONS_MAX))
    return errors + validate_conditions(conditions, path)


def _pool_count(value: int | None, path: Path) -> FieldErrors:
    return [required(path)] if value is None else _not_negative(value, path)


def _not_negative(value: int | None, path: Path) -> FieldErrors:
    if value is None or value >= 0:
        return []
    return [invalid(path, value, "must be greater than or equal to 0")]


def _pool(pool: Document, path: Path) -> FieldErrors:
    errors = fields.driver_name(pool.get("driver"), path, "driver")
    errors += fields.pool_name(pool.get("poolName"), path, "poolName")
    if pool.get("nodeName") is not None:
        errors += fields.node_name(pool["nodeName"], path, "nodeName")
    for name in _COUNTS:
        errors += _not_negative(pool.get(name), path.child(name))
    text = pool.get("validationError") or ""
    if fields.byte_length(text) > VALIDATION_ERROR_LENGTH_MAX:
        errors.append(too_long(path.child("validationError"), VALIDATION_ERROR_LENGTH_MAX))
    errors += fields.bounded(pool.get("partitionSummary"), SUMMARY_MAX, _partition, path.child("partitionSummary"))
    shares = pool.get("shareableSummary")
    return errors if shares is None else errors + _shares(shares, path.child("shareableSummary"))


def _partition(item: Document, path: Path) -> FieldErrors:
    errors = fields.fully_qualified_id(item.get("attribute") or "", path.child("attribute"))
    for name in ("total", "allocatable"):
        errors += _not_negative(item.get(name), path.child(name))
    return errors


def _shares(summary: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    for name in ("fullyAvailableDevices", "partiallyAvailableDevices"):
        errors += _not_negative(summary.get(name), path.child(name))
    return errors + fields.bounded(summary.get("capacity"), SUMMARY_MAX, _capacity, path.child("capacity"))


def _capacity(item: Document, path: Path) -> FieldErrors:
    return fields.qualified_id(item.get("name") or "", path.child("name"))
