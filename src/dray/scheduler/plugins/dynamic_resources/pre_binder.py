"""The PreBind step of DynamicResources: writes claims, waits for binding conditions, and undoes the writes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from dray.allocator import claim_label
from dray.api.errors import APIError
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim, ResourceClaimConsumerReference
from dray.client.objects import key_of
from dray.framework.cycle_state import CycleState
from dray.framework.node_allocatable import NODE_ALLOCATABLE_RESOURCES
from dray.framework.status import SUCCESS, Status, error, outdated, unschedulable
from dray.runtime.logs import fields
from dray.runtime.metrics import exponential_buckets
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.dynamic_resources import writes
from dray.scheduler.plugins.dynamic_resources.binding_conditions import (
    Readiness,
    Verdict,
    evaluate,
    has_conditions,
    seconds_left,
)
from dray.scheduler.plugins.dynamic_resources.choice_recorder import ChoiceRecorder
from dray.scheduler.plugins.dynamic_resources.claim_status_writer import ClaimStatusWriter
from dray.scheduler.plugins.dynamic_resources.class_metrics import classes_given
from dray.scheduler.plugins.dynamic_resources.device_state import DeviceState
from dray.scheduler.plugins.dynamic_resources.extended_resources import status_of
from dray.scheduler.plugins.dynamic_resources.pod_state import PodState
from dray.scheduler.plugins.dynamic_resources.writes import (
    ClaimChangedError,
    DevicesTakenError,
    InDoubtError,
)

_log = logging.getLogger(__name__)

CONDITIONS_PENDING: Final = "BindingConditionsPending"
_NORMAL: Final = "Normal"
_WAIT_BUCKETS: Final = exponential_buckets(start=0.001, factor=2, count=20)


class PreBinder:
    """Runs PreBind and undoes it."""

    def __init__(self, handle: Handle, cluster: DeviceState, binding_timeout_seconds: float) -> None:
        self._handle = handle
        self._clock = handle.clock
        self._tracker = cluster.tracker
        self._writer = cluster.writer
        self._extended_claim = cluster.extended_claims
        self._timeout = binding_timeout_seconds
        # By uid of claims that Pods of a group are writing.
        self._claim_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        features = handle.features
        self._claim_statuses: ClaimStatusWriter | None = None
        if features.enabled(NODE_ALLOCATABLE_RESOURCES):
            self._claim_statuses = ClaimStatusWriter(handle.client)
        self._conditions = features.enabled("DRADeviceBindingConditions") and features.enabled(
            "DRAResourceClaimDeviceStatus"
        )
        self._outcomes = handle.metrics.counter(
            "scheduler_dra_bindingconditions_allocations_total", "Allocations with binding conditions.", ("status",)
        )
        self._waits = handle.metrics.histogram(
            "scheduler_dra_bindingconditions_wait_duration_seconds",
            "Time until binding conditions were met, failed or timed out.",
            ("status",),
            _WAIT_BUCKETS,
        )
        self._choices = ChoiceRecorder(handle)
        self._claim_waits = handle.metrics.histogram(
            "dray_claim_wait_seconds",
            "Time from a claim's creation to its allocation, by class.",
            ("class",),
            _WAIT_BUCKETS,
        )

    async def pre_bind(self, state: CycleState, own: PodState, pod: Pod, node_name: str) -> Status:
        """Write every claim that is not reserved yet, then wait for devices that need time."""
        for claim in own.claims.all:
            status = await self._bind_claim(own, claim, own.results.allocation_of(claim, node_name), pod)
            if status is not SUCCESS:
                return status
        if own.binding.chosen.wanted.requests:
            status = await self._bind_extended_claim(own, pod, node_name)
            if status is not SUCCESS:
                return status
        if self._conditions:
            status = await self._wait_for_conditions(own, pod, node_name)
            if status is not SUCCESS:
                return status
        status = await self._write_claim_statuses(state, own, node_name)
        return status if status is not SUCCESS else await self._write_pod_status(state, own, pod)

    async def _write_claim_statuses(self, state: CycleState, own: PodState, node_name: str) -> Status:
        """Write what the claims use of the node, or remove what an earlier attempt has left."""
        statuses = own.results.claim_statuses.get(node_name, ())
        if self._claim_statuses is None:
            return SUCCESS
        if not statuses and not own.claims.pod.status.node_allocatable_resource_claim_statuses:
            return SUCCESS
        own.binding.wrote_statuses = True
        try:
            state.pod_version = await self._claim_statuses.write(own.claims.pod, statuses)
        except APIError as failure:
            return error(str(failure))
        return SUCCESS

    async def _bind_extended_claim(self, own: PodState, pod: Pod, node_name: str) -> Status:
        """Create the claim of extended resources, and write it like the others."""
        planned = own.binding.chosen.extended_claim
        assert planned is not None
        allocation = own.results.allocation_of(planned, node_name)
        assert allocation is not None, "reserved without an allocation"
        own.binding.creating = True
        try:
            own.binding.created = await self._extended_claim.create(pod, planned)
        except (ClaimChangedError, APIError) as failure:
            return error(str(failure))
        # Both uids are in flight for a moment, so that the devices are never free.
        self._tracker.start_in_flight(own.binding.created, allocation, pod.metadata.uid or "")
        self._tracker.end_in_flight(planned, pod.metadata.uid or "")
        return await self._bind_claim(own, own.binding.created, allocation, pod)

    async def _write_pod_status(self, state: CycleState, own: PodState, pod: Pod) -> Status:
        """Write the Pod's status before it is bound, so that a bound Pod always has it."""
        wanted = None
        if own.binding.created is not None:
            wanted = status_of(own.binding.created.metadata.name or "", own.binding.chosen.wanted)
        if not self._extended_claim.needs_status(pod, wanted):
            return SUCCESS
        try:
            state.pod_version = await self._extended_claim.declare(pod, wanted)
        except (ClaimChangedError, APIError) as failure:
            return error(str(failure))
        return SUCCESS

    async def _bind_claim(
        self, own: PodState, claim: ResourceClaim, allocation: AllocationResult | None, pod: Pod
    ) -> Status:
        uid = claim.metadata.uid or ""
        if uid in own.group.chosen:
            claim, allocation = own.group.chosen[uid]
        if allocation is None:
            status = await self._check_earlier_allocation(claim)
            if status is not SUCCESS or writes.is_reserved_by(claim, own.user_of(claim)):
                return status
        if allocation is not None and self._conditions:
            allocation = msgspec.structs.replace(
                allocation, allocation_timestamp=self._clock.now().replace(microsecond=0)
            )
        written = await self._write_claim(own, claim, allocation)
        if isinstance(written, Status):
            return written
        own.binding.written[uid] = written
        is_observed = self._tracker.assume(written)
        # After `assume`, so that the devices are never free.
        self._tracker.end_in_flight(claim, pod.metadata.uid or "")
        if allocation is None:
            return SUCCESS
        self._observe_wait(written, allocation)
        self._choices.record(pod, written, allocation)
        return await self._check_conflicts(written, pod, is_observed=is_observed)

    async def _write_claim(
        self, own: PodState, claim: ResourceClaim, allocation: AllocationResult | None
    ) -> ResourceClaim | Status:
        user = own.user_of(claim)
        try:
            if allocation is None:
                return await self._writer.reserve(claim, user)
            if own.group.in_cycle:
                return await self._take_in_group(claim, allocation, user)
            return await self._writer.take(claim, allocation, user)
        except DevicesTakenError as taken:
            return outdated(str(taken))
        except InDoubtError as doubt:
            own.binding.in_doubt[claim.metadata.uid or ""] = doubt.claim
            return error(str(doubt))
        except (ClaimChangedError, APIError) as failure:
            return error(str(failure))

    async def _take_in_group(
        self, claim: ResourceClaim, allocation: AllocationResult, user: ResourceClaimConsumerReference
    ) -> ResourceClaim:
        """Let one Pod of the group write the allocation; the others find it, and add their reservations together."""
        async with self._write_lock(claim):
            current = self._current(claim)
            if current is None or not writes.same_devices(current.status.allocation, allocation):
                return await self._writer.take(claim, allocation, user)
        return await self._writer.reserve(current, user)

    def _write_lock(self, claim: ResourceClaim) -> AbstractAsyncContextManager[None]:
        """Return a lock if other Pods of the group are to write the claim, too.

        None is added while one writes it: Pods share an allocation from the group cycle on, before their bindings.
        """
        if not self._tracker.is_shared_in_flight(claim):
            return nullcontext()
        return self._claim_locks.setdefault(claim.metadata.uid or "", asyncio.Lock())

    def _observe_wait(self, claim: ResourceClaim, allocation: AllocationResult) -> None:
        created = claim.metadata.creation_timestamp
        if created is not None:
            seconds = max((self._clock.now() - created).total_seconds(), 0.0)
            for name in classes_given(claim, allocation):
                self._claim_waits.labels(name).observe(seconds)

    async def _check_earlier_allocation(self, claim: ResourceClaim) -> Status:
        """Check that no other claim has the devices which an earlier attempt, perhaps in doubt, allocated to this one.

        PreFilter looks at the same, but perhaps before the informer has observed the allocation and those before it.
        The claim stays allocated: a binding of the earlier attempt may have succeeded, which PostFilter looks up.
        """
        if claim.status.allocation is None:
            return SUCCESS
        try:
            conflicting_claims = await self._writer.conflicting_claims(claim)
        except TimeoutError:
            return _not_observed(claim)
        return _conflict(claim, conflicting_claims) if conflicting_claims else SUCCESS

    async def _check_conflicts(self, claim: ResourceClaim, pod: Pod, *, is_observed: bool) -> Status:
        """Check that no other claim was allocated the devices earlier; otherwise deallocate this claim."""
        allocation = claim.status.allocation
        assert allocation is not None
        try:
            conflicting_claims = await self._writer.conflicting_claims(claim, is_observed=is_observed)
            if not conflicting_claims:
                return SUCCESS
            await self._writer.give_up(claim, allocation, pod)
        except TimeoutError:
            return _not_observed(claim)
        except APIError as failure:
            return error(str(failure))
        return _conflict(claim, conflicting_claims)

    # --- Binding conditions. ---

    def has_to_wait(self, own: PodState, node_name: str) -> bool:
        """Return whether devices have conditions that must be met before the Pod is bound."""
        if not self._conditions:
            return False
        for allocation in own.results.allocations.get(node_name, ()):
            if has_conditions(allocation):
                return True
        # Those with an earlier allocation.
        for claim in own.claims.all:
            if claim.status.allocation is not None and has_conditions(claim.status.allocation):
                return True
        return False

    async def _wait_for_conditions(self, own: PodState, pod: Pod, node_name: str) -> Status:
        claims = own.claims.all if own.binding.created is None else (*own.claims.all, own.binding.created)
        waiting: list[ResourceClaim] = []
        for claim in claims:
            current = self._current(claim)
            if current is not None and has_conditions(current.status.allocation):
                waiting.append(current)
        for claim in waiting:
            started = self._clock.monotonic()
            verdict = await self._until_ready(claim, pod, node_name)
            self._outcomes.labels(verdict.readiness.value).inc()
            self._waits.labels(verdict.readiness.value).observe(self._clock.monotonic() - started)
            if verdict.readiness is not Readiness.READY:
                return await self._not_ready(claim, verdict, pod)
        return SUCCESS

    async def _until_ready(self, claim: ResourceClaim, pod: Pod, node_name: str) -> Verdict:
        recorded = False
        cancelled = self._handle.binding_cancellation(pod.metadata.uid or "")
        while True:
            if cancelled is not None and cancelled.is_set():
                return Verdict(Readiness.FAILED)
            current = self._current(claim)
            if current is None or current.status.allocation is None:
                return Verdict(Readiness.FAILED)
            now = self._clock.now()
            verdict = evaluate(current, now, self._timeout)
            if verdict.readiness is not Readiness.WAITING:
                return verdict
            if not recorded:
                recorded = True
                text = f"Waiting for binding conditions for device {verdict.device} on node {node_name}."
                self._handle.record(pod, _NORMAL, CONDITIONS_PENDING, text)
            seconds = seconds_left(current.status.allocation, now, self._timeout)
            await self._writer.next_change(claim, seconds, cancelled)

    async def _not_ready(self, claim: ResourceClaim, verdict: Verdict, pod: Pod) -> Status:
        """Deallocate the devices, so that others can be tried."""
        what = "timed out" if verdict.readiness is Readiness.TIMED_OUT else "failed"
        current = self._current(claim)
        if current is not None and current.status.allocation is not None:
            try:
                await self._writer.give_up(current, current.status.allocation, pod)
            except APIError as failure:
                return error(str(failure))
        return unschedulable(f"claim {claim_label(claim)}: binding of device {verdict.device} {what}")

    def _current(self, claim: ResourceClaim) -> ResourceClaim | None:
        current = self._tracker.get(key_of(claim))
        return current if current is not None and current.metadata.uid == claim.metadata.uid else None

    # --- Undoing. ---

    async def undo_claim_statuses(self, own: PodState, pod: Pod) -> None:
        """Remove from the Pod's status what its claims use of the node."""
        if own.binding.wrote_statuses and self._claim_statuses is not None:
            await self._claim_statuses.clear(pod)
            own.binding.wrote_statuses = False

    async def undo(self, own: PodState, pod: Pod) -> tuple[ResourceClaim, ...]:
        """Remove reservations and settle unknown writes; return the claims whose devices are free again."""
        extended_claim = None if own.binding.created is None else own.binding.created.metadata.uid
        for uid, claim in own.binding.written.items():
            if uid == extended_claim or uid in own.group.claims:
                # The reservation of a group is for its other Pods, too.
                continue
            try:
                await self._writer.unreserve(claim, pod)
            except APIError as failure:
                # The entry is harmless: the Pod is retried, or the claim controller removes it.
                _log.info("not unreserved", extra=fields(claim=claim_label(claim), error=str(failure)))
        settled = []
        for claim in own.claims.all:
            doubt = own.binding.in_doubt.pop(claim.metadata.uid or "", None)
            if doubt is None:
                continue
            await self._writer.settle(doubt)
            self._tracker.end_in_flight(claim, pod.metadata.uid or "")
            settled.append(claim)
        return tuple(settled)

    async def undo_extended_claim(self, own: PodState, pod: Pod) -> bool:
        """Delete the extended-resource claim; return whether its devices are free again."""
        if own.binding.created is None and not own.binding.creating:
            return False
        claim = own.binding.created if own.binding.created is not None else own.binding.chosen.extended_claim
        assert claim is not None
        removed = True
        try:
            removed = await self._extended_claim.remove_until_answered(claim, pod)
        except (APIError, ClaimChangedError) as failure:
            # The next attempt finds it, or the claim controller deletes it with the Pod.
            _log.info("not deleted", extra=fields(claim=claim_label(claim), error=str(failure)))
            doubt = own.binding.in_doubt.pop(claim.metadata.uid or "", None)
            if doubt is not None:
                await self._writer.settle(doubt)
        self._tracker.end_in_flight(claim, pod.metadata.uid or "")
        return removed


def _not_observed(claim: ResourceClaim) -> Status:
    return error(f"claim {claim_label(claim)}: its allocation was not seen in time")


def _conflict(claim: ResourceClaim, conflicting_claims: Sequence[str]) -> Status:
    return outdated(str(writes.taken_by(claim, conflicting_claims)))
