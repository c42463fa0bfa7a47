"""Resource quotas: resource names and scopes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, invalid, required
from dray.api.validation.core_v1_namespace import validate_kube_finalizers
from dray.api.validation.core_v1_resources import (
    is_standard_quota,
    parse_quantity,
    validate_amount,
    validate_quota_resource_name,
)
from dray.api.validation.meta_v1 import validate_immutable

SPEC: Final = Path("spec")

_COUNTS: Final = frozenset({"pods"})
_COMPUTE: Final = _COUNTS | {
    "cpu",
    "memory",
    "limits.cpu",
    "limits.memory",
    "requests.cpu",
    "requests.memory",
}
# The resources that each scope can be applied to.
_SCOPES: Final = {
    "Terminating": _COMPUTE,
    "NotTerminating": _COMPUTE,
    "BestEffort": _COUNTS,
    "NotBestEffort": _COMPUTE,
    "PriorityClass": _COMPUTE,
    "CrossNamespacePodAffinity": _COMPUTE,
    "VolumeAttributesClass": frozenset({"persistentvolumeclaims", "requests.storage"}),
}
_CONFLICTS: Final = (frozenset({"BestEffort", "NotBestEffort"}), frozenset({"Terminating", "NotTerminating"}))
_EXISTS_ONLY: Final = frozenset(
    {"Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "CrossNamespacePodAffinity"}
)


def validate_quota(quota: Document) -> FieldErrors:
    """Validate a quota's limits and scopes."""
    spec = quota.get("spec") or {}
    hard = spec.get("hard") or {}
    errors = validate_kube_finalizers(quota) + _validate_list(hard, SPEC.child("hard"))
    if scopes := spec.get("scopes"):
        errors += _validate_scopes(scopes, hard, SPEC.child("scopes"))
    if selector := spec.get("scopeSelector"):
        errors += _validate_selector(selector, hard, SPEC.child("scopeSelector", "matchExpressions"))
    return errors


def validate_quota_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed quota; its scopes are immutable."""
    errors = validate_quota(new)
    scopes, previous = (sorted((item.get("spec") or {}).get("scopes") or ()) for item in (new, old))
    return errors + validate_immutable(scopes, previous, SPEC.child("scopes"))


def validate_quota_status(quota: Document) -> FieldErrors:
    """Validate a quota's status."""
    status = quota.get("status") or {}
    errors: FieldErrors = []
    for field in ("hard", "used"):
        errors += _validate_list(status.get(field) or {}, Path("status").child(field))
    return errors


def _validate_list(resources: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    for name, value in resources.items():
        errors += validate_quota_resource_name(name, path.key(name))
        quantity = parse_quantity(value, path.key(name), errors)
        if quantity is not None:
            errors += validate_amount(name, quantity, path.key(name))
    return errors


def _validate_scopes(scopes: Sequence[str], hard: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    for scope in scopes:
        if scope not in _SCOPES:
            errors.append(invalid(path, scopes, "unsupported scope"))
            continue
        errors += _validate_scope_resources(scope, hard, path, scopes)
    given = set(scopes)
    if any(pair <= given for pair in _CONFLICTS):
        errors.append(invalid(path, scopes, "conflicting scopes"))
    return errors


def _validate_scope_resources(scope: str, hard: Document, path: Path, value: object) -> FieldErrors:
    return [
        invalid(path, value, "unsupported scope applied to resource")
        for name in hard
        if is_standard_quota(name) and name not in _SCOPES[scope]
    ]


def _validate_selector(selector: Document, hard: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    for i, expression in enumerate(selector.get("matchExpressions") or ()):
        errors += _validate_expression(expression, hard, path.index(i))
    return errors


def _validate_expression(expression: Document, hard: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    scope, operator = expression.get("scopeName") or "", expression.get("operator") or ""
    values = expression.get("values") or ()
    if scope not in _SCOPES:
        errors.append(invalid(path.child("scopeName"), scope, "unsupported scope"))
    else:
        errors += _validate_scope_resources(scope, hard, path, expression)
    if scope in _EXISTS_ONLY and operator != "Exists":
        text = (
            "must be 'Exist' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, "
            "ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or "
            "ResourceQuotaScopeCrossNamespacePodAffinity"
        )
        errors.append(invalid(path.child("operator"), operator, text))
    if operator in ("In", "NotIn"):
        if not values:
            text = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
            errors.append(required(path.child("values"), text))
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            text = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
            errors.append(invalid(path.child("values"), list(values), text))
    else:
        errors.append(invalid(path.child("operator"), operator, "not a valid selector operator"))
    return errors
