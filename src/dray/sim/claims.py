"""One row per claim of a snapshot: requests, devices, consumers. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime

from dray.api.document import NamespacedName
from dray.api.types.core_v1 import NodeSelector, Pod
from dray.api.types.resource_v1 import AllocationResult, DeviceRequest, ResourceClaim
from dray.sim.devices import pods_of
from dray.sim.snapshot import Snapshot


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
    node: str
    pods: tuple[str, ...]
    created: datetime | None
    allocated: datetime | None


def claim_rows(snapshot: Snapshot, namespace: str = "") -> list[ClaimRow]:
    """Return all claims, or those of one namespace, by namespace and name."""
    return [
        _row(claim, snapshot) for claim in snapshot.claims if not namespace or claim.metadata.namespace == namespace
    ]


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
        node=_node(claim, allocation, snapshot),
        pods=pods_of(claim),
        created=claim.metadata.creation_timestamp,
        allocated=None if allocation is None else allocation.allocation_timestamp,
    )


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


def _node(claim: ResourceClaim, allocation: AllocationResult | None, snapshot: Snapshot) -> str:
    if allocation is None:
        return ""
    for user in claim.status.reserved_for:
        pod: Pod | None = snapshot.pods_by_uid.get(user.uid)
        if pod is not None and pod.spec.node_name:
            return pod.spec.node_name
    return "" if allocation.node_selector is None else selected_node(allocation.node_selector)


def selected_node(selector: NodeSelector) -> str:
    """Return the node that a selector names; empty if it does not name exactly one."""
    for term in selector.node_selector_terms:
        for field in term.match_fields:
            if field.key == "metadata.name" and field.operator == "In" and len(field.values) == 1:
                return field.values[0]
    return ""


def claim_key(row: ClaimRow) -> NamespacedName:
    """Return the key of the row's claim."""
    return NamespacedName(row.namespace, row.name)
