"""The Job controller's hands."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from dray.api.document import Document, NamespacedName
from dray.api.errors import APIError
from dray.api.types.batch_v1 import Job
from dray.api.types.core_v1 import Pod
from dray.client.controller import Controller, Result
from dray.client.event_recorder import NORMAL, WARNING
from dray.client.interface import Client, Patch, PatchType, ignore_not_found
from dray.client.objects import controller_of, key_of
from dray.client.resources import JOBS, PODS
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.job import plan
from dray.controllers.job.accounting import Account, UntrackedPods, account
from dray.controllers.job.backoff import Record
from dray.controllers.job.job_state import Scene, is_finished, make_scene
from dray.controllers.job.metrics import JobMetrics, Sync
from dray.controllers.job.pod_templates import INDEXED, KIND, NON_INDEXED, TRACKING, make_job_pod, owner_of
from dray.controllers.loop import run_telling
from dray.controllers.pod_control.ownership import Owner, gone_uid, wake_owners
from dray.controllers.pod_control.pod_control import DELETIONS_AT_ONCE, Keeper, NewPod, PodControl
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics

KEEPER: Final = Keeper(JOBS, "job-controller", finalizer=TRACKING)
NAME: Final = "job"
OURSELVES: Final = "kubernetes.io/job-controller"
UNKNOWN_MODE: Final = "UnknownCompletionMode"
UNKNOWN_MODE_MESSAGE: Final = "Skipped Job sync because completion mode is unknown"
COMPLETION_MODES: Final = (None, NON_INDEXED, INDEXED)
WORKERS: Final = 5
# Name, let go, count: the status is settled after this many rounds, or waits for something to happen.
ROUNDS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class JobKey:
    """A Job to work on."""

    key: NamespacedName


@dataclass(frozen=True, slots=True)
class PodKey:
    """A Pod that is held though no Job will count it."""

    key: NamespacedName


class JobController:
    """Runs until cancelled."""

    def __init__(
        self,
        client: Client,
        informers: SharedInformerFactory,
        clock: Clock,
        *,
        rng: random.Random,
        metrics: Metrics | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._metrics = JobMetrics(metrics or Metrics())
        self._untracked = UntrackedPods()
        # By Job uid.
        self._records: dict[str, Record] = {}
        # By Job uid: what was written and the informer has not told of yet.
        self._written: dict[str, Job] = {}
        self._control = PodControl(client, informers, clock, KEEPER, rng=rng)
        self.controller: Controller[JobKey | PodKey] = Controller(
            NAME, self.reconcile, clock, metrics=metrics, workers=WORKERS
        )
        self._jobs = informers.informer(JOBS)
        self.controller.follow(self._jobs, self._job_changed)
        self.controller.follow(self._control.pods, self._pod_changed)
        self._wake_owner = wake_owners(
            self._jobs,
            lambda job: None if is_finished(job) else owner_of(job),
            lambda key: self.controller.queue.add(JobKey(key)),
        )

    async def run(self) -> None:
        """Run Jobs until cancelled."""
        await run_telling(self.controller, self._control.recorder)

    async def reconcile(self, key: JobKey | PodKey) -> Result:
        """Do what one Job or one forgotten Pod needs."""
        if isinstance(key, PodKey):
            await self._reconcile_pod(key.key)
            return None
        return await self._reconcile_job(key.key)

    # --- What a change wakes. ---

    def _job_changed(self, old: Job | None, new: Job | None) -> None:
        gone = gone_uid(old, new)
        if gone is not None:
            self._records.pop(gone, None)
            self._written.pop(gone, None)
        if new is not None:
            self._note_version(new)
            if old is None and _is_others(new):
                self._metrics.managed_by_other(new.spec.managed_by or "")
        for item in (old, new):
            if item is not None:
                self.controller.queue.add(JobKey(key_of(item)))
        ended = gone is not None or (new is not None and is_finished(new))
        if ended and old is not None:
            for pod in self._control.pods.lister.owned_by(old.metadata.uid or ""):
                self._wake_if_held(pod)

    def _note_version(self, job: Job) -> None:
        written = self._written.get(job.metadata.uid or "")
        if written is not None and _version(job) >= _version(written):
            del self._written[job.metadata.uid or ""]

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new if new is not None else old
        assert pod is not None
        self._metrics.pod_changed(old, new)
        self._untracked.told(pod, tracked=new is not None and TRACKING in new.metadata.finalizers)
        self._wake_owner(old, new)
        if new is not None:
            self._wake_if_held(new)

    def _wake_if_held(self, pod: Pod) -> None:
        """A Pod that no Job will count is let go."""
        if TRACKING not in pod.metadata.finalizers:
            return
        controller = controller_of(pod)
        if controller is not None and controller.kind == JOBS.kind:
            job = self._jobs.lister.get(controller.name, pod.metadata.namespace or "")
            if job is not None and job.metadata.uid == controller.uid and not is_finished(job):
                return
        self.controller.queue.add(PodKey(key_of(pod)))

    # --- Jobs. ---

    async def _reconcile_job(self, key: NamespacedName) -> Result:
        job = self._latest(key)
        if job is None or is_finished(job) or _is_others(job):
            return None
        if job.spec.completion_mode not in COMPLETION_MODES:
            # Of an API server that is newer than this controller.
            self._control.recorder.event(KIND, job, WARNING, UNKNOWN_MODE, UNKNOWN_MODE_MESSAGE)
            return None
        with self._metrics.sync(job, self._clock) as sync:
            return await self._sync(job, sync)

    async def _sync(self, job: Job, sync: Sync) -> Result:
        owner = owner_of(job)
        scene = self._scene(job, await self._control.claim(owner))
        record = self._record(scene)
        wanted = plan.plan_pods(scene, record)
        sync.action = wanted.action
        error = await self._write_pods(owner, scene, wanted)
        for _ in range(ROUNDS_MAX):
            scene = self._scene(job, self._control.belongings(owner).owned)
            result = account(scene)
            changed = await self._report(job, result)
            if changed is None:
                return None
            if changed is job and not result.release:
                break
            self._metrics.judged(result.judged)
            self._records[owner.uid] = record
            failed = await self._release(result.release)
            error = error or failed
            job = changed
        if error is not None:
            raise error
        return self._control.sooner(owner, wanted.requeue_seconds)

    def _latest(self, key: NamespacedName) -> Job | None:
        """The Job as it was last told of or written: an older status would have Pods counted or started again."""
        job = self._jobs.lister.get_key(key)
        if job is None:
            return None
        return self._written.get(job.metadata.uid or "", job)

    def _scene(self, job: Job, pods: Sequence[Pod]) -> Scene:
        return make_scene(job, pods, self._untracked, self._clock.now())

    def _record(self, scene: Scene) -> Record:
        before = self._records.get(scene.job.metadata.uid or "", Record())
        return before.after(scene.new_succeeded, scene.new_failed, scene.now)

    async def _write_pods(self, owner: Owner, scene: Scene, wanted: plan.Plan) -> APIError | None:
        job = scene.job
        if wanted.discard:
            # A Pod that still has its finalizer would be counted as failed.
            failed = await self._release(wanted.discard)
            if failed is not None:
                return failed
        gone = (*wanted.discard, *wanted.delete)
        refused = await self._control.delete(job, gone) if gone else None
        new = [
            NewPod(make_job_pod(owner, job, start.index, dict(start.failures)), start.index) for start in wanted.create
        ]
        failed = await self._control.create(owner, job, new, tried=partial(self._tried, scene)) if new else None
        return refused or failed

    def _tried(self, scene: Scene, error: APIError | None) -> None:
        self._metrics.created(scene, success=error is None)

    async def _report(self, job: Job, result: Account) -> Job | None:
        """Write the status; the Job as it is then, None when it is gone."""
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
        for told in result.told:
            event_type = WARNING if told.warning else NORMAL
            self._control.recorder.event(KIND, written, event_type, told.reason, told.message)
        return written

    # --- Finalizers. ---

    async def _release(self, pods: Sequence[Pod]) -> APIError | None:
        """Remove the finalizer of Pods that are accounted for; the first error."""
        failure: APIError | None = None
        for start in range(0, len(pods), DELETIONS_AT_ONCE):
            batch = pods[start : start + DELETIONS_AT_ONCE]
            outcomes = await asyncio.gather(*(self._release_one(pod) for pod in batch))
            failure = next((outcome for outcome in (failure, *outcomes) if outcome is not None), None)
        return failure

    async def _release_one(self, pod: Pod) -> APIError | None:
        if TRACKING not in pod.metadata.finalizers:
            return None
        key, uid = key_of(pod), pod.metadata.uid or ""
        self._untracked.removing(uid)
        patch = Patch(PatchType.STRATEGIC, _without_hold(uid))
        try:
            await ignore_not_found(self._client.patch(PODS, key.name, key.namespace, patch))
        except APIError as error:
            self._untracked.not_removed(uid)
            return error
        self._untracked.removed(uid)
        return None

    async def _reconcile_pod(self, key: NamespacedName) -> None:
        """Let a Pod go unless there is a Job, on the server itself, that will count it."""
        pod = self._control.pods.lister.get_key(key)
        if pod is None or TRACKING not in pod.metadata.finalizers:
            return
        controller = controller_of(pod)
        if controller is not None and controller.kind == JOBS.kind:
            job = await ignore_not_found(self._client.get(JOBS, controller.name, key.namespace))
            if job is not None and job.metadata.uid == controller.uid and not is_finished(job):
                return
        error = await self._release_one(pod)
        if error is not None:
            raise error


def _is_others(job: Job) -> bool:
    """Whether another controller manages the Job."""
    return job.spec.managed_by not in (None, OURSELVES)


def _without_hold(uid: str) -> Document:
    return {"metadata": {"uid": uid, "$deleteFromPrimitiveList/finalizers": [TRACKING]}}


def _version(job: Job) -> int:
    """Versions of one object can be compared since Kubernetes 1.35 says so."""
    text = job.metadata.resource_version or ""
    return int(text) if text.isdigit() else 0
