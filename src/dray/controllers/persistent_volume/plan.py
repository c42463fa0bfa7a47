"""What to write for one claim or volume: references, annotations, phases and events. Pure.

Volumes are not provisioned, deleted or recycled here: a released one stays until an administrator deletes it, or takes
its claim out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dray.api.document import Document
from dray.api.persistent_volumes import (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    annotation_of,
    claimed,
    class_of,
    is_claimed_by,
    is_delayed,
    phase_of,
    smallest_match,
    with_annotations,
)

AVAILABLE: Final = "Available"
BOUND: Final = "Bound"
PENDING: Final = "Pending"
RELEASED: Final = "Released"
LOST: Final = "Lost"
FAILED_BINDING: Final = "FailedBinding"
WAITING: Final = "WaitForFirstConsumer"
CLAIM_LOST: Final = "ClaimLost"
NO_REFERENCE: Final = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"
NO_VOLUME: Final = "Bound claim has lost its PersistentVolume. Data on the volume is lost!"
MISBOUND: Final = "Two claims are bound to the same volume, this one is bound incorrectly"
NO_CLASS: Final = "no persistent volumes available for this claim and no storage class is set"
NONE_AVAILABLE: Final = "no persistent volumes available for this claim; volumes are not provisioned here"
CONSUMER: Final = "waiting for first consumer to be created before binding"


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """Writes in this order: the volume, the claim, the claim's status; and an event (reason, message)."""

    volume: Document | None = None
    claim: Document | None = None
    status: Document | None = None
    event: tuple[str, str] | None = None


def plan_claim(claim: Document, volumes: Sequence[Document], storage_class: Document | None) -> ClaimPlan:
    """Return what to write for a claim; `storage_class` is its class, if that exists."""
    name = claim["spec"].get("volumeName") or ""
    volume = next((item for item in volumes if item["metadata"]["name"] == name), None) if name else None
    if annotation_of(claim, BIND_COMPLETED):
        return _plan_bound(claim, name, volume)
    if name:
        if volume is None or (volume["spec"].get("claimRef") and not is_claimed_by(volume, claim)):
            return ClaimPlan(status=_with_phase(claim, PENDING))
        return _bind(volume, claim)
    named = next((item for item in volumes if is_claimed_by(item, claim)), None)
    if named is None and is_delayed(storage_class):
        return ClaimPlan(status=_with_phase(claim, PENDING), event=(WAITING, CONSUMER))
    found = named or smallest_match(claim, volumes)
    if found is not None:
        return _bind(found, claim)
    text = NONE_AVAILABLE if class_of(claim) else NO_CLASS
    return ClaimPlan(status=_with_phase(claim, PENDING), event=(FAILED_BINDING, text))


def _plan_bound(claim: Document, name: str, volume: Document | None) -> ClaimPlan:
    if not name:
        return _lost(claim, CLAIM_LOST, NO_REFERENCE)
    if volume is None:
        return _lost(claim, CLAIM_LOST, NO_VOLUME)
    if volume["spec"].get("claimRef") and not is_claimed_by(volume, claim):
        return _lost(claim, "ClaimMisbound", MISBOUND)
    return _bind(volume, claim)


def _lost(claim: Document, reason: str, message: str) -> ClaimPlan:
    status = _with_phase(claim, LOST)
    return ClaimPlan(status=status, event=None if status is None else (reason, message))


def _bind(volume: Document, claim: Document) -> ClaimPlan:
    """Return the writes that are still missing for the claim to be bound to the volume."""
    wanted_volume = claimed(volume, claim)
    wanted_claim, name = claim, volume["metadata"]["name"]
    if claim["spec"].get("volumeName") != name:
        wanted_claim = {**claim, "spec": {**claim["spec"], "volumeName": name}}
        wanted_claim = with_annotations(wanted_claim, BOUND_BY_CONTROLLER)
    if not annotation_of(claim, BIND_COMPLETED):
        wanted_claim = with_annotations(wanted_claim, BIND_COMPLETED)
    status = {
        **(claim.get("status") or {}),
        "phase": BOUND,
        "accessModes": list(volume["spec"].get("accessModes") or ()),
        "capacity": dict(volume["spec"].get("capacity") or {}),
    }
    return ClaimPlan(
        volume=None if wanted_volume is volume else wanted_volume,
        claim=None if wanted_claim is claim else wanted_claim,
        status=None if status == claim.get("status") else {**wanted_claim, "status": status},
    )


def _with_phase(claim: Document, phase: str) -> Document | None:
    if phase_of(claim) == phase:
        return None
    return {**claim, "status": {**(claim.get("status") or {}), "phase": phase}}


def plan_volume(volume: Document, claim: Document | None) -> Document | None:
    """Return the volume with its new phase; None if it has that. `claim` is the one that it names, if it exists."""
    phase = _phase_for(volume, claim)
    if phase_of(volume) == phase:
        return None
    return {**volume, "status": {**(volume.get("status") or {}), "phase": phase}}


def _phase_for(volume: Document, claim: Document | None) -> str:
    reference = volume["spec"].get("claimRef")
    if not reference or not reference.get("uid"):
        # One that a user reserved for a claim is available to that one.
        return AVAILABLE
    if claim is None or claim["metadata"].get("uid") != reference["uid"]:
        return RELEASED
    if claim["spec"].get("volumeName") == volume["metadata"]["name"]:
        return BOUND
    return phase_of(volume) or AVAILABLE
