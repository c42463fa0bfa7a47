"""The hands of the controller that deletes finished Jobs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from dray.api.document import NamespacedName
from dray.api.types.batch_v1 import Job
from dray.client.controller import Controller, Requeue, Result
from dray.client.interface import Client, DeleteOptions, PropagationPolicy, ignore_not_found
from dray.client.objects import key_of
from dray.client.resources import JOBS
from dray.client.shared_informers import SharedInformerFactory
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics, exponential_buckets

NAME: Final = "ttl_jobs_to_delete"
WORKERS: Final = 5


class TTLAfterFinishedController:
    """Runs until cancelled."""

    def __init__(
        self, client: Client, informers: SharedInformerFactory, clock: Clock, *, metrics: Metrics | None = None
    ) -> None:
        self._client = client
        self._clock = clock
        self._deletion_seconds = (metrics or Metrics()).histogram(
            "ttl_after_finished_controller_job_deletion_duration_seconds",
            "Time from when a Job had to go until it was deleted",
            buckets=exponential_buckets(start=0.1, factor=2, count=14),
        )
        self.controller: Controller[NamespacedName] = Controller(
            NAME, self.reconcile, clock, metrics=metrics, workers=WORKERS
        )
        self._jobs = informers.informer(JOBS)
        self.controller.follow(self._jobs, self._job_changed)

    async def run(self) -> None:
        """Delete finished Jobs until cancelled."""
        await self.controller.run()

    def _job_changed(self, _old: Job | None, new: Job | None) -> None:
        if new is not None and expires_in_seconds(new, self._clock.now()) is not None:
            self.controller.queue.add(key_of(new))

    async def reconcile(self, key: NamespacedName) -> Result:
        """Delete one Job when it is time."""
        job = self._jobs.lister.get_key(key)
        wait = None if job is None else expires_in_seconds(job, self._clock.now())
        if wait is None:
            return None
        if wait > 0:
            return Requeue(wait)
        return await ignore_not_found(self._delete(key))

    async def _delete(self, key: NamespacedName) -> Result:
        """Ask the server first: the time to live may have been made longer, and the cache not know it."""
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
