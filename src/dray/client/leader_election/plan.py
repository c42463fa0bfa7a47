"""The decision of leader election; pure.

No two lead at once, whatever the clocks say: a candidate never compares the holder's times with its own clock. It
notes when it last saw the Lease *change*, and takes over only after the holder's lease duration has passed since
then. A leader that could not renew within the renew deadline, which is shorter, has stopped leading by that time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.timestamps import format_micro_time

LEASE_SECONDS: Final = 15.0
RENEW_DEADLINE_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 2.0
# client-go's JitterFactor: candidates try at different times.
JITTER: Final = 1.2


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things last; kube-controller-manager's defaults."""

    lease_seconds: float = LEASE_SECONDS
    renew_deadline_seconds: float = RENEW_DEADLINE_SECONDS
    retry_seconds: float = RETRY_SECONDS

    def check(self) -> None:
        """Refuse times with which two could lead."""
        if self.lease_seconds <= self.renew_deadline_seconds:
            raise ValueError("leaseDuration must be greater than renewDeadline")
        if self.renew_deadline_seconds <= JITTER * self.retry_seconds:
            raise ValueError("renewDeadline must be greater than retryPeriod*JitterFactor")
        if min(self.lease_seconds, self.renew_deadline_seconds, self.retry_seconds) <= 0:
            raise ValueError("leaseDuration, renewDeadline and retryPeriod must be greater than zero")


@dataclass(frozen=True, slots=True)
class Sighting:
    """The Lease's content as last seen, and when (on the own monotonic clock) it was first seen so."""

    spec: Document
    since: float


def sight(previous: Sighting | None, lease: Document, monotonic: float) -> Sighting:
    """Note the Lease; the time changes only when its content does."""
    spec = lease.get("spec") or {}
    if previous is not None and previous.spec == spec:
        return previous
    return Sighting(spec, monotonic)


@dataclass(frozen=True, slots=True)
class Wait:
    """Somebody else leads, or may still believe so."""

    holder: str


@dataclass(frozen=True, slots=True)
class Take:
    """Write this spec, bound to the version read, and lead if that succeeds."""

    spec: Document


def plan_election(sighting: Sighting, me: str, now: datetime, monotonic: float, timing: Timing) -> Wait | Take:
    """Whether to write the Lease, as its holder renewing or as a candidate taking over."""
    spec = sighting.spec
    holder = str(spec.get("holderIdentity") or "")
    if holder and holder != me:
        held_seconds = float(spec.get("leaseDurationSeconds") or timing.lease_seconds)
        # A holder that announced a longer lease is believed; one that announced a shorter is given our own.
        if monotonic < sighting.since + max(held_seconds, timing.lease_seconds):
            return Wait(holder)
    return Take(_held_spec(spec, me, now, timing))


def _held_spec(spec: Document, me: str, now: datetime, timing: Timing) -> Document:
    renewing = spec.get("holderIdentity") == me
    transitions = int(spec.get("leaseTransitions") or 0)
    return {
        **spec,
        "holderIdentity": me,
        "leaseDurationSeconds": int(timing.lease_seconds),
        "acquireTime": spec["acquireTime"] if renewing and "acquireTime" in spec else format_micro_time(now),
        "renewTime": format_micro_time(now),
        "leaseTransitions": transitions if renewing else transitions + 1,
    }


def first_spec(me: str, now: datetime, timing: Timing) -> Document:
    """The spec of a Lease that does not exist yet."""
    return {**_held_spec({}, me, now, timing), "leaseTransitions": 0}


def released_spec(spec: Document, now: datetime) -> Document:
    """The spec with which a leader steps down, so that the next need not wait."""
    return {
        **spec,
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": format_micro_time(now),
        "renewTime": format_micro_time(now),
    }
