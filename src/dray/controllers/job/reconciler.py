"""Creates and deletes the Pods of Jobs, counts finished Pods and reports the status of Jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from dray.api.document import Document, NamespacedName
from dray.api.errors import APIError
from dray.api.types.batch_v1 import Job
from dray.api.types.core_v1 import Pod
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.controller import Result
from dray.client.errors import ignore_not_found
from dray.client.event_recorder import NORMAL, WARNING
from dray.client.interface import Patch, PatchType
from dray.client.objects import controller_of, key_of
from dray.client.resources import JOBS, PODS
from dray.controllers.job import plan
from dray.controllers.job.accounting import Account, UntrackedPods, account
from dray.controllers.job.backoff import FailureRecord
from dray.controllers.job.job_groups import JobGroups
from dray.controllers.job.job_state import JobState, is_finished, make_job_state
from dray.controllers.job.metrics import JobMetrics, Sync
from dray.controllers.job.pod_templates import INDEXED, KIND, NON_INDEXED, TRACKING, make_job_pod, owner_of
from dray.controllers.pod_control.ownership import BY_ORPHAN_NAMESPACE, Owner, enqueue_owners, gone_uid
from dray.controllers.pod_control.pod_control import DELETIONS_MAX, NewPod, PodControl
from dray.controllers.reconciler import ControllerContext, PodKey, Reconciler, newest
from dray.runtime.metrics import Metrics

MANAGED_BY: Final = "kubernetes.io/job-controller"
UNKNOWN_MODE: Final = "UnknownCompletionMode"
UNKNOWN_MODE_MESSAGE: Final = "Skipped Job sync because completion mode is unknown"
COMPLETION_MODES: Final = (None, NON_INDEXED, INDEXED)
# List a Pod as uncounted, remove its finalizer, count it: after so many writes the status is final or waits for events.
STATUS_WRITES_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class JobKey:
    """A Job."""

    key: NamespacedName


class JobController(Reconciler[JobKey | PodKey]):
    """Runs the Pods of Jobs to completion; a `PodKey` is a Pod whose finalizer no Job will remove."""

    name = "job"
    component = "job-controller"
    workers = 5

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._metrics = JobMetrics(context.metrics or Metrics())
        self._untracked = UntrackedPods()
        # By Job uid.
        self._records: dict[str, FailureRecord] = {}
        # By Job uid: what was written and the informer has not delivered yet.
        self._written: dict[str, Job] = {}
        self._control = PodControl(context, JOBS, self._recorder, finalizer=TRACKING)
        # None while Jobs have no groups.
        self._groups = JobGroups(context, self._recorder) if context.gates.enabled("WorkloadWithJob") else None
        self._jobs = context.informers.informer(JOBS)
        enqueue = enqueue_owners(
            self._jobs,
            lambda job: None if is_finished(job) else owner_of(job),
            lambda key: self.controller.queue.add(JobKey(key)),
        )
        self.controller.follow(self._jobs, self._job_changed)
        self.controller.follow(self._control.pods, self._pod_changed)
        self.controller.follow(self._control.pods, self._observe_removal, needed_while=self._untracked.uids)
        self.controller.follow(self._control.pods, enqueue, needed_while=self._jobs.lister.namespaces)

    async def reconcile(self, key: JobKey | PodKey) -> Result:
        """Reconcile one Job, or remove the finalizer of one orphaned Pod."""
        if isinstance(key, PodKey):
            await self._reconcile_pod(key.key)
            return None
        return await self._reconcile_job(key.key)

    # --- Event handlers. ---

    def _job_changed(self, old: Job | None, new: Job | None) -> None:
        gone = gone_uid(old, new)
        if gone is not None:
            self._records.pop(gone, None)
            self._written.pop(gone, None)
        if new is not None:
            self._note_version(new)
            if old is None and _is_managed_elsewhere(new):
                self._metrics.managed_by_other(new.spec.managed_by or "")
        for item in (old, new):
            if item is not None:
                self.controller.queue.add(JobKey(key_of(item)))
        if old is None and new is not None:
            self.controller.queue.object_created(JobKey(key_of(new)))
        elif old is not None and new is None:
            self.controller.queue.object_deleted(JobKey(key_of(old)))
        ended = gone is not None or (new is not None and is_finished(new))
        if ended and old is not None:
            lister = self._control.pods.lister
            orphans = lister.by_index(BY_ORPHAN_NAMESPACE, old.metadata.namespace or "")
            for pod in (*lister.owned_by(old.metadata.uid or ""), *orphans):
                self._enqueue_if_orphaned(pod)

    def _note_version(self, job: Job) -> None:
        written = self._written.get(job.metadata.uid or "")
        if written is not None and _version(job) >= _version(written):
            del self._written[job.metadata.uid or ""]

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        was_tracked = old is not None and TRACKING in old.metadata.finalizers
        tracked = new is not None and TRACKING in new.metadata.finalizers
        if was_tracked or tracked:
            self._metrics.pod_changed(old, new)
        if new is not None and tracked:
            self._enqueue_if_orphaned(new)

    def _observe_removal(self, old: Pod | None, new: Pod | None) -> None:
        tracked = new is not None and TRACKING in new.metadata.finalizers
        self._untracked.observe(newest(old, new), tracked=tracked)

    def _enqueue_if_orphaned(self, pod: Pod) -> None:
        """Enqueue a Pod that has the finalizer although no Job will count it."""
        if TRACKING not in pod.metadata.finalizers or self._will_be_adopted(pod):
            return
        controller = controller_of(pod)
        if controller is not None and controller.kind == JOBS.kind:
            job = self._jobs.lister.get(controller.name, pod.metadata.namespace or "")
            if job is not None and job.metadata.uid == controller.uid and not is_finished(job):
                return
        self.controller.queue.add(PodKey(key_of(pod)))

    def _will_be_adopted(self, pod: Pod) -> bool:
        """Return whether a Job adopts the orphan: without the finalizer it would be replaced instead."""
        if controller_of(pod) is not None or pod.metadata.deletion_timestamp is not None:
            return False
        jobs = self._jobs.lister.list(pod.metadata.namespace or "")
        owners = [owner_of(job) for job in jobs if not is_finished(job) and not _is_managed_elsewhere(job)]
        return any(not owner.deleting and owner.selector.matches(pod.metadata.labels) for owner in owners)

    # --- Jobs. ---

    async def _reconcile_job(self, key: NamespacedName) -> Result:
        job = self._latest(key)
        if job is None or is_finished(job) or _is_managed_elsewhere(job):
            return None
        if job.spec.completion_mode not in COMPLETION_MODES:
            # Written by an API server that is newer than this controller.
            self._recorder.event(KIND, job, WARNING, UNKNOWN_MODE, UNKNOWN_MODE_MESSAGE)
            return None
        with self._metrics.sync(job, self._clock) as sync:
            return await self._sync(job, sync)

    async def _sync(self, job: Job, sync: Sync) -> Result:
        owner = owner_of(job)
        state = self._state(job, await self._control.claim(owner))
        record = self._record(state)
        wanted = plan.plan_pods(state, record)
        sync.action = wanted.action
        group = await self._groups.group_for(job, has_pods=bool(state.pods)) if self._groups is not None else None
        error = await self._write_pods(owner, state, wanted, group)
        for _ in range(STATUS_WRITES_MAX):
            state = self._state(job, self._control.dependents(owner).owned)
            result = account(state)
            changed = await self._report(job, result)
            if changed is None:
                return None
            if changed is job and not result.release:
                break
            self._metrics.failure_policy_applied(result.failure_policy_actions)
            self._records[owner.uid] = record
            failed = await self._remove_finalizers(result.release)
            error = error or failed
            job = changed
        if error is not None:
            raise error
        return self._control.requeue_after(owner, wanted.requeue_seconds)

    def _latest(self, key: NamespacedName) -> Job | None:
        """Return the Job as last received or written: an older status would count or create Pods twice."""
        job = self._jobs.lister.get_key(key)
        if job is None:
            return None
        return self._written.get(job.metadata.uid or "", job)

    def _state(self, job: Job, pods: Sequence[Pod]) -> JobState:
        return make_job_state(job, pods, self._untracked, self._clock.now())

    def _record(self, state: JobState) -> FailureRecord:
        before = self._records.get(state.job.metadata.uid or "", FailureRecord())
        return before.after(state.new_succeeded, state.new_failed, state.now)

    async def _write_pods(
        self, owner: Owner, state: JobState, wanted: plan.Plan, group: PodGroup | None
    ) -> APIError | None:
        job = state.job
        if wanted.discard:
            # With the finalizer a deleted Pod would be counted as failed.
            failed = await self._remove_finalizers(wanted.discard)
            if failed is not None:
                return failed
        gone = (*wanted.discard, *wanted.delete)
        refused = await self._control.delete(job, gone) if gone else None
        new = [
            NewPod(make_job_pod(owner, job, start.index, dict(start.failures), group), start.index)
            for start in wanted.create
        ]
        failed = (
            await self._control.create(owner, job, new, on_created=partial(self._count_creation, state))
            if new
            else None
        )
        return refused or failed

    def _count_creation(self, state: JobState, error: APIError | None) -> None:
        self._metrics.created(state, success=error is None)

    async def _report(self, job: Job, result: Account) -> Job | None:
        """Write the status; return the written Job, or None if it was deleted."""
        if job.status == result.status:
            return job
        written = await ignore_not_found(
            self._client.update_status(JOBS, msgspec.structs.replace(job, status=result.status))
        )
        if written is None:
            return None
        self._metrics.reported(job, written)
        self._written[written.metadata.uid or ""] = written
        current = self._jobs.lister.get_key(key_of(written))
        if current is not None and current.metadata.uid == written.metadata.uid:
            self._note_version(current)
        for event in result.events:
            event_type = WARNING if event.warning else NORMAL
            self._recorder.event(KIND, written, event_type, event.reason, event.message)
        return written

    # --- Finalizers. ---

    async def _remove_finalizers(self, pods: Sequence[Pod]) -> APIError | None:
        """Remove the finalizer of counted Pods; return the first error."""
        failure: APIError | None = None
        for start in range(0, len(pods), DELETIONS_MAX):
            batch = pods[start : start + DELETIONS_MAX]
            outcomes = await asyncio.gather(*(self._remove_finalizer(pod) for pod in batch))
            failure = next((outcome for outcome in (failure, *outcomes) if outcome is not None), None)
        return failure

    async def _remove_finalizer(self, pod: Pod) -> APIError | None:
        key, uid = key_of(pod), pod.metadata.uid or ""
        if TRACKING not in pod.metadata.finalizers or uid in self._untracked:
            return None
        self._untracked.expect_removal(uid)
        patch = Patch(PatchType.STRATEGIC, _without_finalizer(uid))
        try:
            await ignore_not_found(self._client.patch(PODS, key.name, key.namespace, patch))
        except APIError as error:
            self._untracked.removal_failed(uid)
            return error
        self._untracked.removed(uid)
        return None

    async def _reconcile_pod(self, key: NamespacedName) -> None:
        """Remove the Pod's finalizer unless the API server has a Job that will count it."""
        pod = self._control.pods.lister.get_key(key)
        if pod is None or TRACKING not in pod.metadata.finalizers or self._will_be_adopted(pod):
            return
        controller = controller_of(pod)
        if controller is not None and controller.kind == JOBS.kind:
            job = await ignore_not_found(self._client.get(JOBS, controller.name, key.namespace))
            if job is not None and job.metadata.uid == controller.uid and not is_finished(job):
                return
        error = await self._remove_finalizer(pod)
        if error is not None:
            raise error


def _is_managed_elsewhere(job: Job) -> bool:
    """Return whether another controller manages the Job."""
    return job.spec.managed_by not in (None, MANAGED_BY)


def _without_finalizer(uid: str) -> Document:
    return {"metadata": {"uid": uid, "$deleteFromPrimitiveList/finalizers": [TRACKING]}}


def _version(job: Job) -> int:
    """Return the resource version as a number: since Kubernetes 1.35 versions of one object are comparable."""
    text = job.metadata.resource_version or ""
    return int(text) if text.isdigit() else 0
