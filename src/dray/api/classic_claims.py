"""Claims of cdi.k8s.io: how Pods refer to them, and their life as a table that every component goes by.

The table is the protocol between scheduler, driver, node and claim controller. Whoever writes a claim's status asks
`check_move` first, so that a write which the protocol does not know is a bug found at once and not a leak found later.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from dray.api.types.cdi_v1alpha1 import (
    DriverSchedulingStatus,
    ResourceClaim,
    ResourceClaimStatus,
    SchedulerSchedulingStatus,
)
from dray.api.types.core_v1 import Pod
from dray.api.types.meta_v1 import OwnerReference

GROUP: Final = "cdi.k8s.io"
VERSION: Final = "v1alpha1"
IMMEDIATE: Final = "Immediate"
UNLIMITED: Final = -1
PENDING_PHASE: Final = "Pending"
ALLOCATED_PHASE: Final = "Allocated"
REALLOCATE_PHASE: Final = "Reallocate"

_NO_STATUS: Final = ResourceClaimStatus()
_NO_SCHEDULER: Final = SchedulerSchedulingStatus()
_NO_DRIVER: Final = DriverSchedulingStatus()


# --- The life of a claim. ---


class State(enum.StrEnum):
    """Where a claim is in its life; the order is that of a life in which nothing goes wrong."""

    START = "Start"
    # A Delayed claim that no node was selected for.
    PENDING = "Pending"
    # Immediate, or a node is selected.
    ALLOCATING = "Allocating"
    # Allocated, and nobody uses it.
    ALLOCATED = "Allocated"
    IN_USE = "InUse"
    # Allocated where it is of no use.
    REALLOCATE = "Reallocate"
    # Kept by a finalizer until the resource is free.
    DELETING = "Deleting"
    GONE = "Gone"


class Actor(enum.StrEnum):
    """Who writes claims."""

    USER = "user"
    CONTROLLER = "claim controller"
    SCHEDULER = "scheduler"
    DRIVER = "driver"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a life."""

    before: State
    after: State
    actors: tuple[Actor, ...]
    what: str


_ANYBODY: Final = (Actor.USER, Actor.CONTROLLER)
_LEAVING: Final = (Actor.NODE, Actor.CONTROLLER, Actor.SCHEDULER)

LIFE: Final[tuple[Move, ...]] = (
    Move(State.START, State.PENDING, _ANYBODY, "create, Delayed"),
    Move(State.START, State.ALLOCATING, _ANYBODY, "create, Immediate"),
    Move(State.PENDING, State.PENDING, (Actor.SCHEDULER,), "set potentialNodes"),
    Move(State.PENDING, State.PENDING, (Actor.DRIVER,), "set unsuitableNodes; remove the finalizer"),
    Move(State.PENDING, State.ALLOCATING, (Actor.SCHEDULER,), "set selectedNode"),
    Move(State.ALLOCATING, State.ALLOCATING, (Actor.DRIVER,), "set finalizer and driverName, then try"),
    Move(State.ALLOCATING, State.PENDING, (Actor.DRIVER,), "no room there: clear selectedNode"),
    Move(State.ALLOCATING, State.ALLOCATING, (Actor.SCHEDULER,), "the selected node is gone: select another"),
    Move(State.ALLOCATING, State.PENDING, (Actor.SCHEDULER,), "the Pod does without: clear selectedNode"),
    Move(State.ALLOCATING, State.ALLOCATED, (Actor.DRIVER,), "set attributes, userLimit, availableOnNodes"),
    Move(State.ALLOCATED, State.IN_USE, (Actor.SCHEDULER,), "add a Pod to reservedFor"),
    Move(State.ALLOCATED, State.IN_USE, (Actor.CONTROLLER,), "add a Pod whose binding was taken for failed"),
    Move(State.IN_USE, State.IN_USE, (Actor.SCHEDULER,), "add or remove a Pod"),
    Move(State.IN_USE, State.IN_USE, (Actor.NODE, Actor.CONTROLLER), "remove one Pod of several, or add as above"),
    Move(State.IN_USE, State.ALLOCATED, _LEAVING, "remove the last Pod"),
    Move(State.ALLOCATED, State.REALLOCATE, (Actor.SCHEDULER,), "ask for the resource elsewhere"),
    Move(State.REALLOCATE, State.REALLOCATE, _LEAVING, "remove Pods, if somebody else asked too early"),
    Move(State.REALLOCATE, State.PENDING, (Actor.DRIVER,), "free the resource"),
    Move(State.PENDING, State.DELETING, _ANYBODY, "delete"),
    Move(State.ALLOCATING, State.DELETING, _ANYBODY, "delete"),
    Move(State.ALLOCATED, State.DELETING, _ANYBODY, "delete"),
    Move(State.IN_USE, State.DELETING, _ANYBODY, "delete"),
    Move(State.REALLOCATE, State.DELETING, _ANYBODY, "delete"),
    Move(State.DELETING, State.DELETING, _LEAVING, "remove Pods"),
    Move(State.DELETING, State.GONE, (Actor.DRIVER,), "free the resource, remove the finalizer"),
)

_ALLOWED: Final[frozenset[tuple[State, State, Actor]]] = frozenset(
    (move.before, move.after, actor) for move in LIFE for actor in move.actors
)

# Whom a claim in this state waits for, as far as it waits at all.
TURN: Final[Mapping[State, Actor]] = {
    State.PENDING: Actor.SCHEDULER,
    State.ALLOCATING: Actor.DRIVER,
    State.REALLOCATE: Actor.DRIVER,
    State.DELETING: Actor.DRIVER,
}


class UnexpectedMoveError(Exception):
    """A write that the protocol does not know: a bug of whoever wanted it."""


def state_of(claim: ResourceClaim | None) -> State:
    """Where the claim is in its life."""
    if claim is None:
        return State.GONE
    if claim.metadata.deletion_timestamp is not None:
        return State.DELETING
    status = status_of(claim)
    if status.phase == REALLOCATE_PHASE:
        return State.REALLOCATE
    if status.phase == ALLOCATED_PHASE:
        return State.IN_USE if status.reserved_for else State.ALLOCATED
    return State.ALLOCATING if is_immediate(claim) or selected_node(claim) else State.PENDING


def check_move(actor: Actor, before: ResourceClaim | None, after: ResourceClaim | None) -> None:
    """Raise `UnexpectedMoveError` unless the actor may make one of the other."""
    move = (State.START if before is None else state_of(before), state_of(after), actor)
    if move not in _ALLOWED:
        claim = before if before is not None else after
        raise UnexpectedMoveError(f"{actor} must not take claim {label(claim)} from {move[0]} to {move[1]}")


# --- Reading a claim. ---


def status_of(claim: ResourceClaim) -> ResourceClaimStatus:
    """The claim's status; one that was never written is empty."""
    return claim.status if claim.status is not None else _NO_STATUS


def scheduler_part(claim: ResourceClaim) -> SchedulerSchedulingStatus:
    """What the scheduler says while the claim is being placed."""
    scheduling = status_of(claim).scheduling
    return scheduling.scheduler if scheduling is not None and scheduling.scheduler is not None else _NO_SCHEDULER


def driver_part(claim: ResourceClaim) -> DriverSchedulingStatus:
    """What the driver says about nodes."""
    scheduling = status_of(claim).scheduling
    return scheduling.driver if scheduling is not None and scheduling.driver is not None else _NO_DRIVER


def has_answer(claim: ResourceClaim) -> bool:
    """Whether the driver has said anything about nodes, if only that all are suitable."""
    scheduling = status_of(claim).scheduling
    return scheduling is not None and scheduling.driver is not None


def selected_node(claim: ResourceClaim) -> str:
    """The node that the driver is to allocate for; empty when none is selected."""
    return scheduler_part(claim).selected_node or ""


def is_immediate(claim: ResourceClaim) -> bool:
    """Whether the claim is allocated without a Pod."""
    return claim.spec.allocation_mode == IMMEDIATE


def is_allocated(claim: ResourceClaim) -> bool:
    """Whether the claim has a resource that is to stay."""
    return status_of(claim).phase == ALLOCATED_PHASE


def label(claim: ResourceClaim | None) -> str:
    """The claim's name for people."""
    return "" if claim is None else f"{claim.metadata.namespace}/{claim.metadata.name}"


# --- Users. ---


def reservation_of(pod: Pod) -> OwnerReference:
    """The Pod as a user of a claim."""
    return OwnerReference(api_version="v1", kind="Pod", name=pod.metadata.name or "", uid=pod.metadata.uid or "")


def is_pod_reference(user: OwnerReference) -> bool:
    """Whether the user is a Pod; others look after their reservations themselves."""
    return (user.api_version, user.kind) == ("v1", "Pod")


def is_reserved_for(claim: ResourceClaim, pod: Pod) -> bool:
    """Whether the Pod is among the claim's users."""
    return any(user.uid == pod.metadata.uid for user in status_of(claim).reserved_for)


def user_limit(claim: ResourceClaim) -> int:
    """How many users the claim may have; `UNLIMITED` for any number."""
    return status_of(claim).user_limit or 1


def has_room(claim: ResourceClaim) -> bool:
    """Whether one more may use the claim."""
    limit = user_limit(claim)
    return limit == UNLIMITED or len(status_of(claim).reserved_for) < limit


def with_user(claim: ResourceClaim, pod: Pod) -> ResourceClaim:
    """The claim with the Pod among its users."""
    return with_users(claim, (*status_of(claim).reserved_for, reservation_of(pod)))


def without_user(claim: ResourceClaim, pod_uid: str) -> ResourceClaim:
    """The claim without that user."""
    return with_users(claim, tuple(user for user in status_of(claim).reserved_for if user.uid != pod_uid))


def with_users(claim: ResourceClaim, users: tuple[OwnerReference, ...]) -> ResourceClaim:
    """The claim with these users."""
    return with_status(claim, msgspec.structs.replace(status_of(claim), reserved_for=users))


def with_status(claim: ResourceClaim, status: ResourceClaimStatus) -> ResourceClaim:
    """The claim with another status."""
    return msgspec.structs.replace(claim, status=status)


# --- How Pods refer to claims. ---


@dataclass(frozen=True, slots=True)
class ClassicEntry:
    """An entry of a Pod that a claim of cdi.k8s.io is for."""

    entry: str
    claim_name: str
    # The claim is made from the Pod's own template and must belong to it.
    generated: bool = False
    # The Pod can do without.
    optional: bool = False


def generated_entries(pod: Pod) -> Iterator[ClassicEntry]:
    """The entries with a template inside the Pod; their claims' names are fixed."""
    return classic_entries(pod, lambda _name: False)


def classic_entries(pod: Pod, is_classic: Callable[[str], bool]) -> Iterator[ClassicEntry]:
    """All classic entries in their order; `is_classic` tells whether cdi.k8s.io has a claim of that name."""
    for entry in pod.spec.resource_claims:
        if entry.template is not None:
            name = f"{pod.metadata.name}-{entry.name}"
            yield ClassicEntry(entry.name, name, generated=True, optional=bool(entry.optional))
        elif entry.resource_claim_name is not None and is_classic(entry.resource_claim_name):
            yield ClassicEntry(entry.name, entry.resource_claim_name, optional=bool(entry.optional))


def claim_names_of(pod: Pod) -> Iterator[str]:
    """The names of all claims that may be the Pod's, whichever group has them."""
    for entry in pod.spec.resource_claims:
        if entry.template is not None:
            yield f"{pod.metadata.name}-{entry.name}"
        elif entry.resource_claim_name is not None:
            yield entry.resource_claim_name


def is_made_for(claim: ResourceClaim, pod: Pod) -> bool:
    """Whether the Pod is an owner of the claim.

    Any owner reference will do: that is how people give an existing claim to a Pod.
    """
    if claim.metadata.namespace != pod.metadata.namespace:
        return False
    return any(owner.uid == pod.metadata.uid for owner in claim.metadata.owner_references)
