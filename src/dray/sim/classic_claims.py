"""What a classic claim waits for, in one line. Pure.

Only the driver of a classic claim knows what it can allocate: tools report what it has written, and predict nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from dray.api import classic_claims as classic
from dray.api.classic_claims import State
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Pod
from dray.sim.claims import selected_node
from dray.sim.snapshot import Snapshot

# More nodes than this are counted instead of named.
_NODES_MAX = 5


def driver_of(claim: ResourceClaim, snapshot: Snapshot) -> str:
    """Return the driver that allocates the claim; empty if its class does not exist."""
    known = snapshot.classic_classes.get(claim.spec.resource_class_name)
    return classic.status_of(claim).driver_name or ("" if known is None else known.driver_name)


def claims_of(pod: Pod, snapshot: Snapshot) -> Iterator[ResourceClaim]:
    """Yield the existing classic claims of a Pod."""
    for entry in snapshot.classic_entries(pod):
        claim = snapshot.find_classic(pod.metadata.namespace or "", entry.claim_name)
        if claim is not None:
            yield claim


def summary(claim: ResourceClaim, snapshot: Snapshot) -> str:
    """Return the state of the claim and what it waits for."""
    driver = driver_of(claim, snapshot)
    state = classic.state_of(claim)
    users = ", ".join(user.name for user in classic.status_of(claim).reserved_for)
    if state in (State.ALLOCATED, State.IN_USE):
        return f"is allocated by driver {driver}{_place(claim)} and {f'used by {users}' if users else 'not in use'}"
    if state is State.DELETING:
        return f"is being deleted: {f'it is used by {users}' if users else f'driver {driver} has to deallocate it'}"
    if not driver:
        return f"is pending: resource class {claim.spec.resource_class_name} does not exist"
    return f"is pending: {_obstacle(claim, snapshot, driver)}"


def _obstacle(claim: ResourceClaim, snapshot: Snapshot, driver: str) -> str:
    state = classic.state_of(claim)
    failure = classic.failure_of(claim)
    if failure is not None:
        return f"driver {driver} could not allocate it: {failure.message}"
    if state is State.REALLOCATE:
        return f"driver {driver} has to deallocate it first: its Pod cannot use it where it is"
    if state is State.ALLOCATING:
        node = classic.selected_node(claim)
        return f"driver {driver} has to allocate it{f' for node {node}' if node else ''}"
    says = scheduler_message(claim, snapshot)
    return f"{_negotiation(claim, driver)}; the scheduler says: {says}" if says else _negotiation(claim, driver)


def scheduler_message(claim: ResourceClaim, snapshot: Snapshot) -> str:
    """Return what the scheduler reports of a Pod that waits for the claim; empty if nothing.

    Only the scheduler knows which nodes a driver has refused, and how often.
    """
    for pod in snapshot.pods:
        if not pod.spec.node_name and claim in claims_of(pod, snapshot):
            for condition in pod.status.conditions:
                if condition.type == "PodScheduled" and condition.reason == "Unschedulable":
                    return condition.message or ""
    return ""


def _negotiation(claim: ResourceClaim, driver: str) -> str:
    potential = classic.scheduler_status(claim).potential_nodes
    if not potential:
        return "the scheduler selects a node once a Pod uses it"
    unsuitable = classic.driver_status(claim).unsuitable_nodes
    if not classic.has_driver_status(claim):
        return f"driver {driver} has to report which of {_nodes(potential)} are suitable"
    if unsuitable:
        return f"driver {driver} cannot allocate it for {_nodes(unsuitable)}"
    return f"the scheduler has to select one of {_nodes(potential)}"


def _nodes(names: tuple[str, ...]) -> str:
    if len(names) > _NODES_MAX:
        return f"{len(names)} nodes"
    return f"{'node' if len(names) == 1 else 'nodes'} {', '.join(names)}"


def _place(claim: ResourceClaim) -> str:
    selector = classic.driver_status(claim).available_on_nodes
    if selector is None:
        return ""
    name = selected_node(selector)
    return f" on node {name}" if name else " on some nodes"
