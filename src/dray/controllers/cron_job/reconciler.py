"""Starts the Jobs of CronJobs when they are due, keeps their history and their status."""

from __future__ import annotations

from datetime import datetime

import msgspec

from dray.api.document import NamespacedName
from dray.api.errors import AlreadyExistsError, APIError, NotFoundError
from dray.api.types.batch_v1 import CronJob, CronJobStatus, Job
from dray.api.types.core_v1 import ObjectReference
from dray.client.controller import Requeue, Result
from dray.client.errors import ignore_not_found
from dray.client.indexer import BY_OWNER_UID
from dray.client.interface import DeleteOptions, PropagationPolicy
from dray.client.objects import controller_of, key_of, owner_uids
from dray.client.resources import CRON_JOBS, JOBS
from dray.controllers.cron_job import plan
from dray.controllers.reconciler import ControllerContext, Reconciler, newest


class CronJobController(Reconciler[NamespacedName]):
    """Runs Jobs on a schedule."""

    name = "cronjob"
    component = "cronjob-controller"
    workers = 5

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._cron_jobs = context.informers.informer(CRON_JOBS)
        self._jobs = context.informers.informer(JOBS, indexes={BY_OWNER_UID: owner_uids})
        # The latest scheduled time of each CronJob, by uid: the cached status may lack the last one.
        self._scheduled: dict[str, datetime] = {}
        self.controller.follow(self._cron_jobs, self._cron_job_changed)
        self.controller.follow(self._jobs, self._job_changed)

    def _cron_job_changed(self, old: CronJob | None, new: CronJob | None) -> None:
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._scheduled.pop(old.metadata.uid or "", None)
        self.controller.queue.add(key_of(newest(old, new)))

    def _job_changed(self, old: Job | None, new: Job | None) -> None:
        job = newest(old, new)
        owner = controller_of(job)
        if owner is not None and owner.kind == CRON_JOBS.kind:
            self.controller.queue.add(NamespacedName(job.metadata.namespace or "", owner.name))

    async def reconcile(self, key: NamespacedName) -> Result:
        """Update the status, delete old Jobs, and start the one that is due."""
        cron_job = self._cron_jobs.lister.get_key(key)
        if cron_job is None:
            return None
        jobs = [
            job for job in self._jobs.lister.owned_by(cron_job.metadata.uid or "") if plan.is_controlled(job, cron_job)
        ]
        status = plan.plan_status(cron_job, jobs)
        for reference in status.missing:
            if not await self._exists(reference):
                plan.without(status, reference)
        for event in status.events:
            self._report(cron_job, event)
        for job in plan.plan_history(cron_job, jobs):
            await self._delete(cron_job, job)
        now = self._clock.now()
        start = plan.plan_start(cron_job, status.status.active, self._last(cron_job), now)
        for event in start.events:
            self._report(cron_job, event)
        wanted = status.status
        if start.time is not None:
            wanted = await self._start(cron_job, wanted, start)
        if wanted != cron_job.status:
            changed = msgspec.structs.replace(cron_job, status=wanted)
            await ignore_not_found(self._client.update_status(CRON_JOBS, changed))
        if start.wake is None:
            return None
        return Requeue(max((start.wake - self._clock.now()).total_seconds(), 0.0) + plan.WAKE_DELAY_SECONDS)

    def _last(self, cron_job: CronJob) -> datetime | None:
        times = (cron_job.status.last_schedule_time, self._scheduled.get(cron_job.metadata.uid or ""))
        return max((time for time in times if time is not None), default=None)

    async def _exists(self, reference: ObjectReference) -> bool:
        try:
            job = await self._client.get(JOBS, reference.name or "", reference.namespace or "")
        except NotFoundError:
            return False
        return job.metadata.uid == reference.uid

    async def _start(self, cron_job: CronJob, status: CronJobStatus, start: plan.Start) -> CronJobStatus:
        """Create the Job that is due, and return the status with it."""
        assert start.time is not None
        active = status.active
        if cron_job.spec.concurrency_policy == "Replace":
            for reference in active:
                job = self._jobs.lister.get(reference.name or "", reference.namespace or "")
                if job is not None and job.metadata.uid == reference.uid:
                    await self._delete(cron_job, job)
            active = ()
        job = await self._create(cron_job, plan.make_job(cron_job, start.time, start.zone))
        self._scheduled[cron_job.metadata.uid or ""] = start.time
        if job is not None and not plan.final_condition(job):
            active = (*active, plan.reference_to(job))
        return msgspec.structs.replace(status, active=active, last_schedule_time=start.time)

    async def _create(self, cron_job: CronJob, wanted: Job) -> Job | None:
        """Create a Job; one of this name that an earlier attempt created is used, another's is left alone."""
        try:
            job = await self._client.create(JOBS, wanted)
        except AlreadyExistsError:
            job = await self._client.get(JOBS, wanted.metadata.name or "", wanted.metadata.namespace or "")
            if plan.is_controlled(job, cron_job):
                return job
            text = f"Created job with unexpected parent: {job.metadata.name}"
            self._report(cron_job, plan.Event(plan.WARNING, "UnexpectedJob", text))
            return None
        except APIError as error:
            self._report(cron_job, plan.Event(plan.WARNING, "FailedCreate", f"Error creating job: {error}"))
            raise
        self._report(cron_job, plan.Event(plan.NORMAL, "SuccessfulCreate", f"Created job {job.metadata.name}"))
        return job

    async def _delete(self, cron_job: CronJob, job: Job) -> None:
        options = DeleteOptions(uid=job.metadata.uid or "", propagation_policy=PropagationPolicy.BACKGROUND)
        key = key_of(job)
        try:
            await ignore_not_found(self._client.delete(JOBS, key.name, key.namespace, options))
        except APIError as error:
            self._report(cron_job, plan.Event(plan.WARNING, "FailedDelete", f"Deleted job: {error}"))
            raise
        self._report(cron_job, plan.Event(plan.NORMAL, "SuccessfulDelete", f"Deleted job {key.name}"))

    def _report(self, cron_job: CronJob, event: plan.Event) -> None:
        self._recorder.event(CRON_JOBS.group_version_kind, cron_job, event.type, event.reason, event.message)
