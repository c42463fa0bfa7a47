"""The plugin's hands: writes claims, and waits for what the informer or a driver says about them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from dray.api.errors import APIError, ConflictError, NotFoundError
from dray.api.pod_claims import FINALIZER
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim
from dray.client.interface import Client, Patch, PatchType, WriteOptions
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.scheduler.kinds import PODS, RESOURCE_CLAIMS
from dray.scheduler.plugins.dynamic_resources import writes
from dray.scheduler.plugins.dynamic_resources.tracker import ClaimTracker
from dray.scheduler.plugins.dynamic_resources.writes import ClaimChangedError, InDoubtError

_log = logging.getLogger(__name__)

T = TypeVar("T")

# client-go's RetryOnConflict: five tries, 10 ms apart.
ATTEMPTS_MAX: Final = 5
RETRY_SECONDS: Final = 0.01
# A server that does not answer is asked again this often, for as long as it takes.
SETTLE_SECONDS: Final = 1.0
# The informer tells of a write within milliseconds; an outage of the watch may take this long.
ECHO_SECONDS_MAX: Final = 30.0

_STATUS: Final = WriteOptions(subresource="status")


class ClaimWriter:
    """All writes of claims; each is bound to the version or the uid that it was decided on."""

    def __init__(self, client: Client, clock: Clock, tracker: ClaimTracker) -> None:
        self._client = client
        self._clock = clock
        self._tracker = tracker

    async def take(self, claim: ResourceClaim, allocation: AllocationResult | None, pod: Pod) -> ResourceClaim:
        """Write the allocation, if there is one to write, and the reservation.

        Raises `ClaimChangedError` or the `APIError` of a refusal when the claim was not written, `InDoubtError` when
        nobody knows.
        """
        current, doubt = claim, None
        for attempt in range(ATTEMPTS_MAX):
            try:
                if attempt:
                    await self._clock.sleep(RETRY_SECONDS)
                    current = await self._read_again(claim, allocation)
                    # Whatever was sent before is settled by what was read, unless it is bound to this version.
                    if doubt is not None and doubt.claim.metadata.resource_version != _version(current):
                        doubt = None
                if writes.is_done(current, pod):
                    return current
                if allocation is not None and FINALIZER not in current.metadata.finalizers:
                    current = await self._client.update(RESOURCE_CLAIMS, writes.protected(current))
            except APIError as failure:
                if not writes.is_refusal(failure) or isinstance(failure, ConflictError):
                    continue
                raise _or_doubt(failure, doubt) from failure
            try:
                return await self._client.update_status(RESOURCE_CLAIMS, writes.taken(current, allocation, pod))
            except ConflictError:
                continue
            except APIError as failure:
                if writes.is_refusal(failure):
                    raise
                doubt = InDoubtError(current, failure)
        if doubt is not None:
            raise doubt
        raise ClaimChangedError(f"claim {_label(claim)}: too many conflicts")

    async def _read_again(self, planned: ResourceClaim, allocation: AllocationResult | None) -> ResourceClaim:
        current = await _found(self._client.get(RESOURCE_CLAIMS, *_place(planned)))
        if current is None:
            raise ClaimChangedError(f"claim {_label(planned)} got deleted in the meantime")
        writes.check_unchanged(planned, current, allocation)
        return current
