"""How Pods that have ended get into a Job's status, each exactly once; pure.

A Pod is held by a finalizer until the status names it. Then the finalizer goes, and when it has gone the name turns
into a number. Wherever the controller is interrupted, the Pod is in exactly one of three places: held and not named,
named, or in the number. (A completion index needs no name: an index that is there already is not added again.)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from dray.api.types.batch_v1 import JobCondition, JobStatus, UncountedTerminatedPods
from dray.api.types.core_v1 import Pod
from dray.controllers.job.failure_policy import judge
from dray.controllers.job.indexes import format_indexes
from dray.controllers.job.job_state import (
    COMPLETE,
    FAILURE_TARGET,
    JOB_FAILED,
    SUCCESS_MET,
    Scene,
    Verdict,
    find,
    has_all_completions,
    is_failed,
    valid_index,
    verdict_of,
)
from dray.controllers.job.plan import unreplaced
from dray.controllers.job.pod_templates import is_indexed
from dray.controllers.pod_control.pod_status import FAILED, SUCCEEDED, is_ready

# Names in a status; the rest waits for the next round.
UNCOUNTED_MAX: Final = 500
SUSPENDED: Final = "Suspended"
REACHED: Final = Verdict("CompletionsReached", "Reached expected number of succeeded pods", succeeded=True)


@dataclass(frozen=True, slots=True)
class Told:
    """An event: its reason and its message."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Account:
    """The status to write, and the Pods to let go when it is written."""

    status: JobStatus
    release: tuple[Pod, ...]
    # The actions of the failure policy's rules that matched Pods let go as failed.
    judged: tuple[str, ...] = ()
    told: tuple[Told, ...] = ()


def account(scene: Scene) -> Account:
    """Bring a Job's status up to date."""
    verdict = verdict_of(scene)
    if verdict is None and has_all_completions(scene) and scene.job.metadata.deletion_timestamp is None:
        verdict = REACHED
    status, release, judged = _count(scene, verdict)
    status = _numbers(scene, status)
    if verdict is None:
        status, told = _suspension(scene, status)
        return Account(status, release, judged, told)
    status = _put(status, _condition(SUCCESS_MET if verdict.succeeded else FAILURE_TARGET, verdict, scene.now))
    if not _is_settled(scene, status):
        return Account(status, release, judged)
    return _finish(scene, status, verdict)


# --- Counting. ---


def _count(scene: Scene, verdict: Verdict | None) -> tuple[JobStatus, tuple[Pod, ...], tuple[str, ...]]:
    status, uncounted = scene.job.status, scene.uncounted
    held = {pod.metadata.uid for pod in scene.tracked}
    succeeded = [uid for uid in uncounted.succeeded if uid in held]
    failed = [uid for uid in uncounted.failed if uid in held]
    counted_succeeded = (status.succeeded or 0) + len(uncounted.succeeded) - len(succeeded)
    counted_failed = (status.failed or 0) + len(uncounted.failed) - len(failed)
    kept = unreplaced(scene) if verdict is None else set()
    release: list[Pod] = []
    judged: list[str] = []
    for pod in scene.tracked:
        if len(succeeded) + len(failed) >= UNCOUNTED_MAX:
            break
        uid = pod.metadata.uid or ""
        if uid in kept or not _may_go(scene, pod, verdict):
            continue
        release.append(pod)
        if uid in succeeded or uid in failed:
            continue
        if pod.status.phase == SUCCEEDED:
            succeeded += [] if is_indexed(scene.job) else [uid]
        elif _has_failed(scene, pod, verdict):
            ruling = judge(scene.job.spec.pod_failure_policy, pod)
            judged += [ruling.action] if ruling.matched else []
            failed += [uid] if ruling.counts else []
    changes: dict[str, object] = {
        "succeeded": counted_succeeded or None,
        "failed": counted_failed or None,
        "uncounted_terminated_pods": UncountedTerminatedPods(succeeded=tuple(succeeded), failed=tuple(failed)),
    }
    if is_indexed(scene.job):
        changes["succeeded"] = len(scene.succeeded_indexes) or None
        changes["completed_indexes"] = format_indexes(scene.succeeded_indexes) or None
        if scene.job.spec.backoff_limit_per_index is not None:
            changes["failed_indexes"] = format_indexes(scene.failed_indexes)
    return msgspec.structs.replace(status, **changes), tuple(release), tuple(judged)


def _may_go(scene: Scene, pod: Pod, verdict: Verdict | None) -> bool:
    """Whether the Pod is of no further interest; when the Job is decided, one that is being deleted is not."""
    if pod.status.phase == SUCCEEDED or is_failed(scene.job, pod):
        return True
    leaving = pod.metadata.deletion_timestamp is not None
    return scene.job.metadata.deletion_timestamp is not None or (verdict is not None and leaving)


def _has_failed(scene: Scene, pod: Pod, verdict: Verdict | None) -> bool:
    """When a Job has failed, what still ran has failed with it; when it has succeeded, that has only become useless."""
    if is_indexed(scene.job) and valid_index(scene.job, pod) is None:
        return False
    return is_failed(scene.job, pod) if verdict is None else pod.status.phase == FAILED or not verdict.succeeded


def _numbers(scene: Scene, status: JobStatus) -> JobStatus:
    start = status.start_time
    if start is None and not scene.job.spec.suspend:
        start = scene.now.replace(microsecond=0)
    return msgspec.structs.replace(
        status,
        active=len(scene.active) or None,
        ready=sum(is_ready(pod) for pod in scene.active),
        terminating=len(scene.terminating),
        start_time=start,
    )


# --- Conditions. ---


def _condition(kind: str, verdict: Verdict, now: datetime) -> JobCondition:
    return _told(kind, "True", verdict.reason, verdict.message, now)


def _told(kind: str, status: str, reason: str, message: str, now: datetime) -> JobCondition:
    now = now.replace(microsecond=0)
    return JobCondition(
        type=kind, status=status, reason=reason, message=message, last_probe_time=now, last_transition_time=now
    )


def _put(status: JobStatus, condition: JobCondition) -> JobStatus:
    """Set a condition; one with the same status stays as it is."""
    current = next((item for item in status.conditions if item.type == condition.type), None)
    if current is not None and current.status == condition.status:
        return status
    others = tuple(item for item in status.conditions if item.type != condition.type)
    return msgspec.structs.replace(status, conditions=(*others, condition))


def _suspension(scene: Scene, status: JobStatus) -> tuple[JobStatus, tuple[Told, ...]]:
    was = find(status.conditions, SUSPENDED) is not None
    if scene.job.metadata.deletion_timestamp is not None or bool(scene.job.spec.suspend) is was:
        return status, ()
    if scene.job.spec.suspend:
        status = _put(status, _told(SUSPENDED, "True", "JobSuspended", "Job suspended", scene.now))
        return status, (Told("Suspended", "Job suspended"),)
    status = _put(status, _told(SUSPENDED, "False", "JobResumed", "Job resumed", scene.now))
    # The deadline must not go off for the time in which nothing could run.
    start = scene.now.replace(microsecond=0)
    return msgspec.structs.replace(status, start_time=start), (Told("Resumed", "Job resumed"),)


def _is_settled(scene: Scene, status: JobStatus) -> bool:
    """Whether every Pod has ended and is in the numbers."""
    uncounted = status.uncounted_terminated_pods
    open_names = uncounted is not None and (uncounted.succeeded or uncounted.failed)
    return not (scene.tracked or open_names or scene.active or scene.terminating)


def _finish(scene: Scene, status: JobStatus, verdict: Verdict) -> Account:
    condition = _condition(COMPLETE if verdict.succeeded else JOB_FAILED, verdict, scene.now)
    status = _put(status, condition)
    if not verdict.succeeded:
        return Account(status, (), told=(Told(verdict.reason, verdict.message, warning=True),))
    status = msgspec.structs.replace(status, completion_time=condition.last_transition_time)
    return Account(status, (), told=(*_too_many(scene, status), Told("Completed", "Job completed")))


def _too_many(scene: Scene, status: JobStatus) -> tuple[Told, ...]:
    """Adopted Pods, or those of a cache that was behind, may have succeeded beside the ones that were asked for."""
    wanted = scene.job.spec.completions
    if wanted is None or (status.succeeded or 0) <= wanted:
        return ()
    message = "Too many succeeded pods running after completion count reached"
    return (Told("TooManySucceededPods", message, warning=True),)


class UntrackedPods:
    """Counting one of them again would count it twice."""

    def __init__(self) -> None:
        # Uid -> whether the server has said that the finalizer is gone.
        self._removals: dict[str, bool] = {}

    def removing(self, uid: str) -> None:
        """The finalizer is about to be removed."""
        self._removals[uid] = False

    def removed(self, uid: str) -> None:
        """The server has said so; nothing to remember when the informer was faster."""
        if uid in self._removals:
            self._removals[uid] = True

    def not_removed(self, uid: str) -> None:
        """It is not known to be gone."""
        self._removals.pop(uid, None)

    def told(self, pod: Pod, *, tracked: bool) -> None:
        """The informer has told of the Pod; a deleted one is not tracked."""
        if not tracked:
            self._removals.pop(pod.metadata.uid or "", None)

    def __contains__(self, uid: object) -> bool:
        return self._removals.get(uid, False) if isinstance(uid, str) else False
