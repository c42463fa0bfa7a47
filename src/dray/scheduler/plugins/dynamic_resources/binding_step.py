"""Reserve, PreBind and Unreserve of DynamicResources: devices in flight, and the claims as they are written."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from dray.allocator import claim_label, with_share_ids
from dray.api.errors import APIError
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim
from dray.client.objects import key_of
from dray.framework.cycle_state import CycleState
from dray.framework.events import RESOURCE_CLAIM, Action, ClusterEvent
from dray.framework.status import SUCCESS, Status, error
from dray.runtime.logs import fields
from dray.runtime.metrics import exponential_buckets
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.dynamic_resources import writes
from dray.scheduler.plugins.dynamic_resources.device_filter import NAME
from dray.scheduler.plugins.dynamic_resources.device_state import DeviceState
from dray.scheduler.plugins.dynamic_resources.filter_step import FilterStep
from dray.scheduler.plugins.dynamic_resources.pod_state import ClaimsOfPod, PodState
from dray.scheduler.plugins.dynamic_resources.pre_binder import PreBinder

_log = logging.getLogger(__name__)

STEPS: Final = exponential_buckets(start=1, factor=4, count=12)
ABANDONED: Final = ClusterEvent(RESOURCE_CLAIM, Action.UPDATE, "ResourceClaimAllocationAbandoned")


class BindingStep:
    """Takes the devices of the chosen node, and gives back what a failed attempt has not used."""

    def __init__(
        self, handle: Handle, devices: DeviceState, filter_step: FilterStep, binding_timeout_seconds: float
    ) -> None:
        self._handle = handle
        self._devices = devices
        self._tracker = devices.tracker
        self._writer = devices.writer
        self._filter_step = filter_step
        self._pre_binder = PreBinder(handle, devices, binding_timeout_seconds)
        self._steps = handle.metrics.histogram(
            "dray_allocation_steps", "Allocation search steps of a scheduled Pod, over all nodes.", (), STEPS
        )

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Mark the devices as in flight, so that no other claim gets them; nothing is written yet."""
        own: PodState | None = state.get(NAME)
        if own is None:
            return SUCCESS
        if own.reduced_by_node:
            own = state[NAME] = own.on_node(node_name)
        own.binding.chosen = own.results.variant_on(node_name)
        for claim, _ in own.group.chosen.values():
            self._tracker.share_in_flight(claim, pod.metadata.uid or "")
        if not own.binding.chosen.count:
            return SUCCESS
        allocations = self._filter_step.found_on(own, node_name)
        if allocations is None:
            return error(f"claims were not allocated on node {node_name}")
        allocations = own.results.allocations[node_name] = with_share_ids(own.binding.chosen.claims, allocations)
        for claim, allocation in zip(own.binding.chosen.claims[: own.binding.chosen.count], allocations, strict=False):
            self._tracker.start_in_flight(claim, allocation, pod.metadata.uid or "")
        self._steps.observe(self._filter_step.devices.steps)
        return SUCCESS

    def unreserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Release what was not written; a write with unknown result stays in flight until it is settled."""
        own: PodState | None = state.get(NAME)
        if own is None:
            return
        allocations = own.results.allocations.get(node_name, ())
        for uid, (claim, allocation) in own.group.chosen.items():
            if uid not in own.binding.in_doubt and self._tracker.end_in_flight(claim, pod.metadata.uid or ""):
                self._abandoned(claim, allocation)
        for claim, allocation in zip(own.binding.chosen.claims[: own.binding.chosen.count], allocations, strict=False):
            uid = claim.metadata.uid or ""
            if claim is own.binding.chosen.extended_claim and (own.binding.creating or own.binding.created is not None):
                # Its devices are freed when the claim is deleted.
                continue
            if uid not in own.binding.in_doubt and self._tracker.end_in_flight(claim, pod.metadata.uid or ""):
                self._abandoned(claim, allocation)

    async def unreserve_writes(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Remove the reservations that were written."""
        own: PodState | None = state.get(NAME)
        if own is None:
            return
        for claim in await self._pre_binder.undo(own, pod):
            allocation = own.results.allocation_of(claim, node_name)
            if allocation is not None:
                self._abandoned(claim, allocation)
        extended_claim = own.binding.chosen.extended_claim
        if await self._pre_binder.undo_extended_claim(own, pod) and extended_claim is not None:
            allocation = own.results.allocation_of(extended_claim, node_name)
            if allocation is not None:
                self._abandoned(extended_claim, allocation)
        await self._pre_binder.undo_claim_statuses(own, pod)
        if state.preempted:
            await self._free_claims(own, pod)

    async def _free_claims(self, own: PodState, pod: Pod) -> None:
        """Deallocate the claims of a Pod that was preempted before it was bound: another Pod gets the devices."""
        for claim in own.claims.all:
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

    def has_to_wait(self, own: PodState, node_name: str) -> bool:
        """Return whether devices have binding conditions."""
        return self._pre_binder.has_to_wait(own, node_name)

    async def pre_bind(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Write the claims."""
        own: PodState | None = state.get(NAME)
        if own is None:
            if not self._devices.variants.enabled:
                return SUCCESS
            own = PodState(ClaimsOfPod.of(pod, ()))
        return await self._pre_binder.pre_bind(state, own, pod, node_name)
