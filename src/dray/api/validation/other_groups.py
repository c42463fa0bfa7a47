"""Leases and PriorityClasses."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, forbidden, invalid, not_supported, required
from dray.api.names import qualified_name
from dray.api.validation.meta_v1 import METADATA, NOT_NEGATIVE, validate_immutable

_SPEC: Final = Path("spec")


def validate_lease(lease: Document) -> FieldErrors:
    """Validate a lease."""
    spec = lease.get("spec") or {}
    errors: FieldErrors = []
    seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if seconds is not None and seconds <= 0:
        errors.append(invalid(_SPEC.child("leaseDurationSeconds"), seconds, "must be greater than 0"))
    if transitions is not None and transitions < 0:
        errors.append(invalid(_SPEC.child("leaseTransitions"), transitions, NOT_NEGATIVE))
    strategy = spec.get("strategy")
    if strategy is not None:
        errors += [invalid(_SPEC.child("strategy"), strategy, problem) for problem in qualified_name(strategy)]
    elif spec.get("preferredHolder"):
        errors.append(forbidden(_SPEC.child("preferredHolder"), "may only be specified when `strategy` is defined"))
    return errors


HIGHEST_USER_PRIORITY: Final = 1_000_000_000
_SYSTEM_PREFIX: Final = "system-"
SYSTEM_CLASSES: Final = {
    "system-cluster-critical": 2 * HIGHEST_USER_PRIORITY,
    "system-node-critical": 2 * HIGHEST_USER_PRIORITY + 1000,
}
_POLICIES: Final = ("PreemptLowerPriority", "Never")


def validate_priority_class(priority_class: Document) -> FieldErrors:
    """Validate a priority class; values above a billion and names with `system-` are reserved."""
    name = (priority_class.get("metadata") or {}).get("name") or ""
    value = priority_class.get("value") or 0
    errors: FieldErrors = []
    if name.startswith(_SYSTEM_PREFIX):
        problem = _system_problem(name, value, default=bool(priority_class.get("globalDefault")))
        if problem:
            text = f"priority class names with '{_SYSTEM_PREFIX}' prefix are reserved for system use only. error: "
            errors.append(forbidden(METADATA.child("name"), text + problem))
    elif value > HIGHEST_USER_PRIORITY:
        text = f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
        errors.append(forbidden(Path("value"), text))
    return errors + _validate_preemption(priority_class.get("preemptionPolicy"))


def _system_problem(name: str, value: int, *, default: bool) -> str:
    if name not in SYSTEM_CLASSES:
        return f"{name} is not a known system priority class"
    if value != SYSTEM_CLASSES[name]:
        return f"value of {name} PriorityClass must be {SYSTEM_CLASSES[name]}"
    return f"globalDefault of {name} PriorityClass must be false" if default else ""


def _validate_preemption(policy: str | None) -> FieldErrors:
    path = Path("preemptionPolicy")
    if policy is None or policy in _POLICIES:
        return []
    return [not_supported(path, policy, _POLICIES) if policy else required(path)]


def validate_priority_class_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed priority class; value and preemption policy are immutable."""
    errors: FieldErrors = []
    if (new.get("value") or 0) != (old.get("value") or 0):
        errors.append(forbidden(Path("value"), "may not be changed in an update."))
    path = Path("preemptionPolicy")
    return errors + validate_immutable(new.get("preemptionPolicy"), old.get("preemptionPolicy"), path)
