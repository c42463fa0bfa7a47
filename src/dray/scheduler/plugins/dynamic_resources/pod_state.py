"""What the plugin keeps for one attempt to place one Pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dray.allocator import Known
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim
from dray.framework.node_selectors import NodeMatcher, compile_selector

NOTHING_KNOWN: Final[Mapping[str, Known]] = {}


class PodState:
    """Made by PreFilter; `claims` are all of the Pod's, in the order of its entries."""

    __slots__ = ("claims", "in_doubt", "known", "node_allocations", "pending", "placed", "unavailable", "written")

    def __init__(self, claims: Sequence[ResourceClaim]) -> None:
        # Two entries may name one claim.
        claims = tuple({claim.metadata.uid: claim for claim in claims}.values())
        self.claims = claims
        # Those to allocate; the allocator recognizes the tuple's members from node to node.
        self.pending = tuple(claim for claim in claims if claim.status.allocation is None)
        # Position and reach of those that are allocated and cannot be used everywhere.
        self.placed: tuple[tuple[int, NodeMatcher], ...] = tuple(
            (position, compile_selector(claim.status.allocation.node_selector))
            for position, claim in enumerate(claims)
            if claim.status.allocation is not None and claim.status.allocation.node_selector is not None
        )
        # Positions of allocated claims that kept the Pod from a node.
        self.unavailable: set[int] = set()
        # What the allocator can say of nodes at once; asked for at the first node.
        self.known: Mapping[str, Known] = NOTHING_KNOWN
        # Node -> allocations of the pending claims, in their order.
        self.node_allocations: dict[str, tuple[AllocationResult, ...]] = {}
        # Uids of claims whose last write may yet arrive, with the version it was bound to.
        self.in_doubt: dict[str, ResourceClaim] = {}
        # Claims as PreBind has written them, by uid.
        self.written: dict[str, ResourceClaim] = {}

    def allocation_of(self, claim: ResourceClaim, node_name: str) -> AllocationResult | None:
        """What was found for a pending claim on the node."""
        found = self.node_allocations.get(node_name, ())
        for pending, allocation in zip(self.pending, found, strict=False):
            if pending is claim:
                return allocation
        return None
