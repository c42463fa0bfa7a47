"""Writes a Pod's claims before it is bound, waits until their devices are ready, and undoes what was written."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from dray.allocator import claim_label
from dray.api.errors import APIError
from dray.api.pod_claims import is_reserved_for
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim
from dray.client.objects import key_of
from dray.framework.status import SUCCESS, Status, error, unschedulable
from dray.runtime.logs import fields
from dray.runtime.metrics import exponential_buckets
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.dynamic_resources.conditions import (
    Readiness,
    Verdict,
    has_conditions,
    judge,
    seconds_left,
)
from dray.scheduler.plugins.dynamic_resources.loop import ClaimWriter
from dray.scheduler.plugins.dynamic_resources.pod_state import PodState
from dray.scheduler.plugins.dynamic_resources.tracker import ClaimTracker
from dray.scheduler.plugins.dynamic_resources.writes import ClaimChangedError, InDoubtError

_log = logging.getLogger(__name__)

CONDITIONS_PENDING: Final = "BindingConditionsPending"
_NORMAL: Final = "Normal"
_WAIT_BUCKETS: Final = exponential_buckets(start=0.001, factor=2, count=20)


class PreBinder:
    """PreBind and its undoing."""

    def __init__(
        self, handle: Handle, tracker: ClaimTracker, writer: ClaimWriter, binding_timeout_seconds: float
    ) -> None:
        self._handle = handle
        self._clock = handle.clock
        self._tracker = tracker
        self._writer = writer
        self._timeout = binding_timeout_seconds
        features = handle.features
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

    async def pre_bind(self, own: PodState, pod: Pod, node_name: str) -> Status:
        """Write every claim that is not reserved yet, then wait for devices that need time."""
        for claim in own.claims:
            status = await self._bind_claim(own, claim, own.allocation_of(claim, node_name), pod)
            if status is not SUCCESS:
                return status
        return await self._wait_for_conditions(own, pod, node_name) if self._conditions else SUCCESS

    async def _bind_claim(
        self, own: PodState, claim: ResourceClaim, allocation: AllocationResult | None, pod: Pod
    ) -> Status:
        if allocation is None and is_reserved_for(claim, pod):
            return SUCCESS
        if allocation is not None and self._conditions:
            allocation = msgspec.structs.replace(
                allocation, allocation_timestamp=self._clock.now().replace(microsecond=0)
            )
        try:
            written = await self._writer.take(claim, allocation, pod)
        except InDoubtError as doubt:
            if allocation is not None:
                own.in_doubt[claim.metadata.uid or ""] = doubt.claim
            return error(str(doubt))
        except (ClaimChangedError, APIError) as failure:
            return error(str(failure))
        own.written[claim.metadata.uid or ""] = written
        self._tracker.assume(written)
        # Only now: between the two the devices would look free.
        self._tracker.end_in_flight(claim, pod.metadata.uid or "")
        return SUCCESS if allocation is None else await self._make_sure(written, pod)

    async def _make_sure(self, claim: ResourceClaim, pod: Pod) -> Status:
        """Nobody else may have given the same devices away before; if so, this claim gives way."""
        allocation = claim.status.allocation
        assert allocation is not None
        try:
            rivals = await self._writer.rivals(claim)
            if not rivals:
                return SUCCESS
            await self._writer.give_up(claim, allocation, pod)
        except TimeoutError:
            return error(f"claim {claim_label(claim)}: its allocation was not seen in time")
        except APIError as failure:
            return error(str(failure))
        return error(f"devices for claim {claim_label(claim)} were allocated to {', '.join(rivals)} at the same time")

    # --- Binding conditions. ---

    async def _wait_for_conditions(self, own: PodState, pod: Pod, node_name: str) -> Status:
        waiting = [claim for claim in map(self._current, own.claims) if claim is not None]
        waiting = [claim for claim in waiting if has_conditions(claim.status.allocation)]
        for claim in waiting:
            started = self._clock.monotonic()
            verdict = await self._until_ready(claim, pod, node_name)
            self._outcomes.labels(verdict.readiness.value).inc()
            self._waits.labels(verdict.readiness.value).observe(self._clock.monotonic() - started)
            if verdict.readiness is not Readiness.READY:
                return await self._not_ready(claim, verdict, pod)
        return SUCCESS

    async def _until_ready(self, claim: ResourceClaim, pod: Pod, node_name: str) -> Verdict:
        told = False
        while True:
            current = self._current(claim)
            if current is None or current.status.allocation is None:
                return Verdict(Readiness.FAILED)
            now = self._clock.now()
            verdict = judge(current, now, self._timeout)
            if verdict.readiness is not Readiness.WAITING:
                return verdict
            if not told:
                told = True
                text = f"Waiting for binding conditions for device {verdict.device} on node {node_name}."
                self._handle.record(pod, _NORMAL, CONDITIONS_PENDING, text)
            await self._writer.next_change(claim, seconds_left(current.status.allocation, now, self._timeout))

    async def _not_ready(self, claim: ResourceClaim, verdict: Verdict, pod: Pod) -> Status:
        """The devices are given back, so that others can be tried."""
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

    async def undo(self, own: PodState, pod: Pod) -> tuple[ResourceClaim, ...]:
        """Take reservations back and settle what is in doubt; returns the claims whose devices are free again."""
        for claim in own.written.values():
            try:
                await self._writer.unreserve(claim, pod)
            except APIError as failure:
                # The entry is harmless: the Pod will be tried again, or the claim controller removes it.
                _log.info("not unreserved", extra=fields(claim=claim_label(claim), error=str(failure)))
        settled = []
        for claim in own.pending:
            doubt = own.in_doubt.pop(claim.metadata.uid or "", None)
            if doubt is None:
                continue
            await self._writer.settle(doubt)
            self._tracker.end_in_flight(claim, pod.metadata.uid or "")
            settled.append(claim)
        return tuple(settled)
