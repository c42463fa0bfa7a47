"""A Job with its Pods at one point in time, and whether that decides the Job. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dray.api.timestamps import seconds_after
from dray.api.types.batch_v1 import Job, JobCondition, UncountedTerminatedPods
from dray.api.types.core_v1 import Pod
from dray.controllers.job.failure_policy import FAIL_INDEX, FAIL_JOB, evaluate
from dray.controllers.job.indexes import index_of, number_in, parse_indexes
from dray.controllers.job.pod_templates import INDEX_FAILURES, TRACKING, is_indexed
from dray.controllers.pod_control.pod_status import FAILED, SUCCEEDED, is_active, is_terminating

COMPLETE: Final = "Complete"
JOB_FAILED: Final = "Failed"
SUCCESS_MET: Final = "SuccessCriteriaMet"
FAILURE_TARGET: Final = "FailureTarget"
_NO_LIMIT: Final = 2**31 - 1
_NOTHING_UNCOUNTED: Final = UncountedTerminatedPods()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a Job has succeeded or failed."""

    reason: str
    message: str
    succeeded: bool = False


@dataclass(frozen=True, slots=True)
class JobState:
    """Input of one sync; immutable."""

    job: Job
    now: datetime
    pods: tuple[Pod, ...]
    # Pods with the finalizer, by name.
    tracked: tuple[Pod, ...]
    active: tuple[Pod, ...]
    terminating: tuple[Pod, ...]
    # Tracked Pods that have ended and are not in the status yet.
    new_succeeded: tuple[Pod, ...]
    new_failed: tuple[Pod, ...]
    succeeded_indexes: frozenset[int]
    failed_indexes: frozenset[int]
    succeeded: int
    failed: int

    @property
    def uncounted(self) -> UncountedTerminatedPods:
        """Pods that the status lists as uncounted."""
        return self.job.status.uncounted_terminated_pods or _NOTHING_UNCOUNTED


def completions(job: Job) -> int:
    """Return the number of indexes."""
    return _NO_LIMIT if job.spec.completions is None else job.spec.completions


def replaces_only_failed(job: Job) -> bool:
    """Return whether a Pod that is being deleted is replaced only after it has ended."""
    return job.spec.pod_replacement_policy == FAILED or job.spec.pod_failure_policy is not None


def is_failed(job: Job, pod: Pod) -> bool:
    """Return whether the Pod counts as failed; a deleted one does at once, unless only ended Pods are replaced."""
    if pod.status.phase in (FAILED, SUCCEEDED):
        return pod.status.phase == FAILED
    return pod.metadata.deletion_timestamp is not None and not replaces_only_failed(job)


def valid_index(job: Job, pod: Pod) -> int | None:
    """Return the Pod's index; None if it has none or is out of range."""
    index = index_of(pod)
    return index if index is not None and index < completions(job) else None


def make_job_state(job: Job, pods: Iterable[Pod], untracked: Container[str], now: datetime) -> JobState:
    """Classify the Pods of a Job."""
    pods = tuple(sorted(pods, key=lambda pod: pod.metadata.name or ""))
    tracked = tuple(pod for pod in pods if TRACKING in pod.metadata.finalizers and pod.metadata.uid not in untracked)
    uncounted = job.status.uncounted_terminated_pods or _NOTHING_UNCOUNTED
    known = {*uncounted.succeeded, *uncounted.failed}
    ended = [pod for pod in tracked if pod.metadata.uid not in known]
    new_succeeded = tuple(pod for pod in ended if pod.status.phase == SUCCEEDED)
    new_failed = tuple(pod for pod in ended if is_failed(job, pod))
    indexes = _succeeded_indexes(job, new_succeeded)
    status = job.status
    succeeded = (status.succeeded or 0) + len(uncounted.succeeded) + len(new_succeeded)
    counted = sum(evaluate(job.spec.pod_failure_policy, pod).counts for pod in new_failed)
    return JobState(
        job=job,
        now=now,
        pods=pods,
        tracked=tracked,
        active=tuple(pod for pod in pods if is_active(pod)),
        terminating=tuple(pod for pod in pods if is_terminating(pod)),
        new_succeeded=new_succeeded,
        new_failed=new_failed,
        succeeded_indexes=indexes,
        failed_indexes=_failed_indexes(job, new_failed),
        succeeded=len(indexes) if is_indexed(job) else succeeded,
        failed=(status.failed or 0) + len(uncounted.failed) + counted,
    )


def _succeeded_indexes(job: Job, succeeded: Iterable[Pod]) -> frozenset[int]:
    if not is_indexed(job):
        return frozenset()
    found = parse_indexes(job.status.completed_indexes, completions(job))
    found.update(index for pod in succeeded if (index := valid_index(job, pod)) is not None)
    return frozenset(found)


def _failed_indexes(job: Job, failed: Iterable[Pod]) -> frozenset[int]:
    """Return the indexes that exceeded their backoff limit or failed by the policy; empty without a limit per index."""
    limit = job.spec.backoff_limit_per_index
    if limit is None or not is_indexed(job):
        return frozenset()
    found = parse_indexes(job.status.failed_indexes, completions(job))
    for pod in failed:
        index, decision = valid_index(job, pod), evaluate(job.spec.pod_failure_policy, pod)
        final = decision.action == FAIL_INDEX or (decision.counts and failures_before(pod) >= limit)
        if index is not None and final:
            found.add(index)
    return frozenset(found)


def failures_before(pod: Pod) -> int:
    """Return how often the Pod's index had failed before."""
    return number_in(pod.metadata.annotations, INDEX_FAILURES) or 0


# --- Verdicts. ---


def find(conditions: Iterable[JobCondition], kind: str) -> JobCondition | None:
    """Return the condition of that type if it is true."""
    return next((item for item in conditions if item.type == kind and item.status == "True"), None)


def is_finished(job: Job) -> bool:
    """Return whether the Job has completed or failed."""
    return any(find(job.status.conditions, kind) is not None for kind in (COMPLETE, JOB_FAILED))


def deadline(job: Job) -> datetime | None:
    """Return when the active deadline ends."""
    limit, start = job.spec.active_deadline_seconds, job.status.start_time
    if limit is None or start is None or job.spec.suspend:
        return None
    return seconds_after(start, limit)


def verdict_of(state: JobState) -> Verdict | None:
    """Return whether the Job ends before all completions; a recorded decision is final."""
    job = state.job
    for kind in (FAILURE_TARGET, SUCCESS_MET):
        recorded = find(job.status.conditions, kind)
        if recorded is not None:
            return Verdict(recorded.reason or "", recorded.message or "", succeeded=kind == SUCCESS_MET)
    return _failure(state) or _failure_of_indexes(state) or _early_success(state)


def _failure(state: JobState) -> Verdict | None:
    job = state.job
    for pod in state.new_failed:
        decision = evaluate(job.spec.pod_failure_policy, pod)
        if decision.action == FAIL_JOB:
            return Verdict("PodFailurePolicy", decision.message)
    if state.failed > _backoff_limit(job) or _restarted_too_often(state):
        return Verdict("BackoffLimitExceeded", "Job has reached the specified backoff limit")
    end = deadline(job)
    if end is not None and end <= state.now:
        return Verdict("DeadlineExceeded", "Job was active longer than specified deadline")
    return None


def _backoff_limit(job: Job) -> int:
    return _NO_LIMIT if job.spec.backoff_limit is None else job.spec.backoff_limit


def _restarted_too_often(state: JobState) -> bool:
    """Return whether container restarts exceed the limit: with `OnFailure` Pods do not fail themselves."""
    if state.job.spec.template.spec.restart_policy != "OnFailure":
        return False
    restarts = sum(
        status.restart_count
        for pod in state.pods
        if pod.status.phase in ("Running", "Pending")
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    )
    limit = _backoff_limit(state.job)
    return restarts > 0 if limit == 0 else restarts >= limit


def _failure_of_indexes(state: JobState) -> Verdict | None:
    job, failed = state.job, len(state.failed_indexes)
    if job.spec.backoff_limit_per_index is None or not is_indexed(job) or failed == 0:
        return None
    limit = job.spec.max_failed_indexes
    if limit is not None and failed > limit:
        message = "Job has exceeded the specified maximal number of failed indexes"
        return Verdict("MaxFailedIndexesExceeded", message)
    if failed + state.succeeded >= completions(job):
        return Verdict("FailedIndexes", "Job has failed indexes")
    return None


def _early_success(state: JobState) -> Verdict | None:
    policy = state.job.spec.success_policy
    if policy is None or not is_indexed(state.job):
        return None
    for number, rule in enumerate(policy.rules):
        done = state.succeeded_indexes
        wanted = None
        if rule.succeeded_indexes is not None:
            wanted = parse_indexes(rule.succeeded_indexes, completions(state.job))
            done = done & wanted
        needed = rule.succeeded_count
        if needed is None:
            needed = len(wanted) if wanted is not None else completions(state.job)
        if len(done) >= needed:
            return Verdict("SuccessPolicy", f"Matched rules at index {number}", succeeded=True)
    return None


def has_all_completions(state: JobState) -> bool:
    """Return whether enough Pods have succeeded and none is active."""
    if state.active:
        return False
    wanted = state.job.spec.completions
    return state.succeeded > 0 if wanted is None else state.succeeded >= wanted
