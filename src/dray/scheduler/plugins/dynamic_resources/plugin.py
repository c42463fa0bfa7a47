"""The DynamicResources plugin."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final

from dray.allocator import allocation_score
from dray.api.pod_claims import has_prioritized_list
from dray.api.types.core_v1 import Pod
from dray.api.types.scheduling_v1beta1 import PodGroup
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
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import SCORE_MAX, PlacedMember, PostFilterResult, PreFilterResult
from dray.framework.pod_info import PodInfo, device_resources
from dray.framework.status import SKIP, SUCCESS, Status, unresolvable, unschedulable
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.dynamic_resources.arguments import read_arguments
from dray.scheduler.plugins.dynamic_resources.binding_step import BindingStep
from dray.scheduler.plugins.dynamic_resources.checks import NotReadyError, claims_of
from dray.scheduler.plugins.dynamic_resources.device_filter import NAME
from dray.scheduler.plugins.dynamic_resources.device_state import device_state_of
from dray.scheduler.plugins.dynamic_resources.filter_step import FilterStep
from dray.scheduler.plugins.dynamic_resources.group_claims import GroupClaims
from dray.scheduler.plugins.dynamic_resources.hints import (
    Hints,
    PotentialVictims,
    classic_events,
    classic_names,
    no_keys,
)
from dray.scheduler.plugins.dynamic_resources.pod_state import PodState
from dray.scheduler.plugins.dynamic_resources.preemption import DevicePreemption
from dray.scheduler.plugins.dynamic_resources.preemption_step import PreemptionStep
from dray.scheduler.plugins.dynamic_resources.wanted_devices import WantedDevices

_log = logging.getLogger(__name__)

CANNOT_SCHEDULE: Final = "cannot schedule extended resource claim"

_CLAIM_LEFT: Final = unresolvable(CANNOT_SCHEDULE).with_plugin("DynamicResources")


class DynamicResources:
    """The extension points from PreEnqueue to PreBind; each step is a class of its own."""

    name = NAME

    def __init__(self, given: Mapping[str, Any], handle: Handle) -> None:
        arguments = read_arguments(given, handle.features)
        self._handle = handle
        self._features = handle.features
        devices = self._devices = device_state_of(handle)
        self._tracker = devices.tracker
        self._is_classic = classic_names(handle)
        self._variants = devices.variants
        wanted = WantedDevices(devices.allocator, self._tracker.get, self._is_classic)
        self._hints = Hints(self._tracker.get, self._is_classic, devices.nominees, wanted)
        preemption: DevicePreemption | None = None
        if self._features.enabled("DRAPreemption"):
            preemption = DevicePreemption(
                devices.allocator,
                self._tracker,
                devices.nominees,
                devices.find_pod,
                self._is_classic,
                devices.variants.serves,
            )
        groups = GroupClaims(handle, devices, self._is_classic)
        self._filtering = FilterStep(arguments, handle, devices, groups, self._is_classic)
        self._preempting = PreemptionStep(devices, self._filtering, groups, preemption)
        self._binding = BindingStep(handle, devices, self._filtering, arguments.binding_timeout_seconds)
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
        if self._preempting.preemption is None:
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
        if not self._filtering.are_results_enough():
            return None
        own = device_resources(old)
        requests = (item.resources.requests for item in (*old.spec.init_containers, *old.spec.containers))
        served = (name for names in requests for name in names if name not in own and self._variants.serves(name))
        return None if any(served) else ()

    # --- Filtering. ---

    def pre_filter(self, state: CycleState, pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Skip Pods without devices; reject a Pod whose claims cannot be used now."""
        try:
            own = self._filtering.prepare(state, pod)
        except NotReadyError as why:
            return None, unresolvable(str(why))
        if own is None:
            return None, SKIP
        # Whether they could still be used depends on all that the allocator reads; the Pod is decided anew instead.
        return None, _CLAIM_LEFT if own.leftovers else SUCCESS

    def filter(self, state: CycleState, _pod: Pod, node: NodeInfo) -> Status:
        """Check that allocated claims are available on the node, and that the others are optional or fit there."""
        return self._filtering.filter(state[NAME], state.pod_info, node)

    def filter_all(self, state: CycleState, _pod: Pod, nodes: Sequence[NodeInfo]) -> Sequence[Status]:
        """Check all nodes."""
        return self._filtering.filter_all(state[NAME], state.pod_info, nodes)

    def explain_rejections(self, state: CycleState, _pod: Pod, statuses: MutableMapping[str, Status]) -> None:
        """Explain why devices cannot be allocated on the nodes."""
        own: PodState | None = state.get(NAME)
        if own is not None:
            self._filtering.explain(own, state.pod_info.priority, statuses, self._preempting.preemption)

    def dry_run_signature(self, state: CycleState) -> Hashable | None:
        """Return the requests; None if anything but unallocated claims decides."""
        return self._filtering.devices.signature(state[NAME]) if self._filtering.are_results_enough() else None

    def parts_of(self, node: NodeInfo) -> Iterable[str]:
        """Return the pools of the node's devices."""
        return self._filtering.devices.pools_of(node)

    def parts_version(self) -> tuple[int, int]:
        """Return the versions of devices and of allocations."""
        return self._devices.inventory.version, self._devices.allocations.version

    def parts_changed_since(self, version: tuple[int, int]) -> Iterable[str] | None:
        """Return the pools whose allocations have changed; None if devices have."""
        if version[0] != self._devices.inventory.version:
            return None
        return self._devices.allocations.changed_since(version[1])

    # --- Preemption. ---

    def add_pod(self, state: CycleState, _pod: Pod, other: PodInfo, node: NodeInfo) -> Status:
        """Put back the claims of a removed Pod; hold the devices of a nominated one."""
        return self._preempting.add_pods(state, (other,), node)

    def add_pods(self, state: CycleState, _pod: Pod, others: Sequence[PodInfo], node: NodeInfo) -> Status:
        """Do the same for several Pods."""
        return self._preempting.add_pods(state, others, node)

    def remove_pod(self, state: CycleState, _pod: Pod, other: PodInfo, node: NodeInfo) -> Status:
        """Release the claims of a Pod that nobody else uses."""
        return self._preempting.remove_pods(state, (other,), node)

    def remove_pods(self, state: CycleState, _pod: Pod, others: Sequence[PodInfo], node: NodeInfo) -> Status:
        """Do the same for several Pods."""
        return self._preempting.remove_pods(state, others, node)

    def dry_run_dependencies(self, state: CycleState, removed: Sequence[PodInfo]) -> Sequence[object] | None:
        """Return the claims of the removed Pods; None if other Pods use them, too."""
        return self._preempting.dependencies(state, removed)

    def check_preemption(self, _pod: Pod, node: NodeInfo) -> Status:
        """Let a preemptor wait until the claims of its victims are deallocated."""
        return self._preempting.check_preemption(node)

    def pod_nominated(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Keep the devices that the Pod will get on the node."""
        return self._preempting.pod_nominated(state, pod, node)

    def begin_group_dry_run(self, members: Sequence[PodInfo]) -> None:
        """Prepare for Pods to be hidden."""
        self._preempting.begin_group_dry_run(members)

    def hide_pods(self, pods: Sequence[PodInfo], node: NodeInfo) -> None:
        """Count the claims of Pods on a node that nobody else uses as free."""
        self._preempting.hide_pods(pods, node)

    def show_pods(self, pods: Sequence[PodInfo]) -> None:
        """Count the claims of Pods as allocated again."""
        self._preempting.show_pods(pods)

    def member_nominated(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Keep the devices that are reserved for a member in the dry run."""
        self._preempting.member_nominated(state, pod, node_name)

    def end_group_dry_run(self) -> None:
        """Count all claims as allocated again."""
        self._preempting.end_group_dry_run()

    async def post_filter(
        self, state: CycleState, pod: Pod, _statuses: Mapping[str, Status]
    ) -> tuple[PostFilterResult | None, Status]:
        """Deallocate one unused claim that excluded nodes."""
        own: PodState | None = state.get(NAME)
        return None, unschedulable() if own is None else await self._preempting.free_claim(own, pod)

    async def group_post_filter(
        self, group: PodGroup, members: Sequence[PlacedMember], scheduled: int
    ) -> tuple[Mapping[str, str] | None, Status]:
        """Deallocate claims that the group holds without running."""
        return None, await self._preempting.free_claims_of_group(group, members, scheduled)

    # --- Scoring. ---

    def pre_score(self, state: CycleState, _pod: Pod, _nodes: Sequence[NodeInfo]) -> Status:
        """Skip Pods without unallocated claims that have prioritized lists."""
        own: PodState | None = state.get(NAME)
        if own is None or not any(map(has_prioritized_list, own.claims.pending)):
            return SKIP
        return SUCCESS

    def score(self, state: CycleState, _pod: Pod, node: NodeInfo) -> int:
        """Return 8 for a first alternative down to 1 for an eighth, summed over all lists."""
        own: PodState = state[NAME].on_node(node.name)
        allocations = self._filtering.found_on(own, node.name)
        assert allocations is not None, "only nodes that fit are scored"
        return allocation_score(own.claims.pending, allocations[: len(own.claims.pending)])

    def normalize_scores(self, _state: CycleState, _pod: Pod, scores: list[int]) -> None:
        """Scale so that the worst node has 0 and the best 100; equal scores are all 100."""
        least, most = min(scores), max(scores)
        spread = most - least
        scores[:] = [(score - least) * SCORE_MAX // spread if spread else SCORE_MAX for score in scores]

    # --- Reserving and binding. ---

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Mark the devices as in flight, so that no other claim gets them; nothing is written yet."""
        return self._binding.reserve(state, pod, node_name)

    def unreserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Release what was not written."""
        self._binding.unreserve(state, pod, node_name)

    async def unreserve_writes(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Remove the reservations that were written."""
        await self._binding.unreserve_writes(state, pod, node_name)

    def pre_bind_pre_flight(self, state: CycleState, _pod: Pod, node_name: str) -> Status:
        """Return whether devices have binding conditions; writing claims alone takes no time worth telling."""
        own: PodState | None = state.get(NAME)
        return SUCCESS if own is not None and self._binding.has_to_wait(own, node_name) else SKIP

    async def pre_bind(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Write the claims."""
        return await self._binding.pre_bind(state, pod, node_name)


class Disabled:
    """Used while the gate DynamicResourceAllocation is off: claims are ignored."""

    name = NAME


def make_dynamic_resources(given: Mapping[str, Any], handle: Handle) -> DynamicResources | Disabled:
    """Return the plugin, or its replacement if the feature is disabled."""
    if not handle.features.enabled("DynamicResourceAllocation"):
        return Disabled()
    return DynamicResources(given, handle)
