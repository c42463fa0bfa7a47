"""The plugin's state for one scheduling attempt, by the step that each part belongs to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from typing import Final

import msgspec

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
from dray.framework.status import SUCCESS, Status
from dray.scheduler.plugins.dynamic_resources.extended_resources import NOTHING_WANTED, Need, Wanted


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


@dataclass(frozen=True, slots=True)
class ExtendedRequests:
    """The extended resources that a Pod requests and devices could serve."""

    names: tuple[str, ...] = ()
    # The containers' requests, and the device classes that can serve them, by resource.
    needs: tuple[Need, ...] = ()
    classes: Mapping[str, str] = field(default_factory=dict)


NOTHING_EXTENDED: Final = ExtendedRequests()


@dataclass(frozen=True, slots=True)
class ClaimsOfPod:
    """What a Pod asks for, as it is when the attempt begins."""

    pod: Pod
    # In the order of the Pod's entries, of which two may name one claim.
    all: tuple[ResourceClaim, ...]
    uids: frozenset[str | None]
    # Those without an allocation.
    pending: tuple[ResourceClaim, ...]
    # Positions and node matchers of allocated claims that cannot be used on every node.
    placed: tuple[tuple[int, NodeMatcher], ...]
    extended: ExtendedRequests

    @classmethod
    def of(
        cls, pod: Pod, claims: Iterable[ResourceClaim], extended: ExtendedRequests = NOTHING_EXTENDED
    ) -> ClaimsOfPod:
        """Return the claims of a Pod, each once."""
        by_uid = {claim.metadata.uid: claim for claim in claims}
        distinct = tuple(by_uid.values())
        pending = tuple([claim for claim in distinct if claim.status.allocation is None])
        placed = () if len(pending) == len(distinct) else _placed(distinct)
        return cls(pod, distinct, frozenset(by_uid), pending, placed, extended)


@dataclass(frozen=True, slots=True)
class GroupShare:
    """What a Pod shares with the other Pods of its group."""

    # Whether this is part of a group cycle.
    in_cycle: bool = False
    # The group as a consumer of claims, and the uids of the claims that belong to it.
    user: ResourceClaimConsumerReference | None = None
    claims: frozenset[str] = frozenset()
    # Claims, by uid, whose allocation another Pod of the group has chosen in the same group cycle: the claim as it is
    # written, and the allocation. Among the Pod's claims they are allocated.
    chosen: Mapping[str, tuple[ResourceClaim, AllocationResult]] = field(default_factory=dict)


NO_GROUP: Final = GroupShare()


class Found(msgspec.Struct, frozen=True, gc=False):
    """The claims fit on a node."""

    variant: Variant
    # None if the cached results of the variant's query have them.
    allocations: tuple[AllocationResult, ...] | None = None


class Rejection(msgspec.Struct, frozen=True, gc=False):
    """The claims do not fit on a node."""

    status: Status
    variant: Variant | None = None
    # Positions of allocated claims that cannot be used there.
    unavailable: tuple[int, ...] = ()


class NodeResults:
    """What Filter has found on nodes; changed by the Filter step, and by Reserve for the chosen node."""

    __slots__ = ("allocations", "claim_statuses", "plain", "unavailable", "variants", "variants_by_node")

    def __init__(self, plain: Variant) -> None:
        # For nodes without extended resources of their own, and without held-back devices.
        self.plain = plain
        # By the node's own resources and held-back devices; and by node, where it is not the plain one.
        self.variants: dict[tuple[object, ...], Variant] = {}
        self.variants_by_node: dict[str, Variant] = {}
        # Node -> allocations of the unallocated claims, in order, unless the query has them.
        self.allocations: dict[str, tuple[AllocationResult, ...]] = {}
        # Positions of allocated claims that excluded a node.
        self.unavailable: set[int] = set()
        # Node -> what the Pod's claims use of it, if anything.
        self.claim_statuses: dict[str, Statuses] = {}

    def copy(self) -> NodeResults:
        """Return a copy with results of its own; variants are shared."""
        copy = NodeResults(self.plain)
        copy.variants = self.variants
        copy.variants_by_node = dict(self.variants_by_node)
        copy.allocations = dict(self.allocations)
        copy.unavailable = set(self.unavailable)
        copy.claim_statuses = dict(self.claim_statuses)
        return copy

    def add(self, node_name: str, result: Found | Rejection) -> Status:
        """Keep what later steps need to know about a node; return SUCCESS or the rejection."""
        # The plain one as well once another one is known: the node may have changed.
        if result.variant is not None and (result.variant is not self.plain or self.variants_by_node):
            self.variants_by_node[node_name] = result.variant
        if isinstance(result, Rejection):
            self.unavailable.update(result.unavailable)
            return result.status
        if result.allocations is not None:
            self.allocations[node_name] = result.allocations
        return SUCCESS

    def variant_on(self, node_name: str) -> Variant:
        """Return the variant for a filtered node."""
        return self.variants_by_node.get(node_name, self.plain)

    def found_on(self, node_name: str) -> tuple[AllocationResult, ...] | None:
        """Return the allocations on a feasible node; valid until Reserve, which takes the devices."""
        found = self.allocations.get(node_name)
        query = self.variant_on(node_name).query
        if found is None and query is not None:
            found = query.allocations_on(node_name)
        return found

    def allocation_of(self, claim: ResourceClaim, node_name: str) -> AllocationResult | None:
        """Return the allocation for a claim on the node."""
        found = self.allocations.get(node_name) or self.found_on(node_name) or ()
        for pending, allocation in zip(self.variant_on(node_name).claims, found, strict=False):
            if pending is claim:
                return allocation
        return None


class DryRun:
    """Which Pods are removed from nodes or nominated to them, and what was searched for with them."""

    __slots__ = (
        "claims_of_removed",
        "first_pass",
        "holding",
        "is_active",
        "last_found",
        "local_devices",
        "overlay",
        "own_claims",
        "released",
        "removed",
        "tracked_out",
        "unfit",
    )

    def __init__(self, own_claims: frozenset[str | None]) -> None:
        # The uids of the preemptor's own claims, which are never released.
        self.own_claims = own_claims
        # Whether Pods were removed, so that the victims of preemption are looked for.
        self.is_active = False
        # The allocations without the released claims of removed Pods, and with what nominated Pods hold; the Pods by
        # uid, the claims, and tracked claims that are left out because of nominated Pods.
        self.overlay: AllocationOverlay | None = None
        self.removed: dict[str, NamespacedName] = {}
        self.released: dict[str, ResourceClaim] = {}
        self.tracked_out: list[str] = []
        # Whether nominated Pods hold devices in the overlay.
        self.holding = False
        # The last result with an overlay: node, variant and allocations. It is used again while its devices are free.
        self.last_found: tuple[str, Variant, tuple[AllocationResult, ...]] | None = None
        # The others are shared by all copies: nothing else changes during the dry runs of an attempt. The claims of
        # Pods that are or were removed, by uid of the Pod, and by node the keys of its local devices.
        self.claims_of_removed: dict[str, Sequence[ResourceClaim]] = {}
        self.local_devices: dict[str, frozenset[str]] = {}
        # Searches that found nothing: by node, variant and what nominated Pods hold, the sets of claims that were left
        # out. With fewer of them left out nothing is found either.
        self.unfit: dict[tuple[str, int, frozenset[str]], list[frozenset[str]]] = {}
        # Node -> what was found with nominated Pods. It must also hold without them.
        self.first_pass: dict[str, tuple[AllocationResult, ...]] = {}

    def copy(self) -> DryRun:
        """Return a copy to which Pods can be added, and from which they can be removed."""
        copy = DryRun(self.own_claims)
        copy.is_active, copy.holding, copy.last_found = self.is_active, self.holding, self.last_found
        copy.overlay = None if self.overlay is None else self.overlay.clone()
        copy.removed, copy.released = dict(self.removed), dict(self.released)
        copy.tracked_out = list(self.tracked_out)
        copy.claims_of_removed, copy.local_devices = self.claims_of_removed, self.local_devices
        copy.unfit, copy.first_pass = self.unfit, self.first_pass
        return copy


class Binding:
    """What Reserve has chosen, and what PreBind has written of it."""

    __slots__ = ("chosen", "created", "creating", "in_doubt", "written", "wrote_statuses")

    def __init__(self, chosen: Variant) -> None:
        self.chosen = chosen
        # The created extended-resource claim; whether a creation was started.
        self.created: ResourceClaim | None = None
        self.creating = False
        # Claims whose last write has an unknown result, by uid, at the version that it is conditional on.
        self.in_doubt: dict[str, ResourceClaim] = {}
        # Claims written by PreBind, by uid.
        self.written: dict[str, ResourceClaim] = {}
        # Whether PreBind has written what the claims use of the node.
        self.wrote_statuses = False


class PodState:
    """Created by PreFilter; each part belongs to one step, which alone changes it."""

    __slots__ = ("binding", "claims", "dry_run", "group", "leftovers", "reduced", "reduced_by_node", "results")

    def __init__(self, claims: ClaimsOfPod, group: GroupShare = NO_GROUP, plain: Variant | None = None) -> None:
        plain = plain or Variant(claims.pending)
        self.claims = claims
        self.group = group
        self.results = NodeResults(plain)
        self.dry_run = DryRun(claims.uids)
        self.binding = Binding(plain)
        # Extended-resource claims that an interrupted attempt has left; PostFilter deletes them.
        self.leftovers: tuple[ResourceClaim, ...] = ()
        # The Pod with fewer of its optional claims, best first; and the one used on nodes that lack some of them.
        self.reduced: tuple[PodState, ...] = ()
        self.reduced_by_node: dict[str, PodState] = {}

    def clone(self) -> PodState:
        """Return a copy whose results of filters are its own."""
        copy = PodState(self.claims, self.group, self.results.plain)
        copy.results, copy.dry_run, copy.binding = self.results.copy(), self.dry_run.copy(), self.binding
        copy.leftovers = self.leftovers
        copy.reduced = tuple(state.clone() for state in self.reduced)
        copy.reduced_by_node = dict(self.reduced_by_node)
        return copy

    def on_node(self, node_name: str) -> PodState:
        """Return the state that applies to a filtered node."""
        return self.reduced_by_node.get(node_name, self)

    def user_of(self, claim: ResourceClaim) -> ResourceClaimConsumerReference:
        """Return the consumer for which a claim is reserved: the Pod, or its group."""
        if self.group.user is not None and claim.metadata.uid in self.group.claims:
            return self.group.user
        return reservation_of(self.claims.pod)

    def device_resources(self, node_name: str) -> frozenset[str]:
        """Return the extended resources that devices would serve there."""
        return self.results.variant_on(node_name).wanted.resources if self.claims.extended.needs else NO_NAMES


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
    return any(entry.optional for entry in pod.spec.resource_claims)


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
