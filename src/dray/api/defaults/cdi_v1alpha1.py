"""Defaults of cdi.k8s.io/v1alpha1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from dray.api.document import Document, GroupVersionKind

GROUP: Final = "cdi.k8s.io"


def default_claim_spec(spec: Document) -> None:
    """A claim waits for a Pod unless it says otherwise; also used for the inline template of a Pod."""
    if not spec.get("allocationMode"):
        spec["allocationMode"] = "Delayed"


def default_claim_status(status: Document) -> None:
    """A new claim is pending, and one user may have it."""
    if not status.get("phase"):
        status["phase"] = "Pending"
    if not status.get("userLimit"):
        status["userLimit"] = 1


def _claim(claim: Document, now: datetime) -> None:
    default_claim_spec(claim.setdefault("spec", {}))
    default_claim_status(claim.setdefault("status", {}))


DEFAULTERS: Final[Mapping[GroupVersionKind, Callable[[Document, datetime], None]]] = {
    GroupVersionKind(GROUP, "v1alpha1", "ResourceClaim"): _claim,
}
