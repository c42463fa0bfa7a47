"""Periods in the lifecycle of a Pod: retries, back-off and termination grace. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from dray.api.types.core_v1 import Container, Pod
from dray.node.agent.pod.events import ProbeKind

DEFAULT_GRACE_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class Timing:
    """Retry and back-off periods in seconds; the defaults are kubelet's."""

    restart_backoff: float = 10.0
    restart_backoff_max: float = 300.0
    # A missing image or configuration.
    start_retry: float = 10.0
    image_backoff_max: float = 300.0
    # Devices and volumes; kubelet retries at every sync.
    prepare_retry: float = 2.0
    prepare_retry_max: float = 60.0
    release_retry: float = 2.0
    # The grace period of a sidecar when the other containers have used up the Pod's.
    grace_least: float = 2.0


KUBELET_TIMING: Final = Timing()


@dataclass(slots=True)
class Retry:
    """When to retry an operation on the whole Pod."""

    # None while the operation is running, or not needed.
    at: datetime | None = None
    seconds: float = 0.0

    def failed(self, now: datetime, first: float, most: float) -> None:
        """Schedule the next attempt; the delay doubles."""
        self.seconds = min(self.seconds * 2, most) if self.seconds else first
        self.at = now + timedelta(seconds=self.seconds)

    def retry_now(self, now: datetime) -> None:
        """Skip the rest of the delay, if there is one."""
        if self.at is not None:
            self.at = now

    def due(self, now: datetime) -> bool:
        """Whether the delay is over."""
        return self.at is not None and self.at <= now


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double, counted from the time of the failure; the first delay is zero."""

    first_seconds: float
    max_seconds: float
    # The delay after the next failure; zero before the first restart.
    seconds: float = 0.0
    updated: datetime | None = None

    def ready_at(self, failed: datetime) -> datetime:
        """Return when to retry after a failure at that time."""
        return failed + timedelta(seconds=self.seconds_for(failed))

    def seconds_for(self, failed: datetime) -> float:
        """Return the delay after a failure at that time; it is reset after twice the longest delay without one."""
        if self.updated is None or (failed - self.updated).total_seconds() > 2 * self.max_seconds:
            return 0.0
        return self.seconds

    def after_retry(self, now: datetime) -> Backoff:
        """Return the back-off that applies after a retry at that time."""
        current = self.seconds_for(now)
        following = min(current * 2, self.max_seconds) if current else self.first_seconds
        return Backoff(self.first_seconds, self.max_seconds, following, now)


def spec_grace(pod: Pod) -> float:
    """Return the grace period in the Pod's spec."""
    grace = pod.spec.termination_grace_period_seconds
    return float(DEFAULT_GRACE_SECONDS if grace is None else grace)


def termination_grace(pod: Pod) -> float:
    """Return the grace period of a terminating Pod; the delete request may have set a shorter one."""
    requested = pod.metadata.deletion_grace_period_seconds
    if pod.metadata.deletion_timestamp is None or requested is None:
        return spec_grace(pod)
    return float(requested)


def probe_grace(pod: Pod, container: Container, kind: ProbeKind) -> float:
    """Return the grace period of a container that failed a probe."""
    probe = container.liveness_probe if kind is ProbeKind.LIVENESS else container.startup_probe
    grace = probe.termination_grace_period_seconds if probe is not None else None
    return spec_grace(pod) if grace is None else float(grace)


def format_duration(seconds: float) -> str:
    """Format as Go does: 10s, 1m20s, 5m0s."""
    minutes, rest = divmod(seconds, 60)
    text = f"{rest:g}s"
    return f"{int(minutes)}m{text}" if minutes else text
