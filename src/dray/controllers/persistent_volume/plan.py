"""What to write for one claim or volume: references, annotations, phases and events. Pure.

Volumes of the local provisioner are created for claims whose first consumer has a node. Those that were not provisioned
stay after their release until an administrator deletes them, or takes their claims out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dray.api.document import Document
from dray.api.persistent_volumes import (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    LOCAL_PROVISIONER,
    annotation_of,
    claimed,
    class_of,
    is_claimed_by,
    is_delayed,
    phase_of,
    provisioner_of,
    selected_node,
    smallest_match,
    with_annotations,
)
from dray.controllers.persistent_volume.provisioning import (
    FAILED,
    PROVISIONED,
    local_volume,
    provisioning_problem,
    without_node,
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
EXTERNAL: Final = "ExternalProvisioning"
EXTERNAL_TEXT: Final = (
    "Waiting for a volume to be created either by the external provisioner '{}' or manually by the system "
    "administrator. If volume creation is delayed, please verify that the provisioner is running and "
    "correctly registered."
)
IMMEDIATE: Final = (
    f"{LOCAL_PROVISIONER} creates volumes on the node of their first consumer: "
    "the storage class must have the binding mode WaitForFirstConsumer"
)
CONSUMER: Final = "waiting for first consumer to be created before binding"


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """Writes in this order, the last is the claim's status; and an event (reason, message)."""

    new_volume: Document | None = None
    volume: Document | None = None
    claim: Document | None = None
    status: Document | None = None
    event: tuple[str, str] | None = None


def plan_claim(
    claim: Document, volumes: Sequence[Document], storage_class: Document | None, node: Document | None = None
) -> ClaimPlan:
    """Return what to write for a claim; `storage_class` and `node` (the selected one) may not exist."""
    name = claim["spec"].get("volumeName") or ""
    volume = next((item for item in volumes if item["metadata"]["name"] == name), None) if name else None
    if annotation_of(claim, BIND_COMPLETED):
        return _plan_bound(claim, name, volume)
    if name:
        if volume is None or (volume["spec"].get("claimRef") and not is_claimed_by(volume, claim)):
            return ClaimPlan(status=_with_phase(claim, PENDING))
        return _bind(volume, claim)
    named = next((item for item in volumes if is_claimed_by(item, claim)), None)
    if named is None and is_delayed(storage_class) and not selected_node(claim):
        return ClaimPlan(status=_with_phase(claim, PENDING), event=(WAITING, CONSUMER))
    found = named or smallest_match(claim, volumes)
    return _bind(found, claim) if found is not None else _plan_without_volume(claim, storage_class, node)


def _plan_without_volume(claim: Document, storage_class: Document | None, node: Document | None) -> ClaimPlan:
    if storage_class is not None and provisioner_of(storage_class):
        return _provision(claim, storage_class, node)
    text = NONE_AVAILABLE if class_of(claim) else NO_CLASS
    return ClaimPlan(status=_with_phase(claim, PENDING), event=(FAILED_BINDING, text))


def _provision(claim: Document, storage_class: Document, node: Document | None) -> ClaimPlan:
    """Return the writes of the local provisioner, or the event that says that another one has to act."""
    provisioner, name = provisioner_of(storage_class), selected_node(claim)
    status = _with_phase(claim, PENDING)
    if provisioner != LOCAL_PROVISIONER:
        return ClaimPlan(status=status, event=(EXTERNAL, EXTERNAL_TEXT.format(provisioner)))
    if not name:
        return ClaimPlan(status=status, event=(FAILED, IMMEDIATE))
    problem = provisioning_problem(claim, node, name)
    if node is None or problem:
        text = f'failed to provision volume with StorageClass "{class_of(claim)}": {problem}'
        return ClaimPlan(claim=without_node(claim), event=(FAILED, text))
    volume = local_volume(claim, storage_class, node)
    event = (PROVISIONED, f"Successfully provisioned volume {volume['metadata']['name']}")
    return ClaimPlan(new_volume=volume, status=status, event=event)


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
