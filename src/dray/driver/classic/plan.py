"""The task of a driver for a claim, and the claims it writes. Pure."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
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
from dray.api.types.core_v1 import NodeSelector
from dray.api.types.meta_v1 import Condition
from dray.client.objects import key_of
from dray.driver.classic.interface import Allocation, Claim

# The length of an Event's message; a condition may have more.
MESSAGE_LENGTH_MAX: Final = 1024
# The API server limits the name after the slash; node names may be longer.
FINALIZER_NAME_MAX: Final = 63


class Task(enum.StrEnum):
    """What the driver has to do in a state of a claim; the values are metric labels."""

    NOTHING = "nothing"
    # Report which of the potential nodes are unsuitable.
    CHECK = "check"
    ALLOCATE = "allocate"
    # Select a node for an immediate claim.
    PLACE = "place"
    # Deallocate and make the claim pending.
    FREE = "free"
    # Undo an attempt to allocate a claim that is pending again.
    CLEAN = "clean"
    # Deallocate and remove the finalizer.
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
    """Return the finalizer of claims with allocated resources; with node-local allocation each node has its own."""
    if len(node) > FINALIZER_NAME_MAX:
        node = f"node-{hashlib.sha256(node.encode()).hexdigest()[:16]}"
    return f"{driver}/{node or 'deletion-protection'}"


def has_finalizer(claim: ResourceClaim, driver: str, node: str = "") -> bool:
    """Return whether the driver has, or may have, allocated resources for the claim."""
    return finalizer_of(driver, node) in claim.metadata.finalizers


def is_managed(claim: ResourceClaim, driver: str, claim_class: ResourceClass | None, node: str = "") -> bool:
    """Return whether the driver handles the claim: it has begun to, or its class says so and no other driver has."""
    if has_finalizer(claim, driver, node):
        return True
    begun_by = classic.status_of(claim).driver_name
    if begun_by:
        return begun_by == driver
    return claim_class is not None and claim_class.driver_name == driver


def task_for(
    claim: ResourceClaim | None,
    driver: str,
    claim_class: ResourceClass | None,
    node: str = "",
    *,
    announces: bool = False,
) -> Task:
    """Return the task for the claim; without the class nothing new is begun.

    A driver that announces available nodes is asked for them before the scheduler asks for unsuitable ones.
    """
    if claim is None or not is_managed(claim, driver, claim_class, node):
        return Task.NOTHING
    task = _TASKS[classic.state_of(claim)][has_finalizer(claim, driver, node)]
    if task in (Task.RELEASE, Task.FREE) and classic.status_of(claim).reserved_for:
        return Task.NOTHING
    if task is Task.CHECK and not _is_asked(claim, announces=announces):
        return Task.NOTHING
    if task in (Task.CHECK, Task.ALLOCATE) and claim_class is None:
        # Undo an earlier attempt.
        return Task.CLEAN if has_finalizer(claim, driver, node) else Task.NOTHING
    return task


def _is_asked(claim: ResourceClaim, *, announces: bool) -> bool:
    return bool(classic.scheduler_status(claim).potential_nodes) or (announces and not classic.has_driver_status(claim))


def task_on_node(claim: ResourceClaim | None, driver: str, claim_class: ResourceClass | None, node: str) -> Task:
    """Return the task of an instance that allocates on one node."""
    task = task_for(claim, driver, claim_class, node)
    if claim is None or task is Task.CHECK:
        return Task.NOTHING
    held = has_finalizer(claim, driver, node)
    if task is Task.ALLOCATE and classic.selected_node(claim) != node:
        # Undo an earlier attempt on this node.
        return Task.CLEAN if held else Task.NOTHING
    return Task.NOTHING if task is Task.FREE and not held else task


def task_without_allocation(
    claim: ResourceClaim | None, driver: str, claim_class: ResourceClass | None, *, announces: bool = False
) -> Task:
    """Return the task of a controller that leaves allocation to nodes."""
    task = task_for(claim, driver, claim_class, announces=announces)
    if claim is not None and task is Task.ALLOCATE and not classic.selected_node(claim):
        return Task.PLACE
    return task if task is Task.CHECK else Task.NOTHING


def changes_capacity(old: ResourceClaim | None, new: ResourceClaim | None, driver: str) -> bool:
    """Return whether the event allocates or frees resources of the driver."""
    return _holds(old, driver) is not _holds(new, driver)


def frees_capacity(old: ResourceClaim | None, new: ResourceClaim | None, driver: str) -> bool:
    """Return whether the event frees resources of the driver."""
    return _holds(old, driver) and not _holds(new, driver)


def _holds(claim: ResourceClaim | None, driver: str) -> bool:
    if claim is None:
        return False
    status = classic.status_of(claim)
    # Attempts do not count: a rejected one must not trigger the next.
    return status.driver_name == driver and status.phase in (classic.ALLOCATED_PHASE, classic.REALLOCATE_PHASE)


def to_claim(claim: ResourceClaim, claim_class: ResourceClass | None) -> Claim:
    """Return the claim for the author's code."""
    return Claim(
        key_of(claim),
        UID(claim.metadata.uid or ""),
        claim.spec.resource_class_name,
        claim.spec.parameters or {},
        (claim_class.parameters if claim_class is not None else None) or {},
        classic.status_of(claim).attributes,
    )


def siblings(claim: ResourceClaim, others: Iterable[ResourceClaim]) -> list[ResourceClaim]:
    """Return the claim and those of the same Pod: they are needed on one node."""
    owners = {owner.uid for owner in claim.metadata.owner_references if owner.controller}
    found = {claim.metadata.uid: claim}
    for other in others:
        if any(owner.controller and owner.uid in owners for owner in other.metadata.owner_references):
            found.setdefault(other.metadata.uid, other)
    return sorted(found.values(), key=lambda item: item.metadata.name or "")


# --- Claims to write. ---


def with_finalizer(claim: ResourceClaim, driver: str, node: str = "") -> ResourceClaim:
    """Return the claim with the driver's finalizer."""
    return _with_finalizers(claim, (*claim.metadata.finalizers, finalizer_of(driver, node)))


def without_finalizer(claim: ResourceClaim, driver: str, node: str = "") -> ResourceClaim:
    """Return the claim without the driver's finalizer."""
    ours = finalizer_of(driver, node)
    return _with_finalizers(claim, tuple(name for name in claim.metadata.finalizers if name != ours))


def _with_finalizers(claim: ResourceClaim, finalizers: tuple[str, ...]) -> ResourceClaim:
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, finalizers=finalizers))


def with_driver(claim: ResourceClaim, driver: str | None) -> ResourceClaim:
    """Return the claim with another `driverName`; None clears it."""
    return classic.with_status(claim, msgspec.structs.replace(classic.status_of(claim), driver_name=driver))


def with_nodes(
    claim: ResourceClaim, unsuitable: Iterable[str], available: NodeSelector | None = None
) -> ResourceClaim | None:
    """Return the claim with these unsuitable and available nodes; None if it has them already."""
    answer = DriverSchedulingStatus(unsuitable_nodes=tuple(sorted(set(unsuitable))), available_on_nodes=available)
    if classic.has_driver_status(claim) and classic.driver_status(claim) == answer:
        return None
    status = classic.status_of(claim)
    scheduling = msgspec.structs.replace(status.scheduling or SchedulingStatus(), driver=answer)
    return classic.with_status(claim, msgspec.structs.replace(status, scheduling=scheduling))


def with_failure(claim: ResourceClaim, reason: str, message: str, now: datetime) -> ResourceClaim | None:
    """Return the claim with the reason why it is not allocated; None if it has it already."""
    message = message[:MESSAGE_LENGTH_MAX]
    old = classic.failure_of(claim)
    if old is not None and (old.reason, old.message) == (reason, message):
        return None
    since = old.last_transition_time if old is not None and old.last_transition_time is not None else now
    condition = Condition(
        type=classic.ALLOCATED_CONDITION, status="False", reason=reason, message=message, last_transition_time=since
    )
    status = classic.status_of(claim)
    others = tuple(item for item in status.conditions if item.type != classic.ALLOCATED_CONDITION)
    return classic.with_status(claim, msgspec.structs.replace(status, conditions=(*others, condition)))


def rejected(claim: ResourceClaim, node: str, unsuitable: Iterable[str]) -> ResourceClaim:
    """Return the claim without selected node and `driverName`, after the allocation on the node failed."""
    after = _with_unsuitable(with_driver(claim, None), tuple(sorted({node, *unsuitable})))
    scheduling = classic.status_of(after).scheduling
    assert scheduling is not None
    scheduler = msgspec.structs.replace(classic.scheduler_status(claim), selected_node=None)
    scheduling = msgspec.structs.replace(scheduling, scheduler=scheduler)
    return classic.with_status(after, msgspec.structs.replace(classic.status_of(after), scheduling=scheduling))


def with_selected_node(claim: ResourceClaim, node: str) -> ResourceClaim:
    """Return the claim with a selected node."""
    part = msgspec.structs.replace(classic.scheduler_status(claim), selected_node=node)
    return classic.with_scheduler_status(claim, part)


def without_unsuitable_nodes(claim: ResourceClaim) -> ResourceClaim:
    """Return the claim without unsuitable nodes."""
    return _with_unsuitable(claim, ())


def _with_unsuitable(claim: ResourceClaim, nodes: tuple[str, ...]) -> ResourceClaim:
    status = classic.status_of(claim)
    driver = msgspec.structs.replace(classic.driver_status(claim), unsuitable_nodes=nodes)
    scheduling = msgspec.structs.replace(status.scheduling or SchedulingStatus(), driver=driver)
    return classic.with_status(claim, msgspec.structs.replace(status, scheduling=scheduling))


def allocated(claim: ResourceClaim, driver: str, allocation: Allocation) -> ResourceClaim:
    """Return the allocated claim; of the scheduling status only the node selector remains."""
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
    """Return whether the write succeeded and only its response was lost."""
    now, then = classic.status_of(claim), classic.status_of(wanted)
    return now.phase == then.phase and now.attributes == then.attributes and now.driver_name == then.driver_name


def is_same_request(claim: ResourceClaim, before: ResourceClaim) -> bool:
    """Return whether the claim is still to be allocated as when the attempt began."""
    return (
        claim.metadata.uid == before.metadata.uid
        and classic.state_of(claim) is State.ALLOCATING
        and classic.selected_node(claim) == classic.selected_node(before)
        and classic.status_of(claim).driver_name == classic.status_of(before).driver_name
    )


def deallocated(claim: ResourceClaim) -> ResourceClaim:
    """Return the claim as pending and unallocated."""
    return classic.with_status(claim, ResourceClaimStatus(phase=classic.PENDING_PHASE))
