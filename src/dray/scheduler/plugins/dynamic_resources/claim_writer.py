"""Writes claims, and waits until the informer observes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from dray.allocator import claim_label
from dray.allocator.pools import pool_key
from dray.api.errors import APIError, ConflictError, DeviceInUseError, is_not_executed, is_refusal
from dray.api.pod_claims import FINALIZER
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim, ResourceClaimConsumerReference
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.errors import ignore_not_found
from dray.client.interface import Client
from dray.client.objects import is_older, key_of
from dray.client.resources import PODS, RESOURCE_CLAIMS
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.tasks import first_completed
from dray.scheduler.plugins.claim_batches import Change, ClaimBatches
from dray.scheduler.plugins.dynamic_resources import writes
from dray.scheduler.plugins.dynamic_resources.tracker import ClaimTracker
from dray.scheduler.plugins.dynamic_resources.writes import ClaimChangedError, DevicesTakenError, InDoubtError

_log = logging.getLogger(__name__)

S = TypeVar("S")
T = TypeVar("T")

# client-go's RetryOnConflict: five attempts, 10 ms apart.
ATTEMPTS_MAX: Final = 5
RETRY_SECONDS: Final = 0.01
# The interval of retries while the server does not respond.
SETTLE_SECONDS: Final = 1.0
# The informer observes a write within milliseconds, unless the watch has an outage.
OBSERVE_SECONDS_MAX: Final = 30.0
# How often the holder of a device is looked for, every 10 ms; it was written before the refusal.
HOLDER_POLLS_MAX: Final = 100


class _PendingWrite(msgspec.Struct):
    """A claim that is being allocated and reserved."""

    claim: ResourceClaim
    allocation: AllocationResult | None
    user: ResourceClaimConsumerReference
    # As last read or written.
    current: ResourceClaim
    # The version on which a write with unknown result is conditional.
    doubt: ResourceClaim | None = None


class ClaimWriter:
    """Writes claims; each write is conditional on the version or uid that the decision was based on."""

    def __init__(self, client: Client, clock: Clock, tracker: ClaimTracker) -> None:
        self._client = client
        self._clock = clock
        self._tracker = tracker
        self._batches: ClaimBatches[ResourceClaim] = ClaimBatches(self._write_users, ClaimChangedError)

    # --- Allocating and reserving. ---

    async def take(
        self, claim: ResourceClaim, allocation: AllocationResult | None, user: ResourceClaimConsumerReference
    ) -> ResourceClaim:
        """Write the allocation, if there is one to write, and the reservation for a Pod or a PodGroup.

        Raises `ClaimChangedError`, `DevicesTakenError` or an `APIError` if the claim was not written, and
        `InDoubtError` if the result is unknown.
        """
        if others := self._tracker.conflicting_claims(claim, allocation):
            # Another scheduler was faster, and the informer has observed it since the attempt began.
            raise writes.taken_by(claim, others)
        pending = _PendingWrite(claim, allocation, user, claim)
        failure: APIError | None = None
        for attempt in range(ATTEMPTS_MAX):
            try:
                if attempt:
                    await self._clock.sleep(RETRY_SECONDS)
                    await self._read_current(pending)
                return await self._write(pending)
            except APIError as error:
                failure = error
                if isinstance(error, DeviceInUseError):
                    break
                if is_refusal(error) and not isinstance(error, ConflictError):
                    break
        assert failure is not None
        if pending.doubt is not None:
            raise InDoubtError(pending.doubt, failure) from failure
        if isinstance(failure, DeviceInUseError):
            # Not before the holder is observed: the next attempt would choose the same device.
            await self._await_holder(claim, allocation)
            raise DevicesTakenError(failure.message) from failure
        raise failure

    async def _read_current(self, pending: _PendingWrite) -> None:
        current = await ignore_not_found(self._client.get(RESOURCE_CLAIMS, *_key(pending.claim)))
        if pending.doubt is not None and (current is None or _version(current) != _version(pending.doubt)):
            # The write succeeded and is in the current version, or can no longer succeed.
            pending.doubt = None
        if current is not None:
            # Whatever follows, the informer may not have observed a write that succeeded without a response.
            self._tracker.assume(current)
        if current is None:
            raise ClaimChangedError(f"claim {claim_label(pending.claim)} got deleted in the meantime")
        writes.check_unchanged(pending.claim, current, pending.allocation)
        pending.current = current

    async def _write(self, pending: _PendingWrite) -> ResourceClaim:
        if writes.is_done(pending.current, pending.user):
            return pending.current
        if pending.allocation is not None and FINALIZER not in pending.current.metadata.finalizers:
            pending.current = await self._client.update(RESOURCE_CLAIMS, writes.protected(pending.current))
            pending.doubt = None
        before, pending.doubt = pending.doubt, pending.current
        wanted = writes.taken(pending.current, pending.allocation, pending.user)
        try:
            written = await self._client.update_status(RESOURCE_CLAIMS, wanted)
        except DeviceInUseError:
            # Not a statement about the version: an earlier write can still succeed.
            pending.doubt = before
            raise
        except ConflictError:
            pending.doubt = None
            raise
        except APIError as error:
            if is_not_executed(error):
                pending.doubt = before
            raise
        pending.doubt = None
        return written

    async def reserve(self, claim: ResourceClaim, user: ResourceClaimConsumerReference) -> ResourceClaim:
        """Add a Pod or PodGroup to reservedFor of an allocated claim, in one write with others of this scheduler.

        Raises `ClaimChangedError`, or the `APIError` of the last attempt.
        """
        return await self._batches.submit(claim, lambda now: writes.reserved(now, claim, user))

    async def _write_users(self, claim: ResourceClaim, change: Change[ResourceClaim]) -> ResourceClaim:
        """Write a change of reservedFor on the newest version known, or on what is read after a conflict."""
        current = self._tracker.get(key_of(claim))
        if current is None or current.metadata.uid != claim.metadata.uid:
            current = claim
        for attempt in range(ATTEMPTS_MAX):
            try:
                if attempt:
                    await self._clock.sleep(RETRY_SECONDS)
                    current = await self._read_live(claim)
                wanted = change(current)
                if wanted is not None:
                    current = await self._client.update_status(RESOURCE_CLAIMS, wanted)
            except APIError as error:
                last = attempt == ATTEMPTS_MAX - 1
                if last or (is_refusal(error) and not isinstance(error, ConflictError)):
                    raise
            else:
                self._tracker.assume(current)
                return current
        raise AssertionError

    async def _read_live(self, claim: ResourceClaim) -> ResourceClaim:
        current = await ignore_not_found(self._client.get(RESOURCE_CLAIMS, *_key(claim)))
        if current is None or current.metadata.uid != claim.metadata.uid:
            raise ClaimChangedError(f"claim {claim_label(claim)} got deleted in the meantime")
        return current

    # --- Unreserving and deallocating. ---

    async def settle(self, doubt: ResourceClaim) -> None:
        """Determine the result of a write conditional on this version, and make sure that it cannot succeed later.

        Until then the devices must not be allocated to another claim, so a rejection does not end the retries either;
        any other write of the claim, and its deletion, does.
        """
        while True:
            try:
                await self._settle(doubt)
            except ConflictError:
                continue
            except APIError as failure:
                _log.info("write not settled", extra=fields(object=str(key_of(doubt)), error=str(failure)))
                await self._clock.sleep(SETTLE_SECONDS)
            else:
                return

    async def _settle(self, doubt: ResourceClaim) -> None:
        current = await ignore_not_found(self._client.get(RESOURCE_CLAIMS, *_key(doubt)))
        if current is None or current.metadata.uid != doubt.metadata.uid:
            return
        if _version(current) == _version(doubt):
            # Any write changes the version; this one has no other effect.
            current = await ignore_not_found(self._client.update(RESOURCE_CLAIMS, writes.unprotected(current)))
        if current is not None:
            self._tracker.assume(current)

    async def unreserve(self, claim: ResourceClaim, pod: Pod) -> None:
        """Remove the Pod from reservedFor, unless it was bound after all.

        The Pod's next attempt reads the claim, so this must be complete before.
        """

        async def remove_user(claim: ResourceClaim) -> None:
            if not await self._has_node(pod):
                await self._batches.submit(claim, lambda now: writes.unreserved(now, pod.metadata.uid or ""))

        # Nothing is left to remove from a deleted claim.
        with suppress(ClaimChangedError):
            await self.until_answered(claim, remove_user)

    async def until_answered(self, subject: S, work: Callable[[S], Awaitable[T]]) -> T:
        """Retry until the server responds, without a limit; raise a rejection."""
        while True:
            try:
                return await work(subject)
            except ConflictError:
                continue
            except APIError as failure:
                if is_refusal(failure):
                    raise
                _log.info("no response from the server", extra=fields(object=str(key_of(subject)), error=str(failure)))
                await self._clock.sleep(SETTLE_SECONDS)

    async def free(self, claim: ResourceClaim) -> None:
        """Clear the allocation of this version of the claim.

        When this returns or raises, the write cannot come later: the Pod may get the same allocation again, and its
        reservation may need no other write.
        """
        try:
            freed = await self._client.update_status(RESOURCE_CLAIMS, writes.freed(claim))
        except APIError as failure:
            if not is_not_executed(failure):
                await self.settle(claim)
            raise
        self._tracker.assume(freed)

    async def free_for(self, claim: ResourceClaim, *pods: Pod) -> bool:
        """Clear the allocation of a claim that only pending Pods use; False if one of them has a node."""
        for pod in pods:
            if await self._has_node(pod):
                return False
        await self.free(claim)
        return True

    async def unreserve_group(self, claim: ResourceClaim, group: PodGroup) -> None:
        """Remove a PodGroup from reservedFor."""
        await self._batches.submit(claim, lambda now: writes.unreserved(now, group.metadata.uid or ""))

    async def give_up(self, claim: ResourceClaim, allocation: AllocationResult, pod: Pod) -> None:
        """Clear an allocation that was just written, unless another Pod uses it or it was changed."""
        current: ResourceClaim | None = claim
        for _ in range(ATTEMPTS_MAX):
            if current is None or not writes.same_devices(current.status.allocation, allocation):
                return
            if not writes.may_free(current, pod):
                return
            try:
                await self.free(current)
            except ConflictError:
                current = await ignore_not_found(self._client.get(RESOURCE_CLAIMS, *_key(claim)))
            else:
                return

    async def _has_node(self, pod: Pod) -> bool:
        """Return whether the Pod is bound, even if the response to the binding was lost."""
        live = await ignore_not_found(self._client.get(PODS, pod.metadata.name or "", pod.metadata.namespace or ""))
        return live is not None and live.metadata.uid == pod.metadata.uid and bool(live.spec.node_name)

    # --- Waiting. ---

    async def conflicting_claims(self, claim: ResourceClaim, *, is_observed: bool = False) -> tuple[str, ...]:
        """Return claims that were allocated a device of this version of the claim earlier; raises `TimeoutError`.

        When the informer has observed this version, it has observed all earlier writes, so an earlier allocation of
        the device is visible then. A later one will see this claim. The caller may know that it was observed.
        """
        if not is_observed and not self._tracker.observed(claim):
            await self._until_observed(claim)
        return self._tracker.conflicting_claims(claim, claim.status.allocation)

    async def _until_observed(self, claim: ResourceClaim) -> None:
        """Return after the informer has handled everything that it received with this version of the claim.

        A list is handled object by object and in no particular order: while it is being handled, earlier allocations
        may be missing. So the watcher only wakes this coroutine, which runs when the informer is done.
        """
        seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_change(now: ResourceClaim | None) -> None:
            if not seen.done() and (now is None or not is_older(now, claim)):
                seen.set_result(None)

        stop = self._tracker.watch(claim, on_change)
        try:
            await self._within(seen, OBSERVE_SECONDS_MAX)
        finally:
            stop()

    async def _await_holder(self, claim: ResourceClaim, allocation: AllocationResult | None) -> None:
        """Return when the informer has observed who holds a device of a refused allocation, or the time is over."""
        pools = {pool_key(result.driver, result.pool) for result in allocation.devices.results} if allocation else ()
        stamps = {pool: self._tracker.allocations.stamp(pool) for pool in pools}
        for _ in range(HOLDER_POLLS_MAX):
            if self._tracker.conflicting_claims(claim, allocation):
                return
            await self._clock.sleep(RETRY_SECONDS)
            # A share or a counter: the holder is unknown, but its pool changes.
            if any(self._tracker.allocations.stamp(pool) != stamp for pool, stamp in stamps.items()):
                return

    async def next_change(
        self, claim: ResourceClaim, seconds_max: float, cancelled: asyncio.Event | None = None
    ) -> None:
        """Return when the claim has changed, the time is over, or the wait is cancelled."""
        seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_change(_now: ResourceClaim | None) -> None:
            if not seen.done():
                seen.set_result(None)

        stop = self._tracker.watch(claim, on_change)
        try:
            timeout = self._clock.sleep(seconds_max)
            if cancelled is None:
                await first_completed(seen, timeout)
            else:
                await first_completed(seen, timeout, cancelled.wait())
        finally:
            stop()

    async def _within(self, future: asyncio.Future[T], seconds: float) -> T:
        await first_completed(future, self._clock.sleep(seconds))
        if not future.done():
            raise TimeoutError
        return future.result()


def _key(claim: ResourceClaim) -> tuple[str, str]:
    return claim.metadata.name or "", claim.metadata.namespace or ""


def _version(claim: ResourceClaim) -> str:
    return claim.metadata.resource_version or ""
