"""The plugin's hands: writes claims, and waits for what the informer or a driver says about them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from dray.allocator import claim_label
from dray.api.errors import APIError, ConflictError
from dray.api.pod_claims import FINALIZER, is_reserved_for
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim
from dray.client.interface import Client, Patch, PatchType, WriteOptions, ignore_not_found
from dray.client.objects import key_of
from dray.client.resources import PODS, RESOURCE_CLAIMS
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.tasks import first_completed
from dray.scheduler.plugins.claim_watch import is_older
from dray.scheduler.plugins.dynamic_resources import writes
from dray.scheduler.plugins.dynamic_resources.tracker import ClaimTracker
from dray.scheduler.plugins.dynamic_resources.writes import ClaimChangedError, InDoubtError

_log = logging.getLogger(__name__)

S = TypeVar("S")
T = TypeVar("T")

# client-go's RetryOnConflict: five tries, 10 ms apart.
ATTEMPTS_MAX: Final = 5
RETRY_SECONDS: Final = 0.01
# A server that does not answer is asked again this often, for as long as it takes.
SETTLE_SECONDS: Final = 1.0
# The informer tells of a write within milliseconds; an outage of the watch may take this long.
ECHO_SECONDS_MAX: Final = 30.0

_STATUS: Final = WriteOptions(subresource="status")


class _Taking(msgspec.Struct):
    """One claim on its way to being allocated and reserved."""

    claim: ResourceClaim
    allocation: AllocationResult | None
    pod: Pod
    # As last read or written.
    current: ResourceClaim
    # The version to which a write is bound whose fate is unknown.
    doubt: ResourceClaim | None = None


class ClaimWriter:
    """All writes of claims; each is bound to the version or the uid that it was decided on."""

    def __init__(self, client: Client, clock: Clock, tracker: ClaimTracker) -> None:
        self._client = client
        self._clock = clock
        self._tracker = tracker

    # --- Allocating and reserving. ---

    async def take(self, claim: ResourceClaim, allocation: AllocationResult | None, pod: Pod) -> ResourceClaim:
        """Write the allocation, if there is one to write, and the reservation.

        Raises `ClaimChangedError` or the `APIError` of a refusal when the claim was not written, `InDoubtError` when
        nobody knows.
        """
        taking = _Taking(claim, allocation, pod, claim)
        failure: APIError | None = None
        for attempt in range(ATTEMPTS_MAX):
            try:
                if attempt:
                    await self._clock.sleep(RETRY_SECONDS)
                    await self._read_again(taking)
                return await self._write(taking)
            except APIError as error:
                failure = error
                if writes.is_refusal(error) and not isinstance(error, ConflictError):
                    break
        assert failure is not None
        if taking.doubt is not None:
            raise InDoubtError(taking.doubt, failure) from failure
        raise failure

    async def _read_again(self, taking: _Taking) -> None:
        current = await ignore_not_found(self._client.get(RESOURCE_CLAIMS, *_place(taking.claim)))
        if taking.doubt is not None and (current is None or _version(current) != _version(taking.doubt)):
            # The write got through and is in what was read, or never will.
            taking.doubt = None
        if current is None:
            raise ClaimChangedError(f"claim {claim_label(taking.claim)} got deleted in the meantime")
        writes.check_unchanged(taking.claim, current, taking.allocation)
        taking.current = current

    async def _write(self, taking: _Taking) -> ResourceClaim:
        if writes.is_done(taking.current, taking.pod):
            return taking.current
        if taking.allocation is not None and FINALIZER not in taking.current.metadata.finalizers:
            taking.current = await self._client.update(RESOURCE_CLAIMS, writes.protected(taking.current))
            taking.doubt = None
        before, taking.doubt = taking.doubt, taking.current
        wanted = writes.taken(taking.current, taking.allocation, taking.pod)
        try:
            written = await self._client.update_status(RESOURCE_CLAIMS, wanted)
        except ConflictError:
            taking.doubt = None
            raise
        except APIError as error:
            if writes.is_refusal(error):
                taking.doubt = before
            raise
        taking.doubt = None
        return written

    # --- Letting go. ---

    async def settle(self, doubt: ResourceClaim) -> None:
        """Find out what became of a write bound to this version of a claim, and make sure that it cannot come late.

        Until then the devices must not be given to anybody else.
        """
        await self.until_answered(doubt, self._settle)

    async def _settle(self, doubt: ResourceClaim) -> None:
        current = await ignore_not_found(self._client.get(RESOURCE_CLAIMS, *_place(doubt)))
        if current is None or current.metadata.uid != doubt.metadata.uid:
            return
        if _version(current) == _version(doubt):
            # Any other write makes the version pass by; this one also leaves the claim as it was before.
            touched: ResourceClaim = await self._client.update(RESOURCE_CLAIMS, writes.unprotected(current))
            self._tracker.assume(touched)
        else:
            self._tracker.assume(current)

    async def unreserve(self, claim: ResourceClaim, pod: Pod) -> None:
        """Take the Pod from the claim's users, unless it got its node after all.

        The Pod's next attempt counts on what is read then, so this must not come late either.
        """
        # The first try is on what was written last, those after it on what the server says.
        latest: ResourceClaim | None = claim

        async def take_back(claim: ResourceClaim) -> None:
            nonlocal latest
            current, latest = latest, None
            if current is None:
                current = await ignore_not_found(self._client.get(RESOURCE_CLAIMS, *_place(claim)))
            if current is None or current.metadata.uid != claim.metadata.uid or await self._has_node(pod):
                return
            if is_reserved_for(current, pod):
                patch = Patch(PatchType.STRATEGIC, writes.unreserve_patch(current, pod))
                current = await self._client.patch(RESOURCE_CLAIMS, *_place(claim), patch, _STATUS)
            self._tracker.assume(current)

        await self.until_answered(claim, take_back)

    async def until_answered(self, subject: S, work: Callable[[S], Awaitable[T]]) -> T:
        """Repeat the work until the server has answered it, however long that takes; a refusal is raised."""
        while True:
            try:
                return await work(subject)
            except ConflictError:
                continue
            except APIError as failure:
                if writes.is_refusal(failure):
                    raise
                _log.info("no answer", extra=fields(object=str(key_of(subject)), error=str(failure)))
                await self._clock.sleep(SETTLE_SECONDS)

    async def free(self, claim: ResourceClaim) -> None:
        """Clear the allocation of this version of the claim."""
        self._tracker.assume(await self._client.update_status(RESOURCE_CLAIMS, writes.freed(claim)))

    async def free_for(self, claim: ResourceClaim, pod: Pod) -> bool:
        """Clear the allocation of a claim that only the pending Pod may use; not if it has a node after all."""
        if await self._has_node(pod):
            return False
        await self.free(claim)
        return True

    async def give_up(self, claim: ResourceClaim, allocation: AllocationResult, pod: Pod) -> None:
        """Clear an allocation that was just written, unless somebody else uses or has changed it."""
        current: ResourceClaim | None = claim
        for _ in range(ATTEMPTS_MAX):
            if current is None or not writes.same_devices(current.status.allocation, allocation):
                return
            if not writes.may_free(current, pod):
                return
            try:
                await self.free(current)
            except ConflictError:
                current = await ignore_not_found(self._client.get(RESOURCE_CLAIMS, *_place(claim)))
            else:
                return

    async def _has_node(self, pod: Pod) -> bool:
        """Whether the Pod is bound, which an answer that got lost may have hidden."""
        live = await ignore_not_found(self._client.get(PODS, pod.metadata.name or "", pod.metadata.namespace or ""))
        return live is not None and live.metadata.uid == pod.metadata.uid and bool(live.spec.node_name)

    # --- Waiting. ---

    async def conflicting_claims(self, claim: ResourceClaim) -> tuple[str, ...]:
        """Claims that had a device of the just written claim before it; raises `TimeoutError`.

        When the informer tells of this write it has told of all earlier ones. Whoever else gave the device away
        earlier shows then, and whoever does it later will see this claim.
        """
        allocation = claim.status.allocation
        if self._tracker.observed(claim):
            return self._tracker.conflicting_claims(claim, allocation)
        seen: asyncio.Future[tuple[str, ...]] = asyncio.get_running_loop().create_future()

        def look(now: ResourceClaim | None) -> None:
            if not seen.done() and (now is None or not is_older(now, claim)):
                seen.set_result(self._tracker.conflicting_claims(claim, allocation))

        stop = self._tracker.watch(claim, look)
        try:
            return await self._within(seen, ECHO_SECONDS_MAX)
        finally:
            stop()

    async def next_change(self, claim: ResourceClaim, seconds_max: float) -> None:
        """Return when the claim has changed, or the time is over."""
        seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def look(_now: ResourceClaim | None) -> None:
            if not seen.done():
                seen.set_result(None)

        stop = self._tracker.watch(claim, look)
        try:
            with suppress(TimeoutError):
                await self._within(seen, seconds_max)
        finally:
            stop()

    async def _within(self, future: asyncio.Future[T], seconds: float) -> T:
        await first_completed(future, self._clock.sleep(seconds))
        if not future.done():
            raise TimeoutError
        return future.result()


def _place(claim: ResourceClaim) -> tuple[str, str]:
    return claim.metadata.name or "", claim.metadata.namespace or ""


def _version(claim: ResourceClaim) -> str:
    return claim.metadata.resource_version or ""
