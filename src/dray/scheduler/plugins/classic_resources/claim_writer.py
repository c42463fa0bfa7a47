"""Writes classic claims, and waits until the informer observes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from dray.api import classic_claims as classic
from dray.api.classic_claims import Actor
from dray.api.errors import APIError, ConflictError
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Pod
from dray.client.errors import ignore_not_found
from dray.client.interface import Client
from dray.client.objects import key_of
from dray.client.resources import CLASSIC_CLAIMS, PODS
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.tasks import first_completed
from dray.scheduler.plugins.claim_batches import ClaimBatches
from dray.scheduler.plugins.classic_resources import writes
from dray.scheduler.plugins.classic_resources.tracker import ClassicTracker
from dray.scheduler.plugins.classic_resources.writes import ClaimChangedError

_log = logging.getLogger(__name__)


# client-go's RetryOnConflict: five attempts, 10 ms apart.
ATTEMPTS_MAX: Final = 5
RETRY_SECONDS: Final = 0.01
# The interval of retries while the server does not respond.
SETTLE_SECONDS: Final = 1.0
# Status codes after which the write was not executed and a retry is useless.
_REFUSALS: Final = frozenset({400, 401, 403, 404, 405, 410, 413, 415, 422})

# Returns the version to write for the current one; None if nothing is left to write.
Change = Callable[[ResourceClaim], ResourceClaim | None]


class ClassicWriter:
    """Writes classic claims; each write is conditional on the version that the decision was based on."""

    def __init__(self, client: Client, clock: Clock, tracker: ClassicTracker) -> None:
        self._client = client
        self._clock = clock
        self._tracker = tracker
        self._batches: ClaimBatches[ResourceClaim] = ClaimBatches(self._write_newest, ClaimChangedError)

    async def reserve(self, claim: ResourceClaim, pod: Pod) -> ResourceClaim:
        """Add the Pod to reservedFor, in one write with other Pods of this scheduler; raises like `write`."""
        return await self._batches.submit(claim, lambda now: writes.reserved(now, claim, pod))

    async def _write_newest(self, claim: ResourceClaim, change: Change) -> ResourceClaim:
        return await self.write(self._current(claim) or claim, change)

    async def write(self, claim: ResourceClaim, change: Change) -> ResourceClaim:
        """Write the change, on the version at hand or on what is read when that is no longer the latest.

        Raises `ClaimChangedError`, also from `change`, or the `APIError` of the last try.
        """
        current = claim
        for attempt in range(ATTEMPTS_MAX):
            try:
                if attempt:
                    await self._clock.sleep(RETRY_SECONDS)
                    current = await self._read_current(claim)
                return await self._write_once(current, change)
            except APIError as error:
                if error.code in _REFUSALS or attempt == ATTEMPTS_MAX - 1:
                    raise
        raise AssertionError

    async def _write_once(self, current: ResourceClaim, change: Change) -> ResourceClaim:
        wanted = change(current)
        if wanted is None:
            written = current
        else:
            classic.check_transition(Actor.SCHEDULER, current, wanted)
            written = await self._client.update_status(CLASSIC_CLAIMS, wanted)
        self._tracker.assume(written)
        return written

    async def _read_current(self, claim: ResourceClaim) -> ResourceClaim:
        current = await self._live(claim)
        if current is None or current.metadata.uid != claim.metadata.uid:
            raise ClaimChangedError(f"claim {classic.label(claim)} got deleted in the meantime")
        return current

    async def unreserve(self, claim: ResourceClaim, pod: Pod) -> None:
        """Remove the Pod from reservedFor, unless it was bound after all; retry without a limit."""
        while True:
            try:
                if not await self._has_node(pod):
                    await self._batches.submit(claim, lambda now: writes.unreserved(now, pod))
            except ClaimChangedError:
                # The claim was deleted.
                return
            except ConflictError:
                continue
            except APIError as failure:
                if failure.code in _REFUSALS:
                    raise
                _log.info("no answer", extra=fields(claim=str(key_of(claim)), error=str(failure)))
                await self._clock.sleep(SETTLE_SECONDS)
            else:
                return

    async def until(
        self, claim: ResourceClaim, is_enough: Callable[[ResourceClaim], bool], seconds_max: float
    ) -> ResourceClaim | None:
        """Return the claim when it is as expected, or at the end of the time; None if it was deleted."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_change(_now: ResourceClaim | None) -> None:
            # The informer may observe versions before the written one.
            current = self._current(claim)
            if not changed.done() and (current is None or is_enough(current)):
                changed.set_result(None)

        stop = self._tracker.watch(claim, on_change)
        try:
            current = self._current(claim)
            if current is not None and not is_enough(current):
                await first_completed(changed, self._clock.sleep(seconds_max))
            return self._current(claim)
        finally:
            stop()

    def _current(self, claim: ResourceClaim) -> ResourceClaim | None:
        current = self._tracker.get(key_of(claim))
        return current if current is not None and current.metadata.uid == claim.metadata.uid else None

    async def _live(self, claim: ResourceClaim) -> ResourceClaim | None:
        return await ignore_not_found(
            self._client.get(CLASSIC_CLAIMS, claim.metadata.name or "", claim.metadata.namespace or "")
        )

    async def _has_node(self, pod: Pod) -> bool:
        """Return whether the Pod is bound, even if the response to the binding was lost."""
        live = await ignore_not_found(self._client.get(PODS, pod.metadata.name or "", pod.metadata.namespace or ""))
        return live is not None and live.metadata.uid == pod.metadata.uid and bool(live.spec.node_name)
