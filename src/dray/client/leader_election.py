"""Leader election on a Lease: wait for it, lead while it can be renewed, release it at the end.

Two processes never lead at once, whatever their clocks say: a candidate does not compare the holder's times with its
own clock. It records when the Lease last *changed*, and acquires it only after the holder's lease duration has passed
since then. A leader that could not renew within the renew deadline, which is shorter, has stopped leading by then.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dray.api.document import Document, NamespacedName
from dray.api.errors import APIError, ConflictError, NotFoundError
from dray.api.timestamps import format_micro_time
from dray.client import resources
from dray.client.interface import Client
from dray.client.request_state import RequestState
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.tasks import TaskGroup

_log = logging.getLogger(__name__)

# A server that does not respond must not delay the end of the process for longer.
RELEASE_SECONDS: Final = 2.0
LEASES: Final = resources.LEASES.unstructured
LEASE_SECONDS: Final = 15.0
RENEW_DEADLINE_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 2.0
# client-go's JitterFactor: candidates try at different times.
JITTER: Final = 1.2


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations of an election; the defaults are those of kube-controller-manager."""

    lease_seconds: float = LEASE_SECONDS
    renew_deadline_seconds: float = RENEW_DEADLINE_SECONDS
    retry_seconds: float = RETRY_SECONDS

    def check(self) -> None:
        """Raise ValueError for durations with which two candidates could lead."""
        if self.lease_seconds <= self.renew_deadline_seconds:
            raise ValueError("leaseDuration must be greater than renewDeadline")
        if self.renew_deadline_seconds <= JITTER * self.retry_seconds:
            raise ValueError("renewDeadline must be greater than retryPeriod*JitterFactor")
        if min(self.lease_seconds, self.renew_deadline_seconds, self.retry_seconds) <= 0:
            raise ValueError("leaseDuration, renewDeadline and retryPeriod must be greater than zero")


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """The spec of the Lease as last read, and the monotonic time at which it was first read like this."""

    spec: Document
    since: float


def observe(previous: ObservedLease | None, lease: Document, monotonic: float) -> ObservedLease:
    """Return the observation of the Lease; its time changes only with the spec."""
    spec = lease.get("spec") or {}
    if previous is not None and previous.spec == spec:
        return previous
    return ObservedLease(spec, monotonic)


@dataclass(frozen=True, slots=True)
class Wait:
    """Another candidate holds the Lease, or may still assume so."""

    holder: str


@dataclass(frozen=True, slots=True)
class AcquireOrRenew:
    """Write this spec, bound to the version read, and lead if that succeeds."""

    spec: Document


def plan_election(
    observed: ObservedLease, identity: str, now: datetime, monotonic: float, timing: Timing
) -> Wait | AcquireOrRenew:
    """Decide whether to write the Lease, either to renew it or to acquire it."""
    spec = observed.spec
    holder = str(spec.get("holderIdentity") or "")
    if holder and holder != identity:
        held_seconds = float(spec.get("leaseDurationSeconds") or timing.lease_seconds)
        # The longer of the holder's lease duration and our own counts.
        if monotonic < observed.since + max(held_seconds, timing.lease_seconds):
            return Wait(holder)
    return AcquireOrRenew(_held_spec(spec, identity, now, timing))


def _held_spec(spec: Document, identity: str, now: datetime, timing: Timing) -> Document:
    renewing = spec.get("holderIdentity") == identity
    transitions = int(spec.get("leaseTransitions") or 0)
    return {
        **spec,
        "holderIdentity": identity,
        "leaseDurationSeconds": int(timing.lease_seconds),
        "acquireTime": spec["acquireTime"] if renewing and "acquireTime" in spec else format_micro_time(now),
        "renewTime": format_micro_time(now),
        "leaseTransitions": transitions if renewing else transitions + 1,
    }


def first_spec(identity: str, now: datetime, timing: Timing) -> Document:
    """Return the spec of a new Lease."""
    return {**_held_spec({}, identity, now, timing), "leaseTransitions": 0}


def released_spec(spec: Document, now: datetime) -> Document:
    """Return the spec that releases the Lease, so that the next leader need not wait."""
    return {
        **spec,
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": format_micro_time(now),
        "renewTime": format_micro_time(now),
    }


class LeadershipLostError(Exception):
    """The Lease could not be renewed in time; the process must stop leading at once."""


class LeaderElector:
    """One candidate for one Lease; `identity` must be unique among the candidates."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        rng: random.Random,
        *,
        lease: NamespacedName,
        identity: str,
        timing: Timing | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._rng = rng
        self._lease = lease
        self._identity = identity
        self._timing = timing or Timing()
        self._timing.check()
        self._observed: ObservedLease | None = None
        self._holder = ""
        # The process leads until this time of the monotonic clock.
        self._leads_until = 0.0
        self._state = RequestState(_log, f"lease {lease}", LEASES, lease.namespace)
        # The request of the current attempt.
        self._verb = "get"

    @property
    def is_leader(self) -> bool:
        """Whether the Lease is held and its renewal is not overdue."""
        return self._clock.monotonic() < self._leads_until

    @property
    def holder(self) -> str:
        """The holder of the Lease when it was last read."""
        return self._holder

    def health(self) -> str | None:
        """Return why the Lease cannot be read or written, None if it can; a health check."""
        return self._state.health(f"lease {self._lease} has not been read")

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait to become leader, then run `lead`; return when it returns, raise when the Lease is lost.

        `lead` is cancelled before another candidate can acquire the Lease. At the end the Lease is released.
        """
        await self._acquire()
        _log.info("became leader", extra=fields(lease=str(self._lease), identity=self._identity))
        try:
            async with TaskGroup("leader election") as group:
                # Renewed until `lead` has ended, so that the Lease cannot pass to another while it is cancelled.
                group.spawn(self._renew(), "renew lease")
                await lead()
        finally:
            await self._release()

    async def _acquire(self) -> None:
        while not await self._try_acquire_or_renew():
            await self._clock.sleep(self._timing.retry_seconds * (1 + self._rng.random() * (JITTER - 1)))

    async def _renew(self) -> None:
        """Renew until no attempt has succeeded for the renew deadline."""
        renewed = self._clock.monotonic()
        while True:
            await self._clock.sleep(self._timing.retry_seconds)
            deadline = renewed + self._timing.renew_deadline_seconds
            started = self._clock.monotonic()
            try:
                async with asyncio.timeout(max(deadline - started, 0.0)):
                    held = await self._try_acquire_or_renew()
            except TimeoutError:
                held = False
            if held:
                renewed = started
            elif self._clock.monotonic() >= deadline:
                self._leads_until = 0.0
                raise LeadershipLostError(f"lease {self._lease}: leader election lost")

    async def _try_acquire_or_renew(self) -> bool:
        """Try once to hold the Lease; a failure of the server counts as not holding it."""
        started = self._clock.monotonic()
        try:
            held = await self._write_if_due()
        except ConflictError as error:
            # Another candidate was faster.
            _log.debug("leader election attempt failed", extra=fields(lease=str(self._lease), error=str(error)))
            return False
        except APIError as error:
            self._state.failed(self._verb, error)
            return False
        self._state.succeeded()
        if held:
            # Counted from before the write: the response may have been delayed.
            self._leads_until = started + self._timing.renew_deadline_seconds
        return held

    async def _write_if_due(self) -> bool:
        self._verb = "get"
        try:
            lease = await self._client.get(LEASES, self._lease.name, self._lease.namespace)
        except NotFoundError:
            self._verb = "create"
            written = await self._client.create(LEASES, self._new_lease(), self._lease.namespace)
            self._observe(written)
            return True
        self._observe(lease)
        assert self._observed is not None
        decision = plan_election(
            self._observed, self._identity, self._clock.now(), self._clock.monotonic(), self._timing
        )
        if not isinstance(decision, AcquireOrRenew):
            return False
        self._verb = "update"
        # Bound to the version read: of two candidates that write at once, one gets a conflict.
        self._observe(await self._client.update(LEASES, {**lease, "spec": decision.spec}))
        return True

    def _new_lease(self) -> Document:
        spec = first_spec(self._identity, self._clock.now(), self._timing)
        return {"metadata": {"name": self._lease.name, "namespace": self._lease.namespace}, "spec": spec}

    def _observe(self, lease: Document) -> None:
        self._observed = observe(self._observed, lease, self._clock.monotonic())
        holder = str((lease.get("spec") or {}).get("holderIdentity") or "")
        if holder != self._holder:
            self._holder = holder
            _log.info("new leader", extra=fields(lease=str(self._lease), holder=holder))

    async def _release(self) -> None:
        """Release the Lease if still held; after a failure the next leader waits for the lease duration."""
        self._leads_until = 0.0
        with suppress(APIError, TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._write_release()

    async def _write_release(self) -> None:
        lease = await self._client.get(LEASES, self._lease.name, self._lease.namespace)
        if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
            spec = released_spec(lease["spec"], self._clock.now())
            await self._client.update(LEASES, {**lease, "spec": spec})
