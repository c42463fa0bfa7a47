"""One row per claim of a snapshot, of either group: requests, devices, consumers. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from dray.api import classic_claims as classic
from dray.api.prioritized_lists import choices
from dray.api.types import cdi_v1alpha1
from dray.api.types.core_v1 import NodeSelector, Pod
from dray.api.types.resource_v1 import DeviceRequest, ResourceClaim
from dray.sim.devices import pods_of
from dray.sim.snapshot import DRA, Snapshot


class ClaimState(enum.StrEnum):
    """State of a claim."""

    PENDING = "pending"
    ALLOCATED = "allocated"
    RESERVED = "reserved"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """One claim."""

    namespace: str
    name: str
    state: ClaimState
    # `class x count`, alternatives separated by a bar.
    requests: tuple[str, ...]
    devices: tuple[str, ...]
    # The alternatives that were chosen, as `request/subrequest`.
    chosen: tuple[str, ...]
    # The same with their ranks, as `gpu/small (2 of 3)`.
    choices: tuple[str, ...]
    node: str
    pods: tuple[str, ...]
    created: datetime | None
    allocated: datetime | None
    group: str = DRA
    labels: Mapping[str, str] = field(default_factory=dict)


# Whether a classic claim that is to be reallocated still has its resource is up to the driver.
_CLASSIC_STATES: Final = {
    classic.State.PENDING: ClaimState.PENDING,
    classic.State.ALLOCATING: ClaimState.PENDING,
    classic.State.REALLOCATE: ClaimState.PENDING,
    classic.State.ALLOCATED: ClaimState.ALLOCATED,
    classic.State.IN_USE: ClaimState.RESERVED,
    classic.State.DELETING: ClaimState.DELETING,
}


def claim_rows(snapshot: Snapshot, namespace: str = "") -> list[ClaimRow]:
    """Return all claims, or those of one namespace, by namespace and name."""
    rows = [_row(claim, snapshot) for claim in snapshot.claims]
    rows += [_classic_row(claim, snapshot) for claim in snapshot.classic_claims]
    rows.sort(key=lambda row: (row.namespace, row.name))
    return [row for row in rows if not namespace or row.namespace == namespace]


def _row(claim: ResourceClaim, snapshot: Snapshot) -> ClaimRow:
    allocation = claim.status.allocation
    results = () if allocation is None else allocation.devices.results
    return ClaimRow(
        namespace=claim.metadata.namespace or "",
        name=claim.metadata.name or "",
        state=claim_state(claim),
        requests=tuple(request_text(request) for request in claim.spec.devices.requests),
        devices=tuple(f"{result.driver}/{result.pool}/{result.device}" for result in results),
        chosen=tuple(dict.fromkeys(result.request for result in results if "/" in result.request)),
        choices=tuple(map(str, choices(claim, allocation))),
        node=""
        if allocation is None
        else _node_of([user.uid for user in claim.status.reserved_for], allocation.node_selector, snapshot),
        pods=pods_of(claim),
        created=claim.metadata.creation_timestamp,
        allocated=None if allocation is None else allocation.allocation_timestamp,
        labels=claim.metadata.labels,
    )


def _classic_row(claim: cdi_v1alpha1.ResourceClaim, snapshot: Snapshot) -> ClaimRow:
    users = classic.status_of(claim).reserved_for
    selector = classic.driver_status(claim).available_on_nodes if classic.is_allocated(claim) else None
    return ClaimRow(
        namespace=claim.metadata.namespace or "",
        name=claim.metadata.name or "",
        state=_CLASSIC_STATES[classic.state_of(claim)],
        requests=(claim.spec.resource_class_name,),
        # What a classic driver allocates has no name in the API.
        devices=(),
        chosen=(),
        choices=(),
        node=_node_of([user.uid for user in users], selector, snapshot),
        pods=tuple(user.name for user in users if classic.is_pod_reference(user)),
        created=claim.metadata.creation_timestamp,
        allocated=None,
        group=classic.GROUP,
        labels=claim.metadata.labels,
    )


@dataclass(frozen=True, slots=True)
class ChoiceCounts:
    """How many prioritized lists of allocated claims got their first choice, and how many a lower one."""

    first: int = 0
    fallback: int = 0


def choice_counts(snapshot: Snapshot) -> ChoiceCounts:
    """Count the choices of all claims."""
    found = [choice.is_fallback for claim in snapshot.claims for choice in choices(claim, claim.status.allocation)]
    return ChoiceCounts(found.count(False), found.count(True))


def claim_state(claim: ResourceClaim) -> ClaimState:
    """Return the state of a claim, as `kubectl get resourceclaims` shows it."""
    if claim.metadata.deletion_timestamp is not None:
        return ClaimState.DELETING
    if claim.status.allocation is None:
        return ClaimState.PENDING
    return ClaimState.RESERVED if claim.status.reserved_for else ClaimState.ALLOCATED


def request_text(request: DeviceRequest) -> str:
    """Return a short text of one request."""
    if request.exactly is not None:
        return _wanted(request.exactly.device_class_name, request.exactly.allocation_mode, request.exactly.count)
    alternatives = (_wanted(sub.device_class_name, sub.allocation_mode, sub.count) for sub in request.first_available)
    return " | ".join(alternatives)


def _wanted(device_class: str, mode: str | None, count: int | None) -> str:
    return f"all {device_class}" if mode == "All" else f"{count or 1} {device_class}"


def _node_of(users: Sequence[str], selector: NodeSelector | None, snapshot: Snapshot) -> str:
    """Return the node of a Pod with one of the UIDs, or the only one that the selector names."""
    for uid in users:
        pod: Pod | None = snapshot.pods_by_uid.get(uid)
        if pod is not None and pod.spec.node_name:
            return pod.spec.node_name
    return "" if selector is None else selected_node(selector)


def selected_node(selector: NodeSelector) -> str:
    """Return the node that a selector names; empty if it does not name exactly one."""
    for term in selector.node_selector_terms:
        for item in term.match_fields:
            if item.key == "metadata.name" and item.operator == "In" and len(item.values) == 1:
                return item.values[0]
    return ""
