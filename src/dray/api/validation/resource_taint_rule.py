"""The rules of DeviceTaintRules."""

from __future__ import annotations

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, too_many
from dray.api.validation import resource_fields as fields
from dray.api.validation.meta_v1 import validate_conditions
from dray.api.validation.resource_claim import SPEC
from dray.api.validation.resource_claim_status import STATUS


def validate_taint_rule(rule: Document, old: Document | None = None) -> FieldErrors:
    """Everything wrong with a new or changed rule."""
    spec = rule.get("spec") or {}
    selector, path = spec.get("deviceSelector") or {}, SPEC.child("deviceSelector")
    errors: FieldErrors = []
    if selector.get("driver") is not None:
        errors += fields.driver_name(selector["driver"], path, "driver")
    if selector.get("pool") is not None:
        errors += fields.pool_name(selector["pool"], path, "pool")
    if selector.get("device") is not None:
        errors += fields.label(selector["device"], path, "device")
    old_taint = None if old is None else (old.get("spec") or {}).get("taint") or {}
    return errors + fields.taint(spec.get("taint") or {}, SPEC.child("taint"), old_taint)


def validate_taint_rule_status(rule: Document) -> FieldErrors:
    """Everything wrong with a rule's status."""
    conditions, path = (rule.get("status") or {}).get("conditions") or (), STATUS.child("conditions")
    errors = validate_conditions(conditions or (), path)
    if len(conditions) > fields.CONDITIONS_MAX:
        errors.append(too_many(path, len(conditions), fields.CONDITIONS_MAX))
    return errors
