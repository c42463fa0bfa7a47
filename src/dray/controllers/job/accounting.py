"""How finished Pods are counted in a Job's status, each exactly once. Pure.

A Pod keeps its finalizer until the status lists it as uncounted. Then the finalizer is removed, and afterwards the Pod
moves from the list to the count. Wherever the controller is interrupted, a Pod is in exactly one of three states: not
listed and with finalizer, listed, or counted. (Completion indexes need no list: adding an index twice has no effect.)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from dray.api.types.batch_v1 import JobCondition, JobStatus, UncountedTerminatedPods
from dray.api.types.core_v1 import Pod
from dray.controllers.job.failure_policy import evaluate
from dray.controllers.job.indexes import format_indexes
from dray.controllers.job.job_state import (
    COMPLETE,
    FAILURE_TARGET,
    JOB_FAILED,
    SUCCESS_MET,
    JobState,
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

# Uncounted Pods in a status; the rest is listed by the next write.
UNCOUNTED_MAX: Final = 500
SUSPENDED: Final = "Suspended"
REACHED: Final = Verdict("CompletionsReached", "Reached expected number of succeeded pods", succeeded=True)


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event about the Job."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Account:
    """The status to write, and the Pods whose finalizer is removed after that."""

    status: JobStatus
    release: tuple[Pod, ...]
    # Actions of failure policy rules that matched Pods counted as failed.
    failure_policy_actions: tuple[str, ...] = ()
    events: tuple[JobEvent, ...] = ()


def account(state: JobState) -> Account:
    """Return the Job's new status."""
    verdict = verdict_of(state)
    if verdict is None and has_all_completions(state) and state.job.metadata.deletion_timestamp is None:
        verdict = REACHED
    status, release, actions = _count(state, verdict)
    status = _with_counts(state, status)
    if verdict is None:
        status, events = _suspension(state, status)
        return Account(status, release, actions, events)
    status = _put(status, _condition(SUCCESS_MET if verdict.succeeded else FAILURE_TARGET, verdict, state.now))
    if not _is_settled(state, status):
        return Account(status, release, actions)
    return _finish(state, status, verdict)


# --- Counting. ---


def _count(state: JobState, verdict: Verdict | None) -> tuple[JobStatus, tuple[Pod, ...], tuple[str, ...]]:
    status, uncounted = state.job.status, state.uncounted
    tracked = {pod.metadata.uid for pod in state.tracked}
    succeeded = [uid for uid in uncounted.succeeded if uid in tracked]
    failed = [uid for uid in uncounted.failed if uid in tracked]
    counted_succeeded = (status.succeeded or 0) + len(uncounted.succeeded) - len(succeeded)
    counted_failed = (status.failed or 0) + len(uncounted.failed) - len(failed)
    kept = unreplaced(state) if verdict is None else set()
    release: list[Pod] = []
    actions: list[str] = []
    for pod in state.tracked:
        if len(succeeded) + len(failed) >= UNCOUNTED_MAX:
            break
        uid = pod.metadata.uid or ""
        if uid in kept or not _is_releasable(state, pod, verdict):
            continue
        release.append(pod)
        if uid in succeeded or uid in failed:
            continue
        if pod.status.phase == SUCCEEDED:
            succeeded += [] if is_indexed(state.job) else [uid]
        elif _has_failed(state, pod, verdict):
            decision = evaluate(state.job.spec.pod_failure_policy, pod)
            actions += [decision.action] if decision.matched else []
            failed += [uid] if decision.counts else []
    changes: dict[str, object] = {
        "succeeded": counted_succeeded or None,
        "failed": counted_failed or None,
        "uncounted_terminated_pods": UncountedTerminatedPods(succeeded=tuple(succeeded), failed=tuple(failed)),
    }
    if is_indexed(state.job):
        changes["succeeded"] = len(state.succeeded_indexes) or None
        changes["completed_indexes"] = format_indexes(state.succeeded_indexes) or None
        if state.job.spec.backoff_limit_per_index is not None:
            changes["failed_indexes"] = format_indexes(state.failed_indexes)
    return msgspec.structs.replace(status, **changes), tuple(release), tuple(actions)


def _is_releasable(state: JobState, pod: Pod, verdict: Verdict | None) -> bool:
    """Return whether the Pod's finalizer can be removed: it has ended, or is deleted with the decided Job."""
    if pod.status.phase == SUCCEEDED or is_failed(state.job, pod):
        return True
    deleting = pod.metadata.deletion_timestamp is not None
    return state.job.metadata.deletion_timestamp is not None or (verdict is not None and deleting)


def _has_failed(state: JobState, pod: Pod, verdict: Verdict | None) -> bool:
    """Return whether the Pod counts as failed: of a failed Job all unfinished Pods do, of a succeeded one none."""
    if is_indexed(state.job) and valid_index(state.job, pod) is None:
        return False
    return is_failed(state.job, pod) if verdict is None else pod.status.phase == FAILED or not verdict.succeeded


def _with_counts(state: JobState, status: JobStatus) -> JobStatus:
    start = status.start_time
    if start is None and not state.job.spec.suspend:
        start = state.now.replace(microsecond=0)
    return msgspec.structs.replace(
        status,
        active=len(state.active) or None,
        ready=sum(is_ready(pod) for pod in state.active),
        terminating=len(state.terminating),
        start_time=start,
    )


# --- Conditions. ---


def _condition(kind: str, verdict: Verdict, now: datetime) -> JobCondition:
    return _make_condition(kind, "True", verdict.reason, verdict.message, now)


def _make_condition(kind: str, status: str, reason: str, message: str, now: datetime) -> JobCondition:
    now = now.replace(microsecond=0)
    return JobCondition(
        type=kind, status=status, reason=reason, message=message, last_probe_time=now, last_transition_time=now
    )


def _put(status: JobStatus, condition: JobCondition) -> JobStatus:
    """Set a condition, unless it has the same status already."""
    current = next((item for item in status.conditions if item.type == condition.type), None)
    if current is not None and current.status == condition.status:
        return status
    others = tuple(item for item in status.conditions if item.type != condition.type)
    return msgspec.structs.replace(status, conditions=(*others, condition))


def _suspension(state: JobState, status: JobStatus) -> tuple[JobStatus, tuple[JobEvent, ...]]:
    was = find(status.conditions, SUSPENDED) is not None
    if state.job.metadata.deletion_timestamp is not None or bool(state.job.spec.suspend) is was:
        return status, ()
    if state.job.spec.suspend:
        status = _put(status, _make_condition(SUSPENDED, "True", "JobSuspended", "Job suspended", state.now))
        return status, (JobEvent("Suspended", "Job suspended"),)
    status = _put(status, _make_condition(SUSPENDED, "False", "JobResumed", "Job resumed", state.now))
    # The active deadline does not include the time of suspension.
    start = state.now.replace(microsecond=0)
    return msgspec.structs.replace(status, start_time=start), (JobEvent("Resumed", "Job resumed"),)


def _is_settled(state: JobState, status: JobStatus) -> bool:
    """Return whether every Pod has ended and is counted."""
    uncounted = status.uncounted_terminated_pods
    listed = uncounted is not None and (uncounted.succeeded or uncounted.failed)
    return not (state.tracked or listed or state.active or state.terminating)


def _finish(state: JobState, status: JobStatus, verdict: Verdict) -> Account:
    condition = _condition(COMPLETE if verdict.succeeded else JOB_FAILED, verdict, state.now)
    status = _put(status, condition)
    if not verdict.succeeded:
        return Account(status, (), events=(JobEvent(verdict.reason, verdict.message, warning=True),))
    status = msgspec.structs.replace(status, completion_time=condition.last_transition_time)
    return Account(status, (), events=(*_surplus_event(state, status), JobEvent("Completed", "Job completed")))


def _surplus_event(state: JobState, status: JobStatus) -> tuple[JobEvent, ...]:
    """Return a warning if more Pods succeeded than requested: adopted ones, or ones created from a stale cache."""
    wanted = state.job.spec.completions
    if wanted is None or (status.succeeded or 0) <= wanted:
        return ()
    message = "Too many succeeded pods running after completion count reached"
    return (JobEvent("TooManySucceededPods", message, warning=True),)


class UntrackedPods:
    """Pods whose finalizer was removed, until the informer delivers that: counting them again would count twice."""

    def __init__(self) -> None:
        # Uid -> whether the API server has confirmed the removal.
        self._removals: dict[str, bool] = {}

    @property
    def uids(self) -> Collection[str]:
        """The uids of the Pods, as a collection that follows them."""
        return self._removals

    def expect_removal(self, uid: str) -> None:
        """Record that the finalizer is about to be removed, perhaps again."""
        self._removals.setdefault(uid, False)

    def removed(self, uid: str) -> None:
        """Record the response, unless the informer delivered the change before it."""
        if uid in self._removals:
            self._removals[uid] = True

    def removal_failed(self, uid: str) -> None:
        """Drop a removal whose outcome is unknown, unless another request has removed the finalizer."""
        if not self._removals.get(uid, False):
            self._removals.pop(uid, None)

    def observe(self, pod: Pod, *, tracked: bool) -> None:
        """Handle an informer event; a deleted Pod is not tracked."""
        if not tracked:
            self._removals.pop(pod.metadata.uid or "", None)

    def __contains__(self, uid: object) -> bool:
        return self._removals.get(uid, False) if isinstance(uid, str) else False
