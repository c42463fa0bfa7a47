"""Claims of cdi.k8s.io: references from Pods, and the claim lifecycle as a transition table.

The table is the protocol between scheduler, driver, node agent and claim controller. Every component calls
`check_transition` before it writes a claim's status, so that a write outside the protocol fails at once.
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
    SchedulingStatus,
)
from dray.api.types.core_v1 import Pod
from dray.api.types.meta_v1 import Condition, OwnerReference

GROUP: Final = "cdi.k8s.io"
VERSION: Final = "v1alpha1"
IMMEDIATE: Final = "Immediate"
UNLIMITED: Final = -1
PENDING_PHASE: Final = "Pending"
ALLOCATED_PHASE: Final = "Allocated"
REALLOCATE_PHASE: Final = "Reallocate"
# The condition that says why a claim is not allocated, and its reasons.
ALLOCATED_CONDITION: Final = "Allocated"
NO_ROOM: Final = "NoRoom"
DRIVER_FAILED: Final = "DriverFailed"

_NO_STATUS: Final = ResourceClaimStatus()
_NO_SCHEDULER: Final = SchedulerSchedulingStatus()
_NO_DRIVER: Final = DriverSchedulingStatus()


# --- Lifecycle of a claim. ---


class State(enum.StrEnum):
    """State of a claim, in the order of a lifecycle without failures."""

    START = "Start"
    # A Delayed claim without a selected node.
    PENDING = "Pending"
    # Immediate, or with a selected node.
    ALLOCATING = "Allocating"
    # Allocated and not in use.
    ALLOCATED = "Allocated"
    IN_USE = "InUse"
    # Allocated where it cannot be used.
    REALLOCATE = "Reallocate"
    # Deleted; a finalizer remains until the resource is deallocated.
    DELETING = "Deleting"
    GONE = "Gone"


class Actor(enum.StrEnum):
    """The components that write claims."""

    USER = "user"
    CONTROLLER = "claim controller"
    SCHEDULER = "scheduler"
    DRIVER = "driver"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Transition:
    """One transition."""

    before: State
    after: State
    actors: tuple[Actor, ...]
    action: str


_CREATORS: Final = (Actor.USER, Actor.CONTROLLER)
_RELEASERS: Final = (Actor.NODE, Actor.CONTROLLER, Actor.SCHEDULER)

TRANSITIONS: Final[tuple[Transition, ...]] = (
    Transition(State.START, State.PENDING, _CREATORS, "create, Delayed"),
    Transition(State.START, State.ALLOCATING, _CREATORS, "create, Immediate"),
    Transition(State.PENDING, State.PENDING, (Actor.SCHEDULER,), "set potentialNodes"),
    Transition(State.PENDING, State.PENDING, (Actor.DRIVER,), "set unsuitableNodes; remove the finalizer"),
    Transition(State.PENDING, State.ALLOCATING, (Actor.SCHEDULER,), "set selectedNode"),
    Transition(State.ALLOCATING, State.ALLOCATING, (Actor.DRIVER,), "set finalizer and driverName, then allocate"),
    Transition(State.ALLOCATING, State.PENDING, (Actor.DRIVER,), "allocation failed: clear selectedNode"),
    Transition(State.ALLOCATING, State.ALLOCATING, (Actor.SCHEDULER,), "the selected node was deleted: select another"),
    Transition(
        State.ALLOCATING, State.PENDING, (Actor.SCHEDULER,), "the Pod runs without the claim: clear selectedNode"
    ),
    Transition(State.ALLOCATING, State.ALLOCATED, (Actor.DRIVER,), "set attributes, userLimit, availableOnNodes"),
    Transition(State.ALLOCATED, State.IN_USE, (Actor.SCHEDULER,), "add a Pod to reservedFor"),
    Transition(State.ALLOCATED, State.IN_USE, (Actor.CONTROLLER,), "add a Pod whose binding seemed to have failed"),
    Transition(State.IN_USE, State.IN_USE, (Actor.SCHEDULER,), "add or remove a Pod"),
    Transition(
        State.IN_USE, State.IN_USE, (Actor.NODE, Actor.CONTROLLER), "remove one Pod of several, or add as above"
    ),
    Transition(State.IN_USE, State.ALLOCATED, _RELEASERS, "remove the last Pod"),
    Transition(State.ALLOCATED, State.REALLOCATE, (Actor.SCHEDULER,), "request reallocation on another node"),
    Transition(
        State.REALLOCATE, State.REALLOCATE, _RELEASERS, "remove Pods, if another scheduler requested it too early"
    ),
    Transition(State.REALLOCATE, State.PENDING, (Actor.DRIVER,), "deallocate the resource"),
    Transition(State.PENDING, State.DELETING, _CREATORS, "delete"),
    Transition(State.ALLOCATING, State.DELETING, _CREATORS, "delete"),
    Transition(State.ALLOCATED, State.DELETING, _CREATORS, "delete"),
    Transition(State.IN_USE, State.DELETING, _CREATORS, "delete"),
    Transition(State.REALLOCATE, State.DELETING, _CREATORS, "delete"),
    Transition(State.DELETING, State.DELETING, _RELEASERS, "remove Pods"),
    Transition(State.DELETING, State.GONE, (Actor.DRIVER,), "deallocate the resource, remove the finalizer"),
)

_ALLOWED: Final[frozenset[tuple[State, State, Actor]]] = frozenset(
    (transition.before, transition.after, actor) for transition in TRANSITIONS for actor in transition.actors
)

# The component that a claim in this state waits for.
WAITS_FOR: Final[Mapping[State, Actor]] = {
    State.PENDING: Actor.SCHEDULER,
    State.ALLOCATING: Actor.DRIVER,
    State.REALLOCATE: Actor.DRIVER,
    State.DELETING: Actor.DRIVER,
}


class UnexpectedTransitionError(Exception):
    """A write outside the protocol; a bug in its caller."""


def state_of(claim: ResourceClaim | None) -> State:
    """Return the state of the claim."""
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


def check_transition(actor: Actor, before: ResourceClaim | None, after: ResourceClaim | None) -> None:
    """Raise `UnexpectedTransitionError` unless the actor may make this transition."""
    transition = (State.START if before is None else state_of(before), state_of(after), actor)
    if transition not in _ALLOWED:
        claim = before if before is not None else after
        raise UnexpectedTransitionError(
            f"{actor} must not take claim {label(claim)} from {transition[0]} to {transition[1]}"
        )


# --- Accessors. ---


def status_of(claim: ResourceClaim) -> ResourceClaimStatus:
    """Return the claim's status; empty when it was never written."""
    return claim.status if claim.status is not None else _NO_STATUS


def scheduler_status(claim: ResourceClaim) -> SchedulerSchedulingStatus:
    """Return the scheduler's part of the status during scheduling."""
    scheduling = status_of(claim).scheduling
    return scheduling.scheduler if scheduling is not None and scheduling.scheduler is not None else _NO_SCHEDULER


def driver_status(claim: ResourceClaim) -> DriverSchedulingStatus:
    """Return the driver's part of the status during scheduling."""
    scheduling = status_of(claim).scheduling
    return scheduling.driver if scheduling is not None and scheduling.driver is not None else _NO_DRIVER


def has_driver_status(claim: ResourceClaim) -> bool:
    """Report whether the driver has reported node suitability, including "all nodes are suitable"."""
    scheduling = status_of(claim).scheduling
    return scheduling is not None and scheduling.driver is not None


def selected_node(claim: ResourceClaim) -> str:
    """Return the node that the driver allocates for; empty when none is selected."""
    return scheduler_status(claim).selected_node or ""


def is_immediate(claim: ResourceClaim) -> bool:
    """Report whether the claim is allocated without waiting for a Pod."""
    return claim.spec.allocation_mode == IMMEDIATE


def is_allocated(claim: ResourceClaim) -> bool:
    """Report whether the claim is allocated and not being deallocated."""
    return status_of(claim).phase == ALLOCATED_PHASE


def failure_of(claim: ResourceClaim) -> Condition | None:
    """Return why the driver's last attempt failed; None if the claim is allocated, or none has failed."""
    for condition in status_of(claim).conditions:
        if condition.type == ALLOCATED_CONDITION and condition.status == "False":
            return condition
    return None


def label(claim: ResourceClaim | None) -> str:
    """Return the claim's name for messages."""
    return "" if claim is None else f"{claim.metadata.namespace}/{claim.metadata.name}"


# --- Consumers. ---


def reservation_of(pod: Pod) -> OwnerReference:
    """Return the Pod as a consumer of a claim."""
    return OwnerReference(api_version="v1", kind="Pod", name=pod.metadata.name or "", uid=pod.metadata.uid or "")


def is_pod_reference(user: OwnerReference) -> bool:
    """Report whether the consumer is a Pod; other consumers manage their own reservations."""
    return (user.api_version, user.kind) == ("v1", "Pod")


def is_reserved_for(claim: ResourceClaim, pod: Pod) -> bool:
    """Report whether the claim is reserved for the Pod."""
    return any(user.uid == pod.metadata.uid for user in status_of(claim).reserved_for)


def user_limit(claim: ResourceClaim) -> int:
    """Return the maximum number of consumers; `UNLIMITED` for any number."""
    return status_of(claim).user_limit or 1


def is_reservable(claim: ResourceClaim) -> bool:
    """Report whether the claim can be reserved for one more consumer."""
    limit = user_limit(claim)
    return limit == UNLIMITED or len(status_of(claim).reserved_for) < limit


def with_user(claim: ResourceClaim, pod: Pod) -> ResourceClaim:
    """Return the claim reserved for the Pod as well."""
    return with_users(claim, (*status_of(claim).reserved_for, reservation_of(pod)))


def without_user(claim: ResourceClaim, pod_uid: str) -> ResourceClaim:
    """Return the claim without the Pod's reservation."""
    return with_users(claim, tuple(user for user in status_of(claim).reserved_for if user.uid != pod_uid))


def with_users(claim: ResourceClaim, users: tuple[OwnerReference, ...]) -> ResourceClaim:
    """Return the claim reserved for these consumers."""
    return with_status(claim, msgspec.structs.replace(status_of(claim), reserved_for=users))


def with_scheduler_status(claim: ResourceClaim, part: SchedulerSchedulingStatus) -> ResourceClaim:
    """Return the claim with another part of the scheduler in its status."""
    status = status_of(claim)
    scheduling = msgspec.structs.replace(status.scheduling or SchedulingStatus(), scheduler=part)
    return with_status(claim, msgspec.structs.replace(status, scheduling=scheduling))


def with_status(claim: ResourceClaim, status: ResourceClaimStatus) -> ResourceClaim:
    """Return the claim with another status."""
    return msgspec.structs.replace(claim, status=status)


# --- References from Pods. ---


@dataclass(frozen=True, slots=True)
class ClassicEntry:
    """An entry of a Pod that refers to a claim of cdi.k8s.io."""

    entry: str
    claim_name: str
    # The claim is created from the Pod's inline template and must be owned by the Pod.
    generated: bool = False
    # The Pod can run without the claim.
    optional: bool = False


def classic_entries(pod: Pod, is_classic: Callable[[str], bool]) -> Iterator[ClassicEntry]:
    """Return all classic entries in order; `is_classic` reports whether cdi.k8s.io has a claim of that name."""
    for entry in pod.spec.resource_claims:
        if entry.template is not None:
            name = f"{pod.metadata.name}-{entry.name}"
            yield ClassicEntry(entry.name, name, generated=True, optional=bool(entry.optional))
        elif entry.resource_claim_name is not None and is_classic(entry.resource_claim_name):
            yield ClassicEntry(entry.name, entry.resource_claim_name, optional=bool(entry.optional))


def claim_names_of(pod: Pod) -> list[str]:
    """Return the names of all claims that the Pod refers to, in either group."""
    names: list[str] = []
    for entry in pod.spec.resource_claims:
        if entry.template is not None:
            names.append(f"{pod.metadata.name}-{entry.name}")
        elif entry.resource_claim_name is not None:
            names.append(entry.resource_claim_name)
    return names


def is_for_pod(claim: ResourceClaim, pod: Pod) -> bool:
    """Report whether the Pod owns the claim.

    Any owner reference counts: users assign an existing claim to a Pod this way.
    """
    if claim.metadata.namespace != pod.metadata.namespace:
        return False
    return any(owner.uid == pod.metadata.uid for owner in claim.metadata.owner_references)
