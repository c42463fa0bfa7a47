"""PodDisruptionBudgets."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, invalid, not_supported
from dray.api.validation.meta_v1 import validate_conditions, validate_label_selector
from dray.api.validation.workload import (
    SPEC,
    not_negative,
    validate_at_most_whole,
    validate_int_or_percent,
)

_STATUS: Final = Path("status")
_EVICTION_POLICIES: Final = ("AlwaysAllow", "IfHealthyBudget")
_COUNTS: Final = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")


def validate_pod_disruption_budget(budget: Document) -> FieldErrors:
    """Validate a budget: at most one of minAvailable and maxUnavailable, and the selector."""
    return _validate_spec(budget.get("spec") or {}, stored=None)


def validate_pod_disruption_budget_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed budget; label values of the selector that are stored may stay."""
    return _validate_spec(new.get("spec") or {}, stored=(old.get("spec") or {}).get("selector"))


def _validate_spec(spec: Document, *, stored: Document | None) -> FieldErrors:
    errors: FieldErrors = []
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        errors.append(invalid(SPEC, spec, "minAvailable and maxUnavailable cannot be both set"))
    for field in ("minAvailable", "maxUnavailable"):
        value = spec.get(field)
        if value is not None:
            errors += validate_int_or_percent(value, SPEC.child(field))
            errors += validate_at_most_whole(value, SPEC.child(field))
    selector = spec.get("selector")
    if selector != stored or stored is None:
        errors += validate_label_selector(selector, SPEC.child("selector"))
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy is not None and policy not in _EVICTION_POLICIES:
        errors.append(not_supported(SPEC.child("unhealthyPodEvictionPolicy"), policy, _EVICTION_POLICIES))
    return errors


def validate_pod_disruption_budget_status(budget: Document, _old: Document) -> FieldErrors:
    """Validate the conditions and counts of a status."""
    status = budget.get("status") or {}
    errors = validate_conditions(status.get("conditions") or (), _STATUS.child("conditions"))
    return errors + not_negative(status, _STATUS, *_COUNTS)
