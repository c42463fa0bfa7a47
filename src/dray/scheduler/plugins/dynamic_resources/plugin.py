"""The DynamicResources plugin."""

from __future__ import annotations

import logging
import random
from collections.abc import Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final

import msgspec

from dray.allocator import allocation_score, claim_label, with_share_ids
from dray.allocator.device_policy import FRAGMENTATION, make_policy
from dray.api.errors import APIError
from dray.api.pod_claims import has_prioritized_list
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.objects import key_of
from dray.framework.cycle_state import CycleState
from dray.framework.events import (
    ASSIGNED_POD,
    DEVICE_CLASS,
    DEVICE_TAINT_RULE,
    NODE,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
    UNSCHEDULED_POD,
    Action,
    ClusterEvent,
    EventKeys,
    EventRegistration,
    Hint,
)
from dray.framework.node_allocatable import NODE_ALLOCATABLE_RESOURCES
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import SCORE_MAX, PlacedMember, PostFilterResult, PreFilterResult
from dray.framework.pod_info import PodInfo, device_resources
from dray.framework.status import SKIP, SUCCESS, Status, error, unresolvable, unschedulable
from dray.runtime.logs import fields
from dray.runtime.metrics import exponential_buckets
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.dynamic_resources import writes
from dray.scheduler.plugins.dynamic_resources.arguments import read_arguments
from dray.scheduler.plugins.dynamic_resources.checks import NotReadyError, check_requests, claims_of
from dray.scheduler.plugins.dynamic_resources.device_filter import NAME, DeviceFilter
from dray.scheduler.plugins.dynamic_resources.device_state import device_state_of
from dray.scheduler.plugins.dynamic_resources.group_claims import DEALLOCATED, GroupClaims
from dray.scheduler.plugins.dynamic_resources.hidden_claims import HiddenClaims
from dray.scheduler.plugins.dynamic_resources.hints import (
    Hints,
    PotentialVictims,
    classic_events,
    classic_names,
    no_keys,
)
from dray.scheduler.plugins.dynamic_resources.node_allocatable import NodeAllocatable
from dray.scheduler.plugins.dynamic_resources.pod_state import PodState, optional_uids, reduced
from dray.scheduler.plugins.dynamic_resources.pre_binder import PreBinder
from dray.scheduler.plugins.dynamic_resources.preemption import SETTLING, DevicePreemption
from dray.scheduler.plugins.dynamic_resources.variants import extended_names
from dray.scheduler.plugins.dynamic_resources.wanted_devices import WantedDevices

_log = logging.getLogger(__name__)

CANNOT_SCHEDULE: Final = "cannot schedule extended resource claim"
DELETED: Final = "deletion of ResourceClaim completed"
STEPS: Final = exponential_buckets(start=1, factor=4, count=12)
ABANDONED: Final = ClusterEvent(RESOURCE_CLAIM, Action.UPDATE, "ResourceClaimAllocationAbandoned")

_CLAIM_LEFT: Final = unresolvable(CANNOT_SCHEDULE).with_plugin("DynamicResources")


class DynamicResources:
    """Implements the extension points from PreEnqueue to PreBind."""

    name = NAME

    def __init__(self, given: Mapping[str, Any], handle: Handle) -> None:
        arguments = read_arguments(given, handle.features)
        self._handle = handle
        self._features = handle.features
        devices = self._devices = device_state_of(handle)
        self._inventory = devices.inventory
        self._tracker = devices.tracker
        self._writer = devices.writer
        self._is_classic = classic_names(handle)
        self._variants = devices.variants
        wanted = WantedDevices(devices.allocator, self._tracker.get, self._is_classic)
        self._hints = Hints(self._tracker.get, self._is_classic, devices.nominees, wanted)
        self._preemption: DevicePreemption | None = None
        self._hidden: HiddenClaims | None = None
        if self._features.enabled("DRAPreemption"):
            self._preemption = DevicePreemption(
                devices.allocator,
                self._tracker,
                devices.nominees,
                devices.find_pod,
                self._is_classic,
                devices.variants.serves,
            )
        self._steps = handle.metrics.histogram(
            "dray_allocation_steps", "Allocation search steps of a scheduled Pod, over all nodes.", (), STEPS
        )
        policy = make_policy(arguments.device_policy, devices.packing.model)
        # A policy that learns must see the Pods, with or without the plugin that scores nodes.
        self._learns = arguments.device_policy == FRAGMENTATION
        if self._learns:
            devices.learn_packing()
        self._filter = DeviceFilter(
            devices.allocator, devices.variants, handle.clock, arguments.filter_timeout_seconds, policy
        )
        self._pre_binder = PreBinder(handle, devices, arguments.binding_timeout_seconds)
        self._group_claims = GroupClaims(handle, devices, self._is_classic)
        self._node_allocatable: NodeAllocatable | None = None
        if self._features.enabled(NODE_ALLOCATABLE_RESOURCES):
            self._node_allocatable = NodeAllocatable(devices.allocator)
        handle.extended_resources.register(devices)

    # --- Queueing. ---

    def pre_enqueue(self, pod: Pod) -> Status:
        """Check that the Pod's claims exist, belong to it, and are not being deleted."""
        try:
            claims_of(pod, self._tracker.get, self._is_classic)
        except NotReadyError as why:
            # Of a group that does not exist, GangScheduling says that the Pod waits for it.
            return SUCCESS if self._handle.waits_for_group(pod) else unresolvable(str(why))
        return SUCCESS

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Return the events that provide devices, claims or nodes."""
        nodes = Action.ADD | Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_ALLOCATABLE
        if self._features.enabled("DRAOptionalNodeOperations"):
            nodes |= Action.UPDATE_NODE_DECLARED_FEATURE
        return (
            EventRegistration(ClusterEvent(NODE, nodes)),
            EventRegistration(
                ClusterEvent(RESOURCE_CLAIM, Action.ADD | Action.UPDATE | Action.DELETE),
                self._hints.claim_changed,
                EventKeys(self._hints.keys_of_pod, self._hints.keys_of_claim),
            ),
            EventRegistration(
                ClusterEvent(UNSCHEDULED_POD, Action.UPDATE_POD_GENERATED_RESOURCE_CLAIM), self._hints.pod_changed
            ),
            *classic_events(self._features, self._hints.keys_of_pod),
            EventRegistration(
                ClusterEvent(DEVICE_CLASS, Action.ADD | Action.UPDATE | Action.DELETE), self._hints.class_changed
            ),
            EventRegistration(
                ClusterEvent(ASSIGNED_POD, Action.DELETE),
                self._plugin_devices_freed,
                EventKeys(no_keys, self._freed_to),
            ),
            *self._victim_events(),
            # A deleted slice may have made its pool invalid.
            EventRegistration(ClusterEvent(RESOURCE_SLICE, Action.ADD | Action.UPDATE | Action.DELETE)),
            EventRegistration(ClusterEvent(DEVICE_TAINT_RULE, Action.ADD | Action.UPDATE | Action.DELETE)),
        )

    def _victim_events(self) -> tuple[EventRegistration, ...]:
        if self._preemption is None:
            return ()
        victims = PotentialVictims(self._devices.nominees, self._devices.find_pod)
        assigned = EventKeys(victims.keys_of_pod, victims.keys_of_change)
        shared = EventKeys(victims.keys_of_pod, victims.keys_of_claim)
        return (
            EventRegistration(ClusterEvent(ASSIGNED_POD, Action.ADD), victims.pod_assigned, assigned),
            EventRegistration(ClusterEvent(RESOURCE_CLAIM, Action.UPDATE), victims.user_left, shared),
        )

    def _plugin_devices_freed(self, _pod: Pod, old: Pod | None, _new: Pod | None) -> Hint:
        return Hint.SKIP if self._freed_to(old, None) is not None else Hint.QUEUE

    def _freed_to(self, old: Pod | None, _new: Pod | None) -> tuple[str, ...] | None:
        """Return None (all Pods) if the deleted Pod used a device plugin that a driver replaced; else no keys.

        Also if devices use resources of their nodes, which the Pod may have freed.
        """
        if old is None:
            return ()
        if not self._are_results_enough():
            return None
        own = device_resources(old)
        requests = (item.resources.requests for item in (*old.spec.init_containers, *old.spec.containers))
        served = (name for names in requests for name in names if name not in own and self._variants.serves(name))
        return None if any(served) else ()

    # --- Filtering. ---

    def pre_filter(self, state: CycleState, pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Skip Pods without devices; reject a Pod whose claims cannot be used now."""
        scalars = state.pod_info.requests.scalars
        if not pod.spec.resource_claims and not scalars:
            return None, SKIP
        names = extended_names(state.pod_info.requests) if scalars and self._variants.enabled else ()
        try:
            claims = claims_of(pod, self._tracker.get, self._is_classic)
            optional = optional_uids(pod, claims)
            if optional:
                claims = [
                    claim for claim in claims if claim.metadata.uid not in optional or self._is_usable(pod, claim)
                ]
            leftovers = self._tracker.extended_resource_claims_of(pod.metadata.uid or "") if names else ()
            if not claims and not leftovers and not any(map(self._variants.serves, names)):
                return None, SKIP
            in_group = pod.spec.scheduling_group is not None
            own = self._group_claims.state_of(state, pod, claims) if in_group else PodState(pod, claims)
            state[NAME] = own
            self._filter.steps = 0
            if self._node_allocatable is not None:
                state.claim_statuses = lambda node_name: own.on_node(node_name).claim_statuses.get(node_name, ())
            for position, claim in enumerate(own.claims):
                self._check(own, position, claim)
        except NotReadyError as why:
            return None, unresolvable(str(why))
        if self._learns:
            self._devices.packing.observe(state.pod_info, own.claims)
            self._devices.packing.refresh(self._handle.snapshot)
        own.leftovers = leftovers
        if names:
            state.device_resources = lambda node_name: own.on_node(node_name).device_resources(node_name)
            self._variants.prepare(own, names)
        if optional:
            own.reduced = tuple(self._reduced(own, optional, names))
        # Whether they could still be used depends on all that the allocator reads; the Pod is decided anew instead.
        return None, _CLAIM_LEFT if leftovers else SUCCESS

    def _is_usable(self, pod: Pod, claim: ResourceClaim) -> bool:
        try:
            self._check(PodState(pod, ()), 0, claim)
        except NotReadyError:
            return False
        return True

    def _reduced(self, own: PodState, optional: frozenset[str], names: tuple[str, ...]) -> Iterator[PodState]:
        """Yield the Pod without some of its optional claims."""
        for claims in reduced(own.claims, optional):
            less = PodState(own.pod, claims)
            if names:
                self._variants.prepare(less, names)
            yield less

    def _check(self, own: PodState, position: int, claim: ResourceClaim) -> None:
        if claim.status.allocation is not None:
            conflicting_claims = self._tracker.conflicting_claims(claim, claim.status.allocation)
            if conflicting_claims:
                own.unavailable.add(position)
                others = ", ".join(conflicting_claims)
                raise NotReadyError(f"devices of resource claim {claim_label(claim)} are also allocated to {others}")
            return
        if self._tracker.is_in_flight(claim):
            raise NotReadyError(f"resource claim {claim_label(claim)} is in the process of being allocated")
        check_requests(claim, self._inventory.device_class, self._features)

    def filter(self, state: CycleState, _pod: Pod, node: NodeInfo) -> Status:
        """Check that allocated claims are available on the node, and that the others are optional or fit there."""
        own: PodState = state[NAME]
        if self._node_allocatable is None and not own.reduced:
            return self._filter.filter(own, node)
        status = self._filter_devices(own, state.pod_info, node)
        if status is not SUCCESS and own.reduced and status.is_rejected:
            for reduced_state in own.reduced:
                reduced_state.overlay, reduced_state.holding = own.overlay, own.holding
                reduced_state.in_dry_run = own.in_dry_run
                if self._filter_devices(reduced_state, state.pod_info, node) is SUCCESS:
                    own.reduced_by_node[node.name] = reduced_state
                    return SUCCESS
        return status

    def filter_all(self, state: CycleState, pod: Pod, nodes: Sequence[NodeInfo]) -> Sequence[Status]:
        """Check all nodes, with a fast path for those whose results are cached."""
        own: PodState = state[NAME]
        if own.reduced or not self._are_results_enough():
            return [self.filter(state, pod, node) for node in nodes]
        return self._filter.filter_all(own, nodes, self._handle.snapshot.with_extended_requests)

    def _filter_devices(self, own: PodState, info: PodInfo, node: NodeInfo) -> Status:
        status = self._filter.filter(own, node)
        if status is SUCCESS and self._node_allocatable is not None and self._node_allocatable.is_used:
            return self._node_allocatable.check(own, info, node)
        return status

    def _are_results_enough(self) -> bool:
        """Return whether cached results of the allocator decide about nodes."""
        return self._node_allocatable is None or not self._node_allocatable.is_used

    def explain_rejections(self, state: CycleState, _pod: Pod, statuses: MutableMapping[str, Status]) -> None:
        """Explain why devices cannot be allocated on the nodes."""
        own: PodState | None = state.get(NAME)
        if own is None:
            return
        priority, preemption = state.pod_info.priority, self._preemption
        self._filter.explain_rejections(
            own,
            self._handle.snapshot,
            statuses,
            lambda node: preemption is not None and preemption.may_help(priority, node),
        )

    # --- Preemption and nominations. ---

    def add_pod(self, state: CycleState, _pod: Pod, other: PodInfo, node: NodeInfo) -> Status:
        """Put back the claims of a removed Pod; hold the devices of a nominated one."""
        return self.add_pods(state, _pod, (other,), node)

    def add_pods(self, state: CycleState, _pod: Pod, others: Sequence[PodInfo], node: NodeInfo) -> Status:
        """Do the same for several Pods."""
        if self._preemption is not None:
            self._preemption.add_pods(state[NAME], others, node)
        return SUCCESS

    def remove_pod(self, state: CycleState, _pod: Pod, other: PodInfo, node: NodeInfo) -> Status:
        """Release the claims of a Pod that nobody else uses."""
        return self.remove_pods(state, _pod, (other,), node)

    def remove_pods(self, state: CycleState, _pod: Pod, others: Sequence[PodInfo], node: NodeInfo) -> Status:
        """Do the same for several Pods."""
        if self._preemption is not None:
            self._preemption.remove_pods(state[NAME], state.pod_info.priority, others, node)
        return SUCCESS

    def dry_run_signature(self, state: CycleState) -> Hashable | None:
        """Return the requests; None if anything but unallocated claims decides."""
        return self._filter.signature(state[NAME]) if self._are_results_enough() else None

    def parts_of(self, node: NodeInfo) -> Iterable[str]:
        """Return the pools of the node's devices."""
        return self._filter.pools_of(node)

    def parts_version(self) -> tuple[int, int]:
        """Return the versions of devices and of allocations."""
        return self._inventory.version, self._devices.allocations.version

    def parts_changed_since(self, version: tuple[int, int]) -> Iterable[str] | None:
        """Return the pools whose allocations have changed; None if devices have."""
        if version[0] != self._inventory.version:
            return None
        return self._devices.allocations.changed_since(version[1])

    def dry_run_dependencies(self, state: CycleState, removed: Sequence[PodInfo]) -> Sequence[object] | None:
        """Return the claims of the removed Pods; None if other Pods use them, too."""
        return () if self._preemption is None else self._preemption.dependencies(state[NAME], removed)

    def check_preemption(self, _pod: Pod, node: NodeInfo) -> Status:
        """Let a preemptor wait until the claims of its victims are deallocated."""
        if self._preemption is not None and self._preemption.is_settling(node):
            return unschedulable(SETTLING)
        return SUCCESS

    def pod_nominated(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Keep the devices that the Pod will get on the node."""
        if self._preemption is None:
            return SUCCESS
        own: PodState = state[NAME]
        # The best alternatives that are possible without all the victims.
        own.last_found = None
        status = self.filter(state, pod, node)
        own.first_pass.pop(node.name, None)
        if status is SUCCESS:
            self._preemption.record(own, pod, node.node)
        return status

    def begin_group_dry_run(self, members: Sequence[PodInfo]) -> None:
        """Prepare for Pods to be hidden."""
        if self._preemption is not None:
            self._preemption.hides_pods = True
            self._hidden = HiddenClaims(self._preemption, self._devices.allocations, self._devices.nominees, members)

    def hide_pods(self, pods: Sequence[PodInfo], node: NodeInfo) -> None:
        """Count the claims of Pods on a node that nobody else uses as free."""
        if self._hidden is not None:
            self._hidden.hide(pods, node)

    def show_pods(self, pods: Sequence[PodInfo]) -> None:
        """Count the claims of Pods as allocated again."""
        if self._hidden is not None:
            self._hidden.show(pods)

    def member_nominated(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Keep the devices that are reserved for a member in the dry run."""
        if self._hidden is not None:
            self._hidden.keep(state.get(NAME), pod, node_name)

    def end_group_dry_run(self) -> None:
        """Count all claims as allocated again."""
        if self._preemption is not None and self._hidden is not None:
            self._hidden.end()
            self._hidden = None
            self._preemption.hides_pods = False

    async def post_filter(
        self, state: CycleState, pod: Pod, _statuses: Mapping[str, Status]
    ) -> tuple[PostFilterResult | None, Status]:
        """Deallocate one unused claim that excluded nodes; its update requeues the Pod.

        Without such a claim there is no reason to report.
        """
        own: PodState | None = state.get(NAME)
        if own is None:
            return None, unschedulable()
        if own.leftovers:
            return None, await self._delete_leftovers(own.leftovers, pod)
        # Seeded, so that the choice is reproducible; random, so that it is not always the same claim.
        order = random.Random(f"{pod.metadata.uid} {pod.metadata.resource_version}")  # noqa: S311 - not for security
        candidates = [own.claims[position] for position in sorted(own.unavailable)]
        order.shuffle(candidates)
        for claim in candidates:
            if not writes.may_free(claim, pod) or self._devices.is_used_by_scheduled_pod(claim, pod):
                continue
            try:
                if not await self._writer.free_for(claim, pod):
                    continue
            except APIError as failure:
                return None, error(str(failure))
            # What was freed may suffice, so nothing is preempted in this attempt.
            return None, unresolvable(DEALLOCATED)
        return None, unschedulable()

    async def group_post_filter(
        self, group: PodGroup, members: Sequence[PlacedMember], scheduled: int
    ) -> tuple[Mapping[str, str] | None, Status]:
        """Deallocate claims that the group holds without running."""
        states: list[tuple[Pod, PodState]] = []
        for member in members:
            pod = member.state.pod_info.pod
            own: PodState | None = member.state.get(NAME)
            if own is not None and own.leftovers:
                return None, await self._delete_leftovers(own.leftovers, pod)
            if pod.spec.resource_claims:
                states.append((pod, member.state.get(NAME) or self._group_claims.state_without_attempt(pod)))
        return None, await self._group_claims.free(group, states, scheduled)

    async def _delete_leftovers(self, claims: Sequence[ResourceClaim], pod: Pod) -> Status:
        try:
            removed = [await self._devices.extended_claims.remove(claim, pod) for claim in claims]
        except APIError as failure:
            return error(str(failure))
        except writes.ClaimChangedError as why:
            return unresolvable(str(why))
        return unresolvable(DELETED) if all(removed) else unschedulable()

    # --- Scoring. ---

    def pre_score(self, state: CycleState, _pod: Pod, _nodes: Sequence[NodeInfo]) -> Status:
        """Skip Pods without unallocated claims that have prioritized lists."""
        own: PodState | None = state.get(NAME)
        if own is None or not any(map(has_prioritized_list, own.pending)):
            return SKIP
        return SUCCESS

    def score(self, state: CycleState, _pod: Pod, node: NodeInfo) -> int:
        """Return 8 for a first alternative down to 1 for an eighth, summed over all lists."""
        own: PodState = state[NAME].on_node(node.name)
        allocations = self._found_on(own, node.name)
        assert allocations is not None, "only nodes that fit are scored"
        return allocation_score(own.pending, allocations[: len(own.pending)])

    def normalize_scores(self, _state: CycleState, _pod: Pod, scores: list[int]) -> None:
        """Scale so that the worst node has 0 and the best 100; equal scores are all 100."""
        least, most = min(scores), max(scores)
        spread = most - least
        scores[:] = [(score - least) * SCORE_MAX // spread if spread else SCORE_MAX for score in scores]

    # --- Reserving and binding. ---

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Mark the devices as in flight, so that no other claim gets them; nothing is written yet."""
        own: PodState | None = state.get(NAME)
        if own is None:
            return SUCCESS
        if own.reduced_by_node:
            own = state[NAME] = own.on_node(node_name)
        own.chosen = own.variant_on(node_name)
        for claim, _ in own.shared.values():
            self._tracker.share_in_flight(claim, pod.metadata.uid or "")
        if not own.chosen.count:
            return SUCCESS
        allocations = self._found_on(own, node_name)
        if allocations is None:
            return error(f"claims were not allocated on node {node_name}")
        allocations = own.node_allocations[node_name] = with_share_ids(own.chosen.claims, allocations)
        for claim, allocation in zip(own.chosen.claims[: own.chosen.count], allocations, strict=False):
            self._tracker.start_in_flight(claim, allocation, pod.metadata.uid or "")
        self._steps.observe(self._filter.steps)
        return SUCCESS

    def _found_on(self, own: PodState, node_name: str) -> tuple[AllocationResult, ...] | None:
        """Return the allocations on a feasible node; searched for if it is known from another Pod to be feasible."""
        found = own.found_on(node_name)
        if found is None:
            node = self._handle.snapshot.get(node_name)
            if node is not None and self._filter.filter(own, node) is SUCCESS:
                return own.found_on(node_name)
        return found

    def unreserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Release what was not written; a write with unknown result stays in flight until it is settled."""
        own: PodState | None = state.get(NAME)
        if own is None:
            return
        allocations = own.node_allocations.get(node_name, ())
        for uid, (claim, allocation) in own.shared.items():
            if uid not in own.in_doubt and self._tracker.end_in_flight(claim, pod.metadata.uid or ""):
                self._abandoned(claim, allocation)
        for claim, allocation in zip(own.chosen.claims[: own.chosen.count], allocations, strict=False):
            uid = claim.metadata.uid or ""
            if claim is own.chosen.extended_claim and (own.creating or own.created is not None):
                # Its devices are freed when the claim is deleted.
                continue
            if uid not in own.in_doubt and self._tracker.end_in_flight(claim, pod.metadata.uid or ""):
                self._abandoned(claim, allocation)

    async def unreserve_writes(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Remove the reservations that were written."""
        own: PodState | None = state.get(NAME)
        if own is None:
            return
        for claim in await self._pre_binder.undo(own, pod):
            allocation = own.allocation_of(claim, node_name)
            if allocation is not None:
                self._abandoned(claim, allocation)
        extended_claim = own.chosen.extended_claim
        if await self._pre_binder.undo_extended_claim(own, pod) and extended_claim is not None:
            allocation = own.allocation_of(extended_claim, node_name)
            if allocation is not None:
                self._abandoned(extended_claim, allocation)
        await self._pre_binder.undo_claim_statuses(own, pod)
        if state.preempted:
            await self._free_claims(own, pod)

    async def _free_claims(self, own: PodState, pod: Pod) -> None:
        """Deallocate the claims of a Pod that was preempted before it was bound: another Pod gets the devices."""
        for claim in own.claims:
            current = self._tracker.get(key_of(claim))
            if current is None or current.metadata.uid != claim.metadata.uid or not writes.may_free(current, pod):
                continue
            if not self._devices.is_used_by_scheduled_pod(current, pod):
                try:
                    await self._writer.free_for(current, pod)
                except APIError as failure:
                    # The preemptor finds the Pod again, with or without a node, and preempts it again.
                    _log.info("not deallocated", extra=fields(claim=claim_label(claim), error=str(failure)))

    def _abandoned(self, claim: ResourceClaim, allocation: AllocationResult) -> None:
        """Requeue the Pods that wait for the claim or its devices; there is no other event for them."""
        status = msgspec.structs.replace(claim.status, allocation=allocation)
        self._handle.notify(ABANDONED, msgspec.structs.replace(claim, status=status), claim)

    def pre_bind_pre_flight(self, state: CycleState, _pod: Pod, node_name: str) -> Status:
        """Return whether devices have binding conditions; writing claims alone takes no time worth telling."""
        own: PodState | None = state.get(NAME)
        return SUCCESS if own is not None and self._pre_binder.has_to_wait(own, node_name) else SKIP

    async def pre_bind(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Write the claims."""
        own: PodState | None = state.get(NAME)
        if own is None:
            if not self._variants.enabled:
                return SUCCESS
            own = PodState(pod, ())
        return await self._pre_binder.pre_bind(state, own, pod, node_name)


class Disabled:
    """Used while the gate DynamicResourceAllocation is off: claims are ignored."""

    name = NAME


def make_dynamic_resources(given: Mapping[str, Any], handle: Handle) -> DynamicResources | Disabled:
    """Return the plugin, or its replacement if the feature is disabled."""
    if not handle.features.enabled("DynamicResourceAllocation"):
        return Disabled()
    return DynamicResources(given, handle)
