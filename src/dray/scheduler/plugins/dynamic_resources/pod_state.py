"""What the plugin keeps for one attempt to place one Pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice
from typing import Final

from dray.allocator import AllocationQuery
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim
from dray.framework.node_info import NodeInfo
from dray.framework.node_selectors import NodeMatcher, compile_selector
from dray.framework.pod_info import NO_NAMES
from dray.framework.status import Status
from dray.scheduler.plugins.dynamic_resources.extended_resources import NOTHING_WANTED, Need, Wanted

_NO_NEEDS: Final[tuple[Need, ...]] = ()
_NO_CLASSES: Final[Mapping[str, str]] = {}


class Variant:
    """What is to be allocated on nodes that have the same of the Pod's extended resources themselves."""

    __slots__ = ("claims", "count", "extended_claim", "query", "rejection", "wanted")

    def __init__(
        self,
        pending: Sequence[ResourceClaim],
        extended_claim: ResourceClaim | None = None,
        held: Sequence[ResourceClaim] = (),
        wanted: Wanted = NOTHING_WANTED,
        rejection: Status | None = None,
    ) -> None:
        own = pending if extended_claim is None else (*pending, extended_claim)
        # The allocator recognizes the tuple's members from node to node; what is held back goes last.
        self.claims: tuple[ResourceClaim, ...] = (*own, *held) if held else tuple(own)
        # How many of them are the Pod's.
        self.count = len(own)
        # The special claim, if it is to be allocated.
        self.extended_claim = extended_claim
        self.wanted = wanted
        # Why the Pod cannot be on such a node at all.
        self.rejection = rejection
        # The cached results for the claims; set by the first filter call.
        self.query: AllocationQuery | None = None


class PodState:
    """Made by PreFilter; `claims` are those of the Pod's entries, in their order."""

    __slots__ = (
        "chosen",
        "claims",
        "classes",
        "created",
        "creating",
        "extended_claim",
        "extended_claim_matches",
        "in_doubt",
        "instead",
        "names",
        "needs",
        "node_allocations",
        "node_variants",
        "pending",
        "placed",
        "plain",
        "pod",
        "reduced",
        "stale",
        "unavailable",
        "variants",
        "written",
    )

    def __init__(self, pod: Pod, claims: Sequence[ResourceClaim]) -> None:
        self.pod = pod
        # Two entries may name one claim.
        claims = tuple({claim.metadata.uid: claim for claim in claims}.values())
        self.claims = claims
        # Those to allocate.
        self.pending = tuple(claim for claim in claims if claim.status.allocation is None)
        # Position and reach of those that are allocated and cannot be used everywhere.
        self.placed: tuple[tuple[int, NodeMatcher], ...] = tuple(
            (position, compile_selector(claim.status.allocation.node_selector))
            for position, claim in enumerate(claims)
            if claim.status.allocation is not None and claim.status.allocation.node_selector is not None
        )
        # Positions of allocated claims that kept the Pod from a node.
        self.unavailable: set[int] = set()
        # For nodes that have no extended resources of their own, and nothing to be held back.
        self.plain = Variant(self.pending)
        # The extended resources by name, what containers want of them, and the classes of those that devices can serve.
        self.names: tuple[str, ...] = ()
        self.needs = _NO_NEEDS
        self.classes = _NO_CLASSES
        # The special claim of an earlier attempt, where it can be used, and whether it turned out to be in the way.
        self.extended_claim: ResourceClaim | None = None
        self.extended_claim_matches: NodeMatcher | None = None
        self.stale = False
        # By what a node has itself and what is held back there; and those of the nodes that were looked at.
        self.variants: dict[tuple[object, ...], Variant] = {}
        self.node_variants: dict[str, Variant] = {}
        # Node -> allocations of the claims to allocate there, in their order; see `found_on` for those of which it was
        # known beforehand.
        self.node_allocations: dict[str, tuple[AllocationResult, ...]] = {}
        # Set by Reserve.
        self.chosen = self.plain
        # The special claim as the server knows it; whether it may know one that nobody has heard of.
        self.created: ResourceClaim | None = None
        self.creating = False
        # Uids of claims whose last write may yet arrive, with the version it was bound to.
        self.in_doubt: dict[str, ResourceClaim] = {}
        # Claims as PreBind has written them, by uid.
        self.written: dict[str, ResourceClaim] = {}
        # The same Pod with fewer of its optional claims, best first; and what counts on nodes that lack some of them.
        self.reduced: tuple[PodState, ...] = ()
        self.instead: dict[str, PodState] = {}

    def on_node(self, node_name: str) -> PodState:
        """What counts on a node that was looked at."""
        return self.instead.get(node_name, self)

    def use_extended_claim(self, claim: ResourceClaim) -> None:
        """Go on with the special claim of an earlier attempt."""
        self.extended_claim = claim
        allocation = claim.status.allocation
        if allocation is not None and allocation.node_selector is not None:
            self.extended_claim_matches = compile_selector(allocation.node_selector)

    def found_on(self, node_name: str) -> tuple[AllocationResult, ...] | None:
        """The allocations on a node that fits; until Reserve, since then devices are taken."""
        found = self.node_allocations.get(node_name)
        if found is None and self.plain.query is not None:
            found = self.plain.query.allocations_on(node_name)
        return found

    def variant_on(self, node_name: str) -> Variant:
        """What is to be allocated on a node that was looked at."""
        return self.node_variants.get(node_name, self.plain)

    def device_resources(self, node_name: str) -> frozenset[str]:
        """The extended resources that devices would serve there."""
        return self.variant_on(node_name).wanted.resources if self.needs else NO_NAMES

    def reaches(self, node: NodeInfo) -> bool:
        """Whether the special claim of an earlier attempt can be used on the node."""
        return self.extended_claim_matches is None or self.extended_claim_matches(node)

    def allocation_of(self, claim: ResourceClaim, node_name: str) -> AllocationResult | None:
        """What was found for a claim on the node."""
        found = self.node_allocations.get(node_name, ())
        for pending, allocation in zip(self.variant_on(node_name).claims, found, strict=False):
            if pending is claim:
                return allocation
        return None


# Ways to do with less that are tried on a node; four optional claims have no more.
REDUCED_MAX: Final = 15


def optional_uids(pod: Pod, claims: Sequence[ResourceClaim]) -> frozenset[str]:
    """The uids of claims that no entry of the Pod insists on."""
    if not any(entry.optional for entry in pod.spec.resource_claims):
        return frozenset()
    needed: set[str | None] = set()
    statuses = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    for entry in pod.spec.resource_claims:
        if not entry.optional:
            needed.add(entry.resource_claim_name or statuses.get(entry.name))
    return frozenset(claim.metadata.uid or "" for claim in claims if claim.metadata.name not in needed)


def reduced(claims: Sequence[ResourceClaim], optional: frozenset[str]) -> Iterator[list[ResourceClaim]]:
    """The claims with fewer and fewer of the optional ones; of equally many, the later entries go first."""
    return islice(_reduced(claims, optional), REDUCED_MAX)


def _reduced(claims: Sequence[ResourceClaim], optional: frozenset[str]) -> Iterator[list[ResourceClaim]]:
    given_up = [claim.metadata.uid for claim in claims if claim.metadata.uid in optional]
    for count in range(len(given_up) - 1, -1, -1):
        for kept in combinations(given_up, count):
            yield [claim for claim in claims if claim.metadata.uid not in optional or claim.metadata.uid in kept]
