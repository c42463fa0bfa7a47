"""When a finished Job is to go; pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from dray.api.types.batch_v1 import Job

_FINAL: Final = ("Complete", "Failed")


def expires_in_seconds(job: Job, now: datetime) -> float | None:
    """How long until the Job goes, 0 when it is time; None when it stays."""
    expiry = expiry_of(job)
    return None if expiry is None else max((expiry - now).total_seconds(), 0.0)


def expiry_of(job: Job) -> datetime | None:
    """When the Job has to go; None when it stays, or is going already."""
    seconds, finished = job.spec.ttl_seconds_after_finished, finish_time(job)
    if seconds is None or finished is None or job.metadata.deletion_timestamp is not None:
        return None
    return finished + timedelta(seconds=seconds)


def finish_time(job: Job) -> datetime | None:
    """When the Job came to its end."""
    for condition in job.status.conditions:
        if condition.type in _FINAL and condition.status == "True":
            return condition.last_transition_time
    return None
