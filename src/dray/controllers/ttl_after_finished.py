"""Deletes Jobs when the time to live after their end is over."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.document import NamespacedName
from dray.api.timestamps import seconds_after
from dray.api.types.batch_v1 import Job
from dray.client.controller import Requeue, Result
from dray.client.errors import ignore_not_found
from dray.client.interface import DeleteOptions, PropagationPolicy
from dray.client.objects import key_of
from dray.client.resources import JOBS
from dray.controllers.reconciler import ControllerContext, Reconciler
from dray.runtime.metrics import Metrics, exponential_buckets


class TTLAfterFinishedController(Reconciler[NamespacedName]):
    """Deletes Jobs that have `ttlSecondsAfterFinished`."""

    name = "ttl_jobs_to_delete"
    workers = 5

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._deletion_seconds = (context.metrics or Metrics()).histogram(
            "ttl_after_finished_controller_job_deletion_duration_seconds",
            "Latency, in seconds, between the expiry of a Job's TTL and its deletion",
            buckets=exponential_buckets(start=0.1, factor=2, count=14),
        )
        self._jobs = context.informers.informer(JOBS)
        self.controller.follow(self._jobs, self._job_changed)

    def _job_changed(self, _old: Job | None, new: Job | None) -> None:
        if new is not None and expires_in_seconds(new, self._clock.now()) is not None:
            self.controller.queue.add(key_of(new))

    async def reconcile(self, key: NamespacedName) -> Result:
        """Delete the Job if it has expired, else wait until it does."""
        job = self._jobs.lister.get_key(key)
        wait = None if job is None else expires_in_seconds(job, self._clock.now())
        if wait is None:
            return None
        if wait > 0:
            return Requeue(wait)
        return await ignore_not_found(self._delete(key))

    async def _delete(self, key: NamespacedName) -> Result:
        """Delete the Job after a live read: the time to live may have been extended since the cache was updated."""
        job = await self._client.get(JOBS, key.name, key.namespace)
        expiry = expiry_of(job)
        if expiry is None:
            return None
        wait = (expiry - self._clock.now()).total_seconds()
        if wait > 0:
            return Requeue(wait)
        options = DeleteOptions(
            uid=job.metadata.uid or "",
            resource_version=job.metadata.resource_version or "",
            propagation_policy=PropagationPolicy.FOREGROUND,
        )
        await self._client.delete(JOBS, key.name, key.namespace, options)
        self._deletion_seconds.observe((self._clock.now() - expiry).total_seconds())
        return None


_FINAL: Final = ("Complete", "Failed")


def expires_in_seconds(job: Job, now: datetime) -> float | None:
    """Return the seconds until the Job expires, 0 if it has; None if it never does."""
    expiry = expiry_of(job)
    return None if expiry is None else max((expiry - now).total_seconds(), 0.0)


def expiry_of(job: Job) -> datetime | None:
    """Return when the Job expires; None if it never does or is being deleted already."""
    seconds, finished = job.spec.ttl_seconds_after_finished, finish_time(job)
    if seconds is None or finished is None or job.metadata.deletion_timestamp is not None:
        return None
    return seconds_after(finished, seconds)


def finish_time(job: Job) -> datetime | None:
    """Return when the Job completed or failed."""
    for condition in job.status.conditions:
        if condition.type in _FINAL and condition.status == "True":
            return condition.last_transition_time
    return None
