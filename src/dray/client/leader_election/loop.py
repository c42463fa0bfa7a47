"""Runs leader election: wait for the Lease, lead while it can be renewed, release it at the end."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from dray.api.document import Document, GroupVersion
from dray.api.errors import APIError, NotFoundError
from dray.client.interface import Client, unstructured
from dray.client.leader_election.plan import (
    JITTER,
    Sighting,
    Take,
    Timing,
    first_spec,
    plan_election,
    released_spec,
    sight,
)
from dray.lib.clock import Clock
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

# A process that was told to stop is not kept longer by a server that does not answer.
RELEASE_SECONDS: Final = 2.0
LEASES: Final = unstructured(GroupVersion("coordination.k8s.io", "v1"), "leases", "Lease")


class LeadershipLostError(Exception):
    """The Lease could not be renewed in time; whoever led must stop at once."""


class LeaderElector:
    """One candidate for one Lease; `identity` must be unique among the candidates."""

    def __init__(  # noqa: PLR0913 - a candidate's name, its Lease and its hands
        self,
        client: Client,
        clock: Clock,
        rng: random.Random,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: Timing | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._rng = rng
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._timing = timing or Timing()
        self._timing.check()
        self._sighting: Sighting | None = None
        self._holder = ""
        # Leading is certain until this time on the monotonic clock.
        self._leads_until = 0.0

    @property
    def is_leader(self) -> bool:
        """Whether the Lease is held and its renewal is not overdue."""
        return self._clock.monotonic() < self._leads_until

    @property
    def holder(self) -> str:
        """Who held the Lease when last seen."""
        return self._holder

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait to become leader, then run `lead`; ends when it ends, raises when the Lease is lost.

        `lead` is cancelled before the Lease can pass to another. The Lease is released in the end.
        """
        await self._acquire()
        _log.info("became leader", extra=fields(lease=f"{self._namespace}/{self._name}", identity=self._identity))
        leading = asyncio.ensure_future(lead())
        renewing = asyncio.ensure_future(self._renew())
        try:
            await asyncio.wait({leading, renewing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _stop(leading)
            await _stop(renewing)
            await self._release()
        if not leading.cancelled():
            leading.result()
        elif not renewing.cancelled():
            renewing.result()

    async def _acquire(self) -> None:
        while not await self._try():
            await self._clock.sleep(self._timing.retry_seconds * (1 + self._rng.random() * (JITTER - 1)))

    async def _renew(self) -> None:
        """Renew until that has not worked for the renew deadline."""
        renewed = self._clock.monotonic()
        while True:
            await self._clock.sleep(self._timing.retry_seconds)
            deadline = renewed + self._timing.renew_deadline_seconds
            started = self._clock.monotonic()
            try:
                async with asyncio.timeout(max(deadline - started, 0.0)):
                    held = await self._try()
            except TimeoutError:
                held = False
            if held:
                renewed = started
            elif self._clock.monotonic() >= deadline:
                self._leads_until = 0.0
                raise LeadershipLostError(f"lease {self._namespace}/{self._name}: leader election lost")

    async def _try(self) -> bool:
        """One attempt to hold the Lease; failures of the server count as not holding it."""
        started = self._clock.monotonic()
        try:
            held = await self._write_if_due()
        except APIError as error:
            _log.debug("leader election attempt failed", extra=fields(lease=self._name, error=str(error)))
            return False
        if held:
            # From before the write: the answer may have been long on its way.
            self._leads_until = started + self._timing.renew_deadline_seconds
        return held

    async def _write_if_due(self) -> bool:
        try:
            lease = await self._client.get(LEASES, self._name, self._namespace)
        except NotFoundError:
            written = await self._client.create(LEASES, self._new_lease(), self._namespace)
            self._note(written)
            return True
        self._note(lease)
        assert self._sighting is not None
        decision = plan_election(
            self._sighting, self._identity, self._clock.now(), self._clock.monotonic(), self._timing
        )
        if not isinstance(decision, Take):
            return False
        # Bound to the version read: of two that take at once, one meets a conflict.
        self._note(await self._client.update(LEASES, {**lease, "spec": decision.spec}))
        return True

    def _new_lease(self) -> Document:
        spec = first_spec(self._identity, self._clock.now(), self._timing)
        return {"metadata": {"name": self._name, "namespace": self._namespace}, "spec": spec}

    def _note(self, lease: Document) -> None:
        self._sighting = sight(self._sighting, lease, self._clock.monotonic())
        holder = str((lease.get("spec") or {}).get("holderIdentity") or "")
        if holder != self._holder:
            self._holder = holder
            _log.info("new leader", extra=fields(lease=self._name, holder=holder))

    async def _release(self) -> None:
        """Step down if still the holder; failing to only makes the next one wait."""
        self._leads_until = 0.0
        with suppress(APIError, TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._write_release()

    async def _write_release(self) -> None:
        lease = await self._client.get(LEASES, self._name, self._namespace)
        if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
            spec = released_spec(lease["spec"], self._clock.now())
            await self._client.update(LEASES, {**lease, "spec": spec})


async def _stop(task: asyncio.Future[None]) -> None:
    """Cancel and wait; how it ended is read by the caller."""
    task.cancel()
    await asyncio.wait({task})
