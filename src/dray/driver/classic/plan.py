"""What a driver has to do about a claim, and which version of it says that it is done. Pure."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from dray.api import classic_claims as classic
from dray.api.classic_claims import State
from dray.api.document import UID
from dray.api.types.cdi_v1alpha1 import (
    DriverSchedulingStatus,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceClass,
    SchedulingStatus,
)
from dray.client.objects import key_of
from dray.driver.classic.interface import Allocation, Claim

# The API server takes no longer names after the slash, but names of nodes may be longer.
FINALIZER_NAME_MAX: Final = 63


class Task(enum.StrEnum):
    """The driver's part at a point of a claim's life; the values are labels of metrics."""

    NOTHING = "nothing"
    # Say which of the potential nodes will not do.
    CHECK = "check"
    ALLOCATE = "allocate"
    # Select a node for a claim that no Pod waits for.
    PLACE = "place"
    # Free the resource and make the claim pending.
    FREE = "free"
    # Nobody wants the claim allocated, but an attempt was begun.
    CLEAN = "clean"
    # Free the resource and let the claim go.
    RELEASE = "release"


# State -> (task, task when the claim has the driver's finalizer).
_TASKS: Final[Mapping[State, tuple[Task, Task]]] = {
    State.PENDING: (Task.CHECK, Task.CLEAN),
    State.ALLOCATING: (Task.ALLOCATE, Task.ALLOCATE),
    State.ALLOCATED: (Task.NOTHING, Task.NOTHING),
    State.IN_USE: (Task.NOTHING, Task.NOTHING),
    State.REALLOCATE: (Task.FREE, Task.FREE),
    State.DELETING: (Task.NOTHING, Task.RELEASE),
    State.GONE: (Task.NOTHING, Task.NOTHING),
}


def finalizer_of(driver: str, node: str = "") -> str:
    """What keeps a claim while the driver holds something for it; where nodes allocate, each has its own."""
    if len(node) > FINALIZER_NAME_MAX:
        node = f"node-{hashlib.sha256(node.encode()).hexdigest()[:16]}"
    return f"{driver}/{node or 'deletion-protection'}"


def has_finalizer(claim: ResourceClaim, driver: str, node: str = "") -> bool:
    """Whether the driver holds something for the claim, or may."""
    return finalizer_of(driver, node) in claim.metadata.finalizers


def is_ours(claim: ResourceClaim, driver: str, claim_class: ResourceClass | None, node: str = "") -> bool:
    """Whether the claim is the driver's: it has begun with it, or the class says so and nobody else has begun."""
    if has_finalizer(claim, driver, node):
        return True
    begun_by = classic.status_of(claim).driver_name
    if begun_by:
        return begun_by == driver
    return claim_class is not None and claim_class.driver_name == driver


def task_for(claim: ResourceClaim | None, driver: str, claim_class: ResourceClass | None, node: str = "") -> Task:
    """What is to be done; nothing new is begun without the class."""
    if claim is None or not is_ours(claim, driver, claim_class, node):
        return Task.NOTHING
    task = _TASKS[classic.state_of(claim)][has_finalizer(claim, driver, node)]
    if task in (Task.RELEASE, Task.FREE) and classic.status_of(claim).reserved_for:
        return Task.NOTHING
    if task is Task.CHECK and not classic.scheduler_status(claim).potential_nodes:
        return Task.NOTHING
    if task in (Task.CHECK, Task.ALLOCATE) and claim_class is None:
        # What an attempt may have left behind can go.
        return Task.CLEAN if has_finalizer(claim, driver, node) else Task.NOTHING
    return task


def task_on_node(claim: ResourceClaim | None, driver: str, claim_class: ResourceClass | None, node: str) -> Task:
    """What is to be done by the part of the driver that allocates on one node."""
    task = task_for(claim, driver, claim_class, node)
    if claim is None or task is Task.CHECK:
        return Task.NOTHING
    held = has_finalizer(claim, driver, node)
    if task is Task.ALLOCATE and classic.selected_node(claim) != node:
        # What an attempt here may have left behind can go.
        return Task.CLEAN if held else Task.NOTHING
    return Task.NOTHING if task is Task.FREE and not held else task


def task_beside_nodes(claim: ResourceClaim | None, driver: str, claim_class: ResourceClass | None) -> Task:
    """What is to be done by the part of the driver that leaves allocation to nodes."""
    task = task_for(claim, driver, claim_class)
    if claim is not None and task is Task.ALLOCATE and not classic.selected_node(claim):
        return Task.PLACE
    return task if task is Task.CHECK else Task.NOTHING


def changes_room(old: ResourceClaim | None, new: ResourceClaim | None, driver: str) -> bool:
    """Whether the driver has something less or something more to give since the claim changed."""
    return _holds(old, driver) is not _holds(new, driver)


def _holds(claim: ResourceClaim | None, driver: str) -> bool:
    if claim is None:
        return False
    status = classic.status_of(claim)
    # Attempts do not count: one that is refused must not be a reason to try it again.
    return status.driver_name == driver and status.phase in (classic.ALLOCATED_PHASE, classic.REALLOCATE_PHASE)


def to_claim(claim: ResourceClaim, claim_class: ResourceClass | None) -> Claim:
    """The claim for the driver's code."""
    return Claim(
        key_of(claim),
        UID(claim.metadata.uid or ""),
        claim.spec.resource_class_name,
        claim.spec.parameters or {},
        (claim_class.parameters if claim_class is not None else None) or {},
        classic.status_of(claim).attributes,
    )


def siblings(claim: ResourceClaim, others: Iterable[ResourceClaim]) -> list[ResourceClaim]:
    """The claim and those made for the same Pod: they are wanted on one node together."""
    owners = {owner.uid for owner in claim.metadata.owner_references if owner.controller}
    found = {claim.metadata.uid: claim}
    for other in others:
        if any(owner.controller and owner.uid in owners for owner in other.metadata.owner_references):
            found.setdefault(other.metadata.uid, other)
    return sorted(found.values(), key=lambda item: item.metadata.name or "")


# --- Versions to write. ---


def protected(claim: ResourceClaim, driver: str, node: str = "") -> ResourceClaim:
    """The claim with the driver's finalizer."""
    return _with_finalizers(claim, (*claim.metadata.finalizers, finalizer_of(driver, node)))


def unprotected(claim: ResourceClaim, driver: str, node: str = "") -> ResourceClaim:
    """The claim without it."""
    ours = finalizer_of(driver, node)
    return _with_finalizers(claim, tuple(name for name in claim.metadata.finalizers if name != ours))


def _with_finalizers(claim: ResourceClaim, finalizers: tuple[str, ...]) -> ResourceClaim:
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, finalizers=finalizers))


def with_driver(claim: ResourceClaim, driver: str | None) -> ResourceClaim:
    """The claim with a driver at work, or without."""
    return classic.with_status(claim, msgspec.structs.replace(classic.status_of(claim), driver_name=driver))


def answered(claim: ResourceClaim, unsuitable: Iterable[str]) -> ResourceClaim | None:
    """The claim with the driver's word on nodes; None when it has it already."""
    nodes = tuple(sorted(set(unsuitable)))
    if classic.has_driver_status(claim) and classic.driver_status(claim).unsuitable_nodes == nodes:
        return None
    return _with_unsuitable(claim, nodes)


def refused(claim: ResourceClaim, node: str, unsuitable: Iterable[str]) -> ResourceClaim:
    """The claim without the selected node, on which there was no room, and without a driver at work."""
    after = _with_unsuitable(with_driver(claim, None), tuple(sorted({node, *unsuitable})))
    scheduling = classic.status_of(after).scheduling
    assert scheduling is not None
    scheduler = msgspec.structs.replace(classic.scheduler_status(claim), selected_node=None)
    scheduling = msgspec.structs.replace(scheduling, scheduler=scheduler)
    return classic.with_status(after, msgspec.structs.replace(classic.status_of(after), scheduling=scheduling))


def placed(claim: ResourceClaim, node: str) -> ResourceClaim:
    """The claim with a node selected."""
    status = classic.status_of(claim)
    scheduler = msgspec.structs.replace(classic.scheduler_status(claim), selected_node=node)
    scheduling = msgspec.structs.replace(status.scheduling or SchedulingStatus(), scheduler=scheduler)
    return classic.with_status(claim, msgspec.structs.replace(status, scheduling=scheduling))


def asked_anew(claim: ResourceClaim) -> ResourceClaim:
    """The claim without a word on nodes."""
    return _with_unsuitable(claim, ())


def _with_unsuitable(claim: ResourceClaim, nodes: tuple[str, ...]) -> ResourceClaim:
    status = classic.status_of(claim)
    driver = msgspec.structs.replace(classic.driver_status(claim), unsuitable_nodes=nodes)
    scheduling = msgspec.structs.replace(status.scheduling or SchedulingStatus(), driver=driver)
    return classic.with_status(claim, msgspec.structs.replace(status, scheduling=scheduling))


def allocated(claim: ResourceClaim, driver: str, allocation: Allocation) -> ResourceClaim:
    """The allocated claim; of what was said while it was placed, only where it can be used stays."""
    selector = allocation.selector
    scheduling = None
    if selector is not None:
        scheduling = SchedulingStatus(driver=DriverSchedulingStatus(available_on_nodes=selector))
    status = ResourceClaimStatus(
        phase=classic.ALLOCATED_PHASE,
        driver_name=driver,
        scheduling=scheduling,
        attributes=dict(allocation.attributes),
        user_limit=allocation.limit,
    )
    return classic.with_status(claim, status)


def is_written(claim: ResourceClaim, wanted: ResourceClaim) -> bool:
    """Whether the claim says what was to be written, so that only the answer was lost."""
    now, then = classic.status_of(claim), classic.status_of(wanted)
    return now.phase == then.phase and now.attributes == then.attributes and now.driver_name == then.driver_name


def is_same_wish(claim: ResourceClaim, before: ResourceClaim) -> bool:
    """Whether the claim is still to be allocated as it was when the attempt began."""
    return (
        claim.metadata.uid == before.metadata.uid
        and classic.state_of(claim) is State.ALLOCATING
        and classic.selected_node(claim) == classic.selected_node(before)
        and classic.status_of(claim).driver_name == classic.status_of(before).driver_name
    )


def freed(claim: ResourceClaim) -> ResourceClaim:
    """The claim as if it had never been allocated."""
    return classic.with_status(claim, ResourceClaimStatus(phase=classic.PENDING_PHASE))
