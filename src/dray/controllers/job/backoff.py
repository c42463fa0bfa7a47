"""Backoff before a Job replaces failed Pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dray.api.timestamps import seconds_after
from dray.api.types.core_v1 import Pod
from dray.controllers.pod_control.pod_status import ready_condition

INITIAL_SECONDS: Final = 10.0
MAX_SECONDS: Final = 600.0
# Avoids huge powers; the maximum applies earlier.
_DOUBLINGS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Consecutive failures of a Job's Pods; not persistent, so a restart resets the backoff."""

    failures: int = 0
    last_failure: datetime | None = None

    def after(self, succeeded: Iterable[Pod], failed: Iterable[Pod], now: datetime) -> FailureRecord:
        """Return the record after these Pods have ended; a success resets it."""
        failures, last_failure = self.failures, self.last_failure
        success = max((finish_time(pod, now) for pod in succeeded), default=None)
        times = [finish_time(pod, now) for pod in failed]
        if success is not None:
            times = [time for time in times if time > success]
            failures, last_failure = 0, None
        if times:
            last_failure = max([*times, *(() if last_failure is None else (last_failure,))])
        return FailureRecord(failures + len(times), last_failure)

    def remaining(self, now: datetime) -> float:
        """Return the remaining backoff in seconds."""
        return remaining(self.failures, self.last_failure, now)


def remaining(failures: int, last_failure: datetime | None, now: datetime) -> float:
    """Return the remaining backoff after so many failures, at most twice the whole one.

    A failure that lies further in the future than its backoff is long means that the clock was set back. The Job would
    wait as long as it was set back, hours perhaps, so it does not wait.
    """
    if failures == 0 or last_failure is None:
        return 0.0
    wait = min(INITIAL_SECONDS * 2 ** min(failures - 1, _DOUBLINGS_MAX), MAX_SECONDS)
    left = (seconds_after(last_failure, wait) - now).total_seconds()
    return left if 0 < left <= 2 * wait else 0.0


def finish_time(pod: Pod, now: datetime) -> datetime:
    """Return when the Pod ended, by the best available timestamp."""
    ends = [status.state.terminated for status in pod.status.container_statuses]
    times = [end.finished_at for end in ends if end is not None and end.finished_at is not None]
    if times:
        return max(times)
    if pod.metadata.deletion_timestamp is not None:
        return pod.metadata.deletion_timestamp
    ready = ready_condition(pod)
    return ready.last_transition_time if ready is not None and ready.last_transition_time is not None else now
