"""Leases."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, forbidden, invalid
from dray.api.names import qualified_name
from dray.api.validation.meta_v1 import NOT_NEGATIVE

_SPEC: Final = Path("spec")


def validate_lease(lease: Document) -> FieldErrors:
    """A lease lasts a positive time."""
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
