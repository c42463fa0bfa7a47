"""The contents of writes of classic claims; None if the claim already has them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from dray.api import classic_claims as classic
from dray.api.classic_claims import State
from dray.api.types.cdi_v1alpha1 import ResourceClaim, SchedulerSchedulingStatus
from dray.api.types.core_v1 import Pod

# The maximum number of potential nodes, so that the claim does not grow with the cluster.
POTENTIAL_NODES_MAX: Final = 128


class ClaimChangedError(Exception):
    """The claim has changed since the decision."""


class InUseError(ClaimChangedError):
    """The claim is in use and cannot be shared with another Pod."""


def potential_nodes(names: Iterable[str], chosen: str) -> tuple[str, ...]:
    """Return the potential nodes: the chosen one, and others up to the limit."""
    listed = dict.fromkeys((chosen, *names))
    return tuple(sorted(list(listed)[:POTENTIAL_NODES_MAX]))


def asked(
    claim: ResourceClaim, planned: ResourceClaim, nodes: Sequence[str], node_name: str = ""
) -> ResourceClaim | None:
    """Return the claim with its potential nodes, and with the selected one if there is one.

    A list that has all these nodes already stays: the driver's answer covers them. A node that another scheduler
    has selected meanwhile stays as well, and whatever the driver has made of it.
    """
    if classic.state_of(claim) not in (State.PENDING, State.ALLOCATING):
        return None
    if classic.selected_node(claim) not in (classic.selected_node(planned), node_name):
        return None
    before = classic.scheduler_status(claim)
    listed = before.potential_nodes
    if not set(nodes) <= set(listed):
        # Earlier nodes stay, so that an excluded node does not look like a new one.
        listed = tuple(sorted(tuple(dict.fromkeys((*nodes, *listed)))[:POTENTIAL_NODES_MAX]))
    return _with_scheduler(claim, SchedulerSchedulingStatus(selected_node=node_name or None, potential_nodes=listed))


def deselected(claim: ResourceClaim) -> ResourceClaim | None:
    """Return the claim without a selected node, unless the driver has allocated it."""
    if classic.state_of(claim) is not State.ALLOCATING or not classic.selected_node(claim):
        return None
    return _with_scheduler(claim, msgspec.structs.replace(classic.scheduler_status(claim), selected_node=None))


def _with_scheduler(claim: ResourceClaim, part: SchedulerSchedulingStatus) -> ResourceClaim | None:
    return None if part == classic.scheduler_status(claim) else classic.with_scheduler_status(claim, part)


def reserved(claim: ResourceClaim, planned: ResourceClaim, pod: Pod) -> ResourceClaim | None:
    """Return the claim reserved for the Pod; raises `ClaimChangedError` if it has changed."""
    name = classic.label(claim)
    if classic.state_of(claim) not in (State.ALLOCATED, State.IN_USE):
        raise ClaimChangedError(f"claim {name} got deallocated elsewhere in the meantime")
    if classic.driver_status(claim).available_on_nodes != classic.driver_status(planned).available_on_nodes:
        raise ClaimChangedError(f"claim {name} got allocated elsewhere in the meantime")
    if classic.is_reserved_for(claim, pod):
        return None
    if not classic.is_reservable(claim):
        raise InUseError(f"resourceclaim in use ({name})")
    return classic.with_user(claim, pod)


def unreserved(claim: ResourceClaim, pod: Pod) -> ResourceClaim | None:
    """Return the claim without the Pod in reservedFor."""
    return classic.without_user(claim, pod.metadata.uid or "") if classic.is_reserved_for(claim, pod) else None


def may_reallocate(claim: ResourceClaim) -> bool:
    """Return whether the claim may be deallocated: it is unused, and allocated on first use."""
    return classic.state_of(claim) is State.ALLOCATED and not classic.is_immediate(claim)


def reallocated(claim: ResourceClaim) -> ResourceClaim | None:
    """Return the claim with a request for deallocation."""
    if not may_reallocate(claim):
        raise ClaimChangedError(f"claim {classic.label(claim)} is used in the meantime")
    status = msgspec.structs.replace(classic.status_of(claim), phase=classic.REALLOCATE_PHASE)
    return classic.with_status(claim, status)
