"""The Filter step of DynamicResources, for one node and for many at once, and explanations of rejections. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Final

from dray.allocator import (
    AllocationOverlay,
    AllocationQuery,
    Allocator,
    AllocatorError,
    NodeAllocationError,
    Outcome,
    SearchStoppedError,
    StopReason,
)
from dray.allocator.device_policy import DevicePolicy
from dray.api.types.resource_v1 import AllocationResult
from dray.framework.node_info import NodeInfo
from dray.framework.node_statuses import distinct_statuses, names_with
from dray.framework.snapshot import Snapshot
from dray.framework.status import SUCCESS, Code, Status, error, unresolvable
from dray.scheduler.plugins.dynamic_resources.pod_state import DryRun, Found, PodState, Rejection, Variant
from dray.scheduler.plugins.dynamic_resources.variants import Variants

if TYPE_CHECKING:
    from dray.lib.clock import Clock

NAME: Final = "DynamicResources"
CANNOT_ALLOCATE: Final = "cannot allocate all claims"
NOT_AVAILABLE: Final = "resourceclaim not available on the node"
KEPT: Final = "devices are kept for nominated pods"
# Explained rejections that are shared by nodes.
STATUSES_MAX: Final = 1024
# Distinct explanations in one message.
EXPLAINED_MAX: Final = 4

_CANNOT_ALLOCATE: Final = unresolvable(CANNOT_ALLOCATE).with_plugin(NAME)
_NOT_AVAILABLE: Final = unresolvable(NOT_AVAILABLE).with_plugin(NAME)
# By whether the claims fit; None if that is not known.
_STATUSES: Final = {True: SUCCESS, False: _CANNOT_ALLOCATE, None: None}


class DeviceFilter:
    """Finds devices for a Pod's claims on nodes; one for each profile."""

    def __init__(
        self,
        allocator: Allocator,
        variants: Variants,
        clock: Clock,
        timeout_seconds: float,
        policy: DevicePolicy | None = None,
    ) -> None:
        self._allocator = allocator
        # Which of several devices is taken; None means the first.
        self._policy = policy
        self._inventory = allocator.inventory
        self._variants = variants
        self._clock = clock
        # For one node; 0 means no limit.
        self._timeout_seconds = timeout_seconds
        # Search steps of the current attempt, over all nodes.
        self.steps = 0
        # Explained rejections, by whether preempting may help, and reason.
        self._statuses: dict[tuple[bool, str], Status] = {}

    def check(self, own: PodState, node: NodeInfo) -> Found | Rejection:
        """Check that the claims without an allocation fit on the node, and then that the others are available there."""
        found = self._check_new(own, node)
        placed = own.claims.placed
        if placed and isinstance(found, Found) and (away := tuple([at for at, reaches in placed if not reaches(node)])):
            return Rejection(_NOT_AVAILABLE, unavailable=away)
        return found

    def _check_new(self, own: PodState, node: NodeInfo) -> Found | Rejection:
        """Check that the claims without an allocation can be allocated on the node."""
        claims, dry_run = own.claims, own.dry_run
        variant = own.results.plain
        if node.requested.scalars or (claims.extended.needs and node.allocatable.scalars):
            variant = self._variants.variant(own, node)
        if variant.rejection is not None:
            return Rejection(variant.rejection, variant)
        if not variant.count:
            return Found(variant)
        try:
            if dry_run.overlay is not None or dry_run.first_pass:
                found = self._find_with_overlay(dry_run, variant, node)
                return Rejection(_CANNOT_ALLOCATE, variant) if found is None else Found(variant, found)
            query = variant.query or self._query(variant)
            fits = (query.lookup(node.name, node.node) or self._allocate(variant, node)).fits
        except AllocatorError as failure:
            return Rejection(_failed(failure, node, in_dry_run=dry_run.is_active), variant)
        return Found(variant) if fits else Rejection(_CANNOT_ALLOCATE, variant)

    def check_all(
        self, own: PodState, nodes: Sequence[NodeInfo], with_extended_requests: Collection[str]
    ) -> list[Status | None]:
        """Return SUCCESS or the rejection for each node that cached results and counts decide about, and else None.

        Some nodes have Pods with extended resources.
        """
        dry_run = own.dry_run
        if dry_run.overlay is not None or dry_run.first_pass or self._deciding_query(own) is None:
            return [None] * len(nodes)
        found = self._allocator.fits_all(nodes, own.results.plain.claims, self._policy)
        if not with_extended_requests:
            return [_STATUSES[fits] for fits in found]
        return [
            None if node.name in with_extended_requests else _STATUSES[fits]
            for node, fits in zip(nodes, found, strict=True)
        ]

    def _find_with_overlay(
        self, dry_run: DryRun, variant: Variant, node: NodeInfo
    ) -> tuple[AllocationResult, ...] | None:
        """Return the allocations in a dry run, or with nominated Pods on the node.

        What was found with nominated Pods must also be free without them, so it is checked and not searched again.
        """
        state = dry_run.overlay if dry_run.overlay is not None else self._allocator.allocations
        if not dry_run.holding:
            held = dry_run.first_pass.pop(node.name, None)
            if held is not None:
                return held if self._allocator.still_fits(node.node, held, state) else None
        last = dry_run.last_found
        if (
            last is not None
            and last[0] == node.name
            and last[1] is variant
            and self._allocator.still_fits(node.node, last[2], state)
        ):
            found: tuple[AllocationResult, ...] | None = last[2]
        elif dry_run.is_active:
            found = self._search_in_dry_run(dry_run, variant, node)
        else:
            found = self._search_with_overlay(dry_run, variant, node)
        if found is not None:
            dry_run.last_found = node.name, variant, found
            if dry_run.holding:
                dry_run.first_pass[node.name] = found
        return found

    def _search_in_dry_run(
        self, dry_run: DryRun, variant: Variant, node: NodeInfo
    ) -> tuple[AllocationResult, ...] | None:
        """Search, unless a search that left out the same claims or more has found nothing in this dry run."""
        overlay = dry_run.overlay
        if overlay is None:
            return self._search_with_overlay(dry_run, variant, node)
        out = overlay.out
        in_vain = dry_run.unfit.setdefault((node.name, id(variant), overlay.added), [])
        if any(out <= more for more in in_vain):
            return None
        found = self._search_with_overlay(dry_run, variant, node)
        if found is None:
            in_vain.append(out)
        return found

    def _search_with_overlay(
        self, dry_run: DryRun, variant: Variant, node: NodeInfo
    ) -> tuple[AllocationResult, ...] | None:
        overlay = dry_run.overlay
        if overlay is None:
            return self._allocate(variant, node).allocations
        if dry_run.tracked_out:
            # Devices that are free already, with nominated Pods and without them, are preferred.
            for uid in dry_run.tracked_out:
                overlay.put_back(uid)
            found = self._allocate(variant, node, overlay).allocations
            for uid in dry_run.tracked_out:
                overlay.take_out(uid)
            if found is not None:
                return found
        return self._allocate(variant, node, overlay).allocations

    def _query(self, variant: Variant) -> AllocationQuery:
        variant.query = self._allocator.query(variant.claims, self._policy)
        return variant.query

    def _allocate(self, variant: Variant, node: NodeInfo, overlay: AllocationOverlay | None = None) -> Outcome:
        outcome = self._allocator.find(
            node.node, variant.claims, expired=self._deadline(), overlay=overlay, policy=self._policy
        )
        self.steps += outcome.steps
        return outcome

    def _deadline(self) -> Callable[[], bool]:
        if not self._timeout_seconds:
            return _never
        monotonic = self._clock.monotonic
        deadline = monotonic() + self._timeout_seconds
        return lambda: monotonic() >= deadline

    def signature(self, own: PodState) -> Hashable | None:
        """Return what the decisions for the Pod depend on; None if it is more than its unallocated claims."""
        # What other Pods of the group have chosen in this cycle is known to their states alone.
        return None if own.group.chosen else self._deciding_query(own)

    def _deciding_query(self, own: PodState) -> AllocationQuery | None:
        """Return the cached results that decide for the Pod, on nodes without device plugins; None if more decides."""
        if own.claims.placed or own.reduced or own.claims.extended.needs or not own.results.plain.count:
            return None
        try:
            return own.results.plain.query or self._query(own.results.plain)
        except AllocatorError:
            return None

    def pools_of(self, node: NodeInfo) -> Iterable[str]:
        """Return the pools of the devices that the node can use."""
        return self._inventory.node_view(node.node, self._allocator.gates).pool_keys

    def explain_rejections(
        self,
        own: PodState,
        snapshot: Snapshot,
        statuses: MutableMapping[str, Status],
        may_help: Callable[[NodeInfo], bool],
    ) -> None:
        """Add to the statuses why devices cannot be allocated; equivalent nodes are explained once.

        Where preempting others may help, the code is Unschedulable.
        """
        # Those of nodes that have not changed are known from an earlier Pod.
        own_statuses = [status for status in distinct_statuses(statuses) if status.plugin == NAME]
        explained: dict[Hashable, str] = {status.detail: status.detail for status in own_statuses if status.detail}
        plain = [item for item in own_statuses if item.reasons is _CANNOT_ALLOCATE.reasons and not item.detail]
        for name in names_with(statuses, plain):
            node = snapshot.get(name)
            assert node is not None, f"{name} was filtered and is not in the snapshot"
            detail = self._detail(own.results.variant_on(name), node, explained)
            statuses[name] = self._status(may_help(node), detail)

    def _status(self, may_help: bool, detail: str) -> Status:  # noqa: FBT001 - part of the key
        """Return an explained rejection; most nodes have the same, also in the attempts of other Pods."""
        key = may_help, detail
        found = self._statuses.get(key)
        if found is None:
            if len(self._statuses) >= STATUSES_MAX:
                self._statuses.clear()
            code = Code.UNSCHEDULABLE if may_help else _CANNOT_ALLOCATE.code
            found = self._statuses[key] = Status(code, _CANNOT_ALLOCATE.reasons, NAME, detail=detail)
        return found

    def _detail(self, variant: Variant, node: NodeInfo, explained: dict[Hashable, str]) -> str:
        """Return the explanation for a node, which is kept with its cached result; empty beyond some."""
        cached = None if variant.query is None else variant.query.result_on(node.name)
        if cached is not None and cached.reason:
            if cached.reason in explained.values() or len(explained) < EXPLAINED_MAX:
                explained.setdefault(cached.reason, cached.reason)
                return cached.reason
            return ""
        key = self._equivalence_key(node, variant)
        detail = explained.get(key)
        if detail is None and len(explained) < EXPLAINED_MAX:
            # Nothing is missing if what is free is kept for nominated Pods.
            detail = explained[key] = self._allocator.explain(node.node, variant.claims).summary or KEPT
        if cached is not None and detail is not None:
            cached.reason = detail
        return detail or ""

    def _equivalence_key(self, node: NodeInfo, variant: Variant) -> Hashable:
        """Return what determines the explanation for a node, as far as it is cheap to compute."""
        requests = self._allocator.plan(variant.claims).requests
        groups = [alternative.group for request in requests for alternative in request.alternatives]
        view = self._inventory.node_view(node.node, self._allocator.gates)
        matches = tuple([view.matches(group) for group in groups])
        unusable_pools = len(view.incomplete), len(view.invalid)
        return id(variant), view.device_count(), view.blocked(self._allocator.allocations), matches, unusable_pools


def _never() -> bool:
    return False


def _failed(failure: AllocatorError, node: NodeInfo, *, in_dry_run: bool) -> Status:
    if isinstance(failure, SearchStoppedError):
        if failure.reason is StopReason.DEADLINE and not in_dry_run:
            return error(f"node {node.name}: timed out trying to allocate devices: {failure}")
        detail = f"search given up after {failure.steps} steps"
        return Status(_CANNOT_ALLOCATE.code, _CANNOT_ALLOCATE.reasons, detail=detail)
    if isinstance(failure, NodeAllocationError):
        return unresolvable(str(failure))
    return error(str(failure))
