"""The plugin's state for one scheduling attempt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice
from typing import Final

from dray.allocator import AllocationOverlay, AllocationQuery
from dray.allocator.inventory import OPTIONAL_NODE_OPERATIONS
from dray.api.document import NamespacedName
from dray.api.pod_claims import reservation_of
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim, ResourceClaimConsumerReference
from dray.framework.node_allocatable import Statuses
from dray.framework.node_info import NodeInfo
from dray.framework.node_selectors import NodeMatcher, compile_selector
from dray.framework.pod_info import NO_NAMES
from dray.framework.status import Status
from dray.scheduler.plugins.dynamic_resources.extended_resources import NOTHING_WANTED, Need, Wanted

_NO_NEEDS: Final[tuple[Need, ...]] = ()
_NO_CLASSES: Final[Mapping[str, str]] = {}


class Variant:
    """What is allocated on nodes that have the same of the Pod's extended resources themselves."""

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
        # The allocator identifies the claims by identity; held-back ones go last.
        self.claims: tuple[ResourceClaim, ...] = (*own, *held) if held else tuple(own)
        # The number of claims that belong to the Pod.
        self.count = len(own)
        # The extended-resource claim, if it must be allocated.
        self.extended_claim = extended_claim
        self.wanted = wanted
        # Why the Pod cannot run on such a node.
        self.rejection = rejection
        # The cached results for the claims; set by the first filter call.
        self.query: AllocationQuery | None = None


class PodState:
    """Created by PreFilter; `claims` are in the order of the Pod's entries."""

    __slots__ = (
        "chosen",
        "claim_statuses",
        "claims",
        "claims_by_uid",
        "claims_of_removed",
        "classes",
        "created",
        "creating",
        "first_pass",
        "group_claims",
        "group_user",
        "holding",
        "in_doubt",
        "in_dry_run",
        "in_group",
        "last_found",
        "leftovers",
        "local_devices",
        "names",
        "needs",
        "node_allocations",
        "node_variants",
        "overlay",
        "pending",
        "placed",
        "plain",
        "pod",
        "reduced",
        "reduced_by_node",
        "released",
        "removed",
        "shared",
        "tracked_out",
        "unavailable",
        "unfit",
        "variants",
        "written",
        "wrote_statuses",
    )

    def __init__(self, pod: Pod, claims: Sequence[ResourceClaim]) -> None:
        self.pod = pod
        # Two entries may name one claim.
        self.claims_by_uid = {claim.metadata.uid: claim for claim in claims}
        claims = self.claims = tuple(self.claims_by_uid.values())
        # The unallocated claims.
        self.pending = tuple([claim for claim in claims if claim.status.allocation is None])
        # Positions and node matchers of allocated claims that cannot be used on every node.
        self.placed = () if len(self.pending) == len(claims) else _placed(claims)
        # Positions of allocated claims that excluded a node.
        self.unavailable: set[int] = set()
        # For nodes without extended resources of their own, and without held-back devices.
        self.plain = Variant(self.pending)
        # The extended resources, the containers' requests, and the device classes that can serve them.
        self.names: tuple[str, ...] = ()
        self.needs = _NO_NEEDS
        self.classes = _NO_CLASSES
        # Extended-resource claims that an interrupted attempt has left; PostFilter deletes them.
        self.leftovers: tuple[ResourceClaim, ...] = ()
        # By the node's own resources and held-back devices; and by node.
        self.variants: dict[tuple[object, ...], Variant] = {}
        self.node_variants: dict[str, Variant] = {}
        # Node -> allocations of the unallocated claims, in order; `found_on` also returns those of batch-filtered
        # nodes.
        self.node_allocations: dict[str, tuple[AllocationResult, ...]] = {}
        # Node -> what the Pod's claims use of it, if anything; and whether PreBind has written it.
        self.claim_statuses: dict[str, Statuses] = {}
        self.wrote_statuses = False
        # Set by Reserve.
        self.chosen = self.plain
        # The created extended-resource claim; whether a creation was started.
        self.created: ResourceClaim | None = None
        self.creating = False
        # Claims whose last write has an unknown result, by uid, at the version that it is conditional on.
        self.in_doubt: dict[str, ResourceClaim] = {}
        # Claims written by PreBind, by uid.
        self.written: dict[str, ResourceClaim] = {}
        # The Pod's group as a consumer of claims, and the uids of the claims that belong to it.
        self.group_user: ResourceClaimConsumerReference | None = None
        self.group_claims: frozenset[str] = frozenset()
        # Whether this is part of a group cycle.
        self.in_group = False
        # Claims, by uid, whose allocation another Pod of the group has chosen in the same group cycle: the claim as
        # it is written, and the allocation. In `claims` they are allocated.
        self.shared: Mapping[str, tuple[ResourceClaim, AllocationResult]] = {}
        # Of a dry run: the allocations without the released claims of removed Pods, and with what nominated Pods hold;
        # the Pods by uid, the claims, and tracked claims that are left out because of nominated Pods.
        self.overlay: AllocationOverlay | None = None
        self.in_dry_run = False
        self.removed: dict[str, NamespacedName] = {}
        # The claims of Pods that are or were removed, by uid of the Pod, and by node the keys of its local devices.
        # Shared by all copies: nothing else changes during the dry runs of an attempt.
        self.claims_of_removed: dict[str, Sequence[ResourceClaim]] = {}
        self.local_devices: dict[str, frozenset[str]] = {}
        self.released: dict[str, ResourceClaim] = {}
        self.tracked_out: list[str] = []
        # Whether nominated Pods hold devices in the overlay.
        self.holding = False
        # The last result with an overlay: node, variant and allocations. It is used again while its devices are free.
        self.last_found: tuple[str, Variant, tuple[AllocationResult, ...]] | None = None
        # What a dry run has searched for in vain: by node, variant and what nominated Pods hold, the sets of claims
        # that were left out; shared by all copies. With fewer of them left out nothing is found either.
        self.unfit: dict[tuple[str, int, frozenset[str]], list[frozenset[str]]] = {}
        # Node -> what was found with nominated Pods; shared by all copies. It must also hold without them.
        self.first_pass: dict[str, tuple[AllocationResult, ...]] = {}
        # The Pod with fewer of its optional claims, best first; and the one used on nodes that lack some of them.
        self.reduced: tuple[PodState, ...] = ()
        self.reduced_by_node: dict[str, PodState] = {}

    def clone(self) -> PodState:
        """Return a copy whose results of filters are its own."""
        copy = PodState.__new__(PodState)
        for name in PodState.__slots__:
            setattr(copy, name, getattr(self, name))
        copy.unavailable = set(self.unavailable)
        copy.node_variants = dict(self.node_variants)
        copy.node_allocations = dict(self.node_allocations)
        copy.claim_statuses = dict(self.claim_statuses)
        copy.reduced = tuple(state.clone() for state in self.reduced)
        copy.reduced_by_node = dict(self.reduced_by_node)
        copy.overlay = None if self.overlay is None else self.overlay.clone()
        copy.removed = dict(self.removed)
        copy.released = dict(self.released)
        copy.tracked_out = list(self.tracked_out)
        return copy

    def on_node(self, node_name: str) -> PodState:
        """Return the state that applies to a filtered node."""
        return self.reduced_by_node.get(node_name, self)

    def found_on(self, node_name: str) -> tuple[AllocationResult, ...] | None:
        """Return the allocations on a feasible node; valid until Reserve, which takes the devices."""
        found = self.node_allocations.get(node_name)
        query = self.variant_on(node_name).query
        if found is None and query is not None:
            found = query.allocations_on(node_name)
        return found

    def user_of(self, claim: ResourceClaim) -> ResourceClaimConsumerReference:
        """Return the consumer for which a claim is reserved: the Pod, or its group."""
        if self.group_user is not None and claim.metadata.uid in self.group_claims:
            return self.group_user
        return reservation_of(self.pod)

    def variant_on(self, node_name: str) -> Variant:
        """Return the variant for a filtered node."""
        return self.node_variants.get(node_name, self.plain)

    def device_resources(self, node_name: str) -> frozenset[str]:
        """Return the extended resources that devices would serve there."""
        return self.variant_on(node_name).wanted.resources if self.needs else NO_NAMES

    def allocation_of(self, claim: ResourceClaim, node_name: str) -> AllocationResult | None:
        """Return the allocation for a claim on the node."""
        found = self.node_allocations.get(node_name) or self.found_on(node_name) or ()
        for pending, allocation in zip(self.variant_on(node_name).claims, found, strict=False):
            if pending is claim:
                return allocation
        return None


def _placed(claims: Sequence[ResourceClaim]) -> tuple[tuple[int, NodeMatcher], ...]:
    return tuple(
        (position, matches)
        for position, claim in enumerate(claims)
        if claim.status.allocation is not None
        for matches in _node_matchers(claim.status.allocation)
    )


def _node_matchers(allocation: AllocationResult) -> Iterator[NodeMatcher]:
    """Yield the conditions that a node must meet for an allocation."""
    if allocation.node_selector is not None:
        yield compile_selector(allocation.node_selector)
    if any(result.skip_node_operations for result in allocation.devices.results):
        yield _declares_optional_operations


def _declares_optional_operations(node: NodeInfo) -> bool:
    return OPTIONAL_NODE_OPERATIONS in node.node.status.declared_features


# Combinations of optional claims that are tried on a node; enough for four claims.
REDUCED_MAX: Final = 15


def has_optional_claims(pod: Pod) -> bool:
    """Return whether an entry of the Pod is optional."""
    for entry in pod.spec.resource_claims:  # noqa: SIM110 - a generator costs twice as much here
        if entry.optional:
            return True
    return False


def optional_uids(pod: Pod, claims: Sequence[ResourceClaim]) -> frozenset[str]:
    """Return the uids of claims that all entries of the Pod declare optional."""
    if not has_optional_claims(pod):
        return frozenset()
    needed: set[str | None] = set()
    statuses = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    for entry in pod.spec.resource_claims:
        if not entry.optional:
            needed.add(entry.resource_claim_name or statuses.get(entry.name))
    return frozenset(claim.metadata.uid or "" for claim in claims if claim.metadata.name not in needed)


def reduced(claims: Sequence[ResourceClaim], optional: frozenset[str]) -> Iterator[list[ResourceClaim]]:
    """Yield the claims with fewer and fewer of the optional ones; later entries are dropped first."""
    return islice(_reduced(claims, optional), REDUCED_MAX)


def _reduced(claims: Sequence[ResourceClaim], optional: frozenset[str]) -> Iterator[list[ResourceClaim]]:
    droppable = [claim.metadata.uid for claim in claims if claim.metadata.uid in optional]
    for count in range(len(droppable) - 1, -1, -1):
        for kept in combinations(droppable, count):
            yield [claim for claim in claims if claim.metadata.uid not in optional or claim.metadata.uid in kept]
