"""PreFilter and Filter of DynamicResources: the claims of a Pod, and the nodes on which they fit."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence

from dray.allocator import claim_label
from dray.allocator.device_policy import FRAGMENTATION, make_policy
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim
from dray.framework.cycle_state import CycleState
from dray.framework.node_allocatable import NODE_ALLOCATABLE_RESOURCES
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, Status
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.dynamic_resources.arguments import Arguments
from dray.scheduler.plugins.dynamic_resources.checks import IsClassic, NotReadyError, check_requests, claims_of
from dray.scheduler.plugins.dynamic_resources.device_filter import NAME, DeviceFilter
from dray.scheduler.plugins.dynamic_resources.device_state import DeviceState
from dray.scheduler.plugins.dynamic_resources.group_claims import GroupClaims
from dray.scheduler.plugins.dynamic_resources.node_allocatable import NodeAllocatable
from dray.scheduler.plugins.dynamic_resources.pod_state import NO_GROUP, ClaimsOfPod, PodState, optional_uids, reduced
from dray.scheduler.plugins.dynamic_resources.preemption import DevicePreemption
from dray.scheduler.plugins.dynamic_resources.variants import extended_names


class FilterStep:
    """Finds devices on nodes, with fewer claims where the Pod declares some optional."""

    def __init__(
        self, arguments: Arguments, handle: Handle, devices: DeviceState, groups: GroupClaims, is_classic: IsClassic
    ) -> None:
        self._handle = handle
        self._devices = devices
        self._tracker = devices.tracker
        self._variants = devices.variants
        self._groups = groups
        self._is_classic = is_classic
        policy = make_policy(arguments.device_policy, devices.packing.model)
        # A policy that learns must see the Pods, with or without the plugin that scores nodes.
        self._learns = arguments.device_policy == FRAGMENTATION
        if self._learns:
            devices.learn_packing()
        self.devices = DeviceFilter(
            devices.allocator, devices.variants, handle.clock, arguments.filter_timeout_seconds, policy
        )
        self._node_allocatable: NodeAllocatable | None = None
        if handle.features.enabled(NODE_ALLOCATABLE_RESOURCES):
            self._node_allocatable = NodeAllocatable(devices.allocator)

    # --- PreFilter. ---

    def prepare(self, state: CycleState, pod: Pod) -> PodState | None:
        """Keep the Pod's claims in the cycle state; return None if it has no devices.

        Raises `NotReadyError` if a claim cannot be used now.
        """
        scalars = state.pod_info.requests.scalars
        if not pod.spec.resource_claims and not scalars:
            return None
        names = extended_names(state.pod_info.requests) if scalars and self._variants.enabled else ()
        claims = claims_of(pod, self._tracker.get, self._is_classic)
        optional = optional_uids(pod, claims)
        if optional:
            claims = [claim for claim in claims if claim.metadata.uid not in optional or self._is_usable(claim)]
        leftovers = self._tracker.extended_resource_claims_of(pod.metadata.uid or "") if names else ()
        if not claims and not leftovers and not any(map(self._variants.serves, names)):
            return None
        own = state[NAME] = self._state(state, pod, claims, names)
        self.devices.steps = 0
        if self._node_allocatable is not None:
            state.claim_statuses = lambda node_name: own.on_node(node_name).results.claim_statuses.get(node_name, ())
        for position, claim in enumerate(own.claims.all):
            if self._conflicting_claims(claim):
                own.results.unavailable.add(position)
            self._check(claim)
        if self._learns:
            self._devices.packing.observe(state.pod_info, own.claims.all)
            self._devices.packing.refresh(self._handle.snapshot)
        own.leftovers = leftovers
        if names:
            state.device_resources = lambda node_name: own.on_node(node_name).device_resources(node_name)
        if optional:
            own.reduced = tuple(self._reduced(own.claims, optional))
        return own

    def _state(self, state: CycleState, pod: Pod, claims: Sequence[ResourceClaim], names: tuple[str, ...]) -> PodState:
        group = NO_GROUP
        if pod.spec.scheduling_group is not None:
            group, claims = self._groups.shared_by(state, pod, claims)
        return self._variants.state_of(ClaimsOfPod.of(pod, claims, self._variants.requests_of(pod, names)), group)

    def _is_usable(self, claim: ResourceClaim) -> bool:
        try:
            self._check(claim)
        except NotReadyError:
            return False
        return True

    def _reduced(self, claims: ClaimsOfPod, optional: frozenset[str]) -> Iterator[PodState]:
        """Yield the Pod without some of its optional claims."""
        for fewer in reduced(claims.all, optional):
            yield self._variants.state_of(ClaimsOfPod.of(claims.pod, fewer, claims.extended))

    def _conflicting_claims(self, claim: ResourceClaim) -> Sequence[str]:
        """Return other claims that have the devices of this one."""
        allocation = claim.status.allocation
        return () if allocation is None else self._tracker.conflicting_claims(claim, allocation)

    def _check(self, claim: ResourceClaim) -> None:
        if claim.status.allocation is not None:
            if conflicting_claims := self._conflicting_claims(claim):
                others = ", ".join(conflicting_claims)
                raise NotReadyError(f"devices of resource claim {claim_label(claim)} are also allocated to {others}")
            return
        if self._tracker.is_in_flight(claim):
            raise NotReadyError(f"resource claim {claim_label(claim)} is in the process of being allocated")
        check_requests(claim, self._devices.inventory.device_class, self._handle.features)

    # --- Filter. ---

    def filter(self, own: PodState, info: PodInfo, node: NodeInfo) -> Status:
        """Check that allocated claims are available on the node, and that the others are optional or fit there."""
        status = self._filter(own, info, node)
        if status is not SUCCESS and own.reduced and status.is_rejected:
            for fewer in own.reduced:
                # Their copies are made with that of the Pod.
                fewer.dry_run.overlay, fewer.dry_run.holding = own.dry_run.overlay, own.dry_run.holding
                fewer.dry_run.is_active = own.dry_run.is_active
                if self._filter(fewer, info, node) is SUCCESS:
                    own.reduced_by_node[node.name] = fewer
                    return SUCCESS
        return status

    def _filter(self, own: PodState, info: PodInfo, node: NodeInfo) -> Status:
        status = own.results.add(node.name, self.devices.check(own, node))
        if status is SUCCESS and self._node_allocatable is not None and self._node_allocatable.is_used:
            return self._node_allocatable.check(own, info, node)
        return status

    def filter_all(self, own: PodState, info: PodInfo, nodes: Sequence[NodeInfo]) -> Sequence[Status]:
        """Check all nodes: most by their cached results, the others one by one."""
        if own.reduced or not self.are_results_enough():
            return [self.filter(own, info, node) for node in nodes]
        statuses = self.devices.check_all(own, nodes, self._handle.snapshot.with_extended_requests)
        return [
            status if status is not None else self.filter(own, info, node)
            for node, status in zip(nodes, statuses, strict=True)
        ]

    def are_results_enough(self) -> bool:
        """Return whether cached results of the allocator decide about nodes."""
        return self._node_allocatable is None or not self._node_allocatable.is_used

    def found_on(self, own: PodState, node_name: str) -> tuple[AllocationResult, ...] | None:
        """Return the allocations on a feasible node; searched for if it is known from another Pod to be feasible."""
        found = own.results.found_on(node_name)
        if found is None:
            node = self._handle.snapshot.get(node_name)
            if node is not None and own.results.add(node_name, self.devices.check(own, node)) is SUCCESS:
                return own.results.found_on(node_name)
        return found

    def explain(
        self,
        own: PodState,
        priority: int,
        statuses: MutableMapping[str, Status],
        preemption: DevicePreemption | None,
    ) -> None:
        """Explain why devices cannot be allocated on the nodes."""
        self.devices.explain_rejections(
            own,
            self._handle.snapshot,
            statuses,
            lambda node: preemption is not None and preemption.may_help(priority, node),
        )
