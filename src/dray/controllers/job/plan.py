"""Which Pods of a Job to create and which to delete. Pure."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dray.api.types.core_v1 import Pod
from dray.controllers.job.backoff import FailureRecord, finish_time, remaining
from dray.controllers.job.failure_policy import evaluate
from dray.controllers.job.indexes import number_in
from dray.controllers.job.job_state import (
    JobState,
    completions,
    deadline,
    failures_before,
    replaces_only_failed,
    valid_index,
    verdict_of,
)
from dray.controllers.job.pod_templates import INDEX_FAILURES, INDEX_IGNORED_FAILURES, is_indexed
from dray.controllers.pod_control.replicas import choose_for_deletion, order_for_deletion

BURST_MAX: Final = 500


class Action(enum.StrEnum):
    """Outcome of one sync, as label of the metrics."""

    # The Job is decided or being deleted.
    RECONCILING = "reconciling"
    TRACKING = "tracking"
    # Also while a backoff delays the creation.
    PODS_CREATED = "pods_created"
    PODS_DELETED = "pods_deleted"


@dataclass(frozen=True, slots=True)
class Start:
    """A Pod to create: its index, and annotations about failures of its predecessors."""

    index: int | None = None
    failures: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The writes."""

    action: Action
    create: tuple[Start, ...] = ()
    # Deleted because the Job is decided; counted like any other.
    delete: tuple[Pod, ...] = ()
    # Surplus Pods; their finalizer is removed first, so that they are not counted as failed.
    discard: tuple[Pod, ...] = ()
    requeue_seconds: float | None = None


def plan_pods(state: JobState, record: FailureRecord) -> Plan:
    """Compare the running Pods with the desired number."""
    job = state.job
    if verdict_of(state) is not None:
        return Plan(Action.RECONCILING, delete=state.active)
    if job.metadata.deletion_timestamp is not None:
        return Plan(Action.RECONCILING)
    wait = _deadline_wait(state)
    if job.spec.suspend:
        return Plan(Action.PODS_DELETED, discard=state.active)
    wanted = _wanted(state)
    surplus = _surplus(state, wanted)
    if surplus:
        return Plan(Action.PODS_DELETED, discard=surplus[:BURST_MAX], requeue_seconds=wait)
    missing = wanted - len(state.active) - (len(state.terminating) if replaces_only_failed(job) else 0)
    if missing <= 0:
        return Plan(Action.TRACKING, requeue_seconds=wait)
    return _plan_creations(state, record, min(missing, BURST_MAX), wait)


def _deadline_wait(state: JobState) -> float | None:
    end = deadline(state.job)
    return None if end is None else max((end - state.now).total_seconds(), 0.0)


def _wanted(state: JobState) -> int:
    """Return how many Pods should run."""
    job = state.job
    parallelism = 1 if job.spec.parallelism is None else job.spec.parallelism
    if job.spec.completions is None:
        # A work queue: after the first success the other Pods finish on their own.
        return len(state.active) if state.succeeded > 0 else parallelism
    return max(min(job.spec.completions - state.succeeded, parallelism), 0)


def _surplus(state: JobState, wanted: int) -> tuple[Pod, ...]:
    """Return untracked Pods, Pods with a duplicate or invalid index, and as many others as exceed the number."""
    tracked = {pod.metadata.uid for pod in state.tracked}
    gone = {pod.metadata.uid: pod for pod in state.active if pod.metadata.uid not in tracked}
    if is_indexed(state.job):
        gone |= {pod.metadata.uid: pod for pod in _with_wrong_index(state)}
    rest = [pod for pod in state.active if pod.metadata.uid not in gone]
    return (*gone.values(), *choose_for_deletion(rest, max(len(rest) - wanted, 0), state.now))


def _with_wrong_index(state: JobState) -> Iterable[Pod]:
    by_index: dict[int | None, list[Pod]] = defaultdict(list)
    for pod in state.active:
        by_index[valid_index(state.job, pod)].append(pod)
    for index, pods in by_index.items():
        if index is None or index in state.succeeded_indexes or index in state.failed_indexes:
            yield from pods
        else:
            yield from order_for_deletion(pods, state.now)[:-1]


# --- New Pods. ---


def _plan_creations(state: JobState, record: FailureRecord, count: int, wait: float | None) -> Plan:
    if is_indexed(state.job) and state.job.spec.backoff_limit_per_index is not None:
        return _plan_creations_per_index(state, count, wait)
    backoff = record.remaining(state.now)
    if backoff > 0:
        return _create((), _earlier(wait, backoff))
    if not is_indexed(state.job):
        return _create((Start(),) * count, wait)
    return _create(tuple(Start(index) for index in _open_indexes(state)[:count]), wait)


def _create(starts: tuple[Start, ...], wait: float | None) -> Plan:
    return Plan(Action.PODS_CREATED, create=starts, requeue_seconds=wait)


def _open_indexes(state: JobState) -> list[int]:
    """Return the indexes without a Pod that have neither succeeded nor failed."""
    job = state.job
    busy = {valid_index(job, pod) for pod in state.active}
    if replaces_only_failed(job):
        busy |= {valid_index(job, pod) for pod in state.terminating}
    done = state.succeeded_indexes | state.failed_indexes
    return [index for index in range(completions(job)) if index not in busy and index not in done]


def _plan_creations_per_index(state: JobState, count: int, wait: float | None) -> Plan:
    """Create Pods with a backoff per index."""
    last = last_failures(state)
    starts: list[Start] = []
    for index in _open_indexes(state):
        if len(starts) == count:
            break
        pod = last.get(index)
        backoff = _index_backoff(state, pod, state.now) if pod is not None else 0.0
        if backoff > 0:
            wait = _earlier(wait, backoff)
        else:
            starts.append(Start(index, _failure_annotations(state, pod)))
    return _create(tuple(starts), wait)


def _index_backoff(state: JobState, pod: Pod, now: datetime) -> float:
    failures = sum(number for _, number in _failure_counts(state, pod))
    return remaining(failures, finish_time(pod, now), now)


def _failure_annotations(state: JobState, pod: Pod | None) -> tuple[tuple[str, str], ...]:
    if pod is None:
        return ((INDEX_FAILURES, "0"),)
    counts = _failure_counts(state, pod)
    return tuple((key, str(number)) for key, number in counts if number or key == INDEX_FAILURES)


def _failure_counts(state: JobState, pod: Pod) -> tuple[tuple[str, int], ...]:
    """Return how often the index has failed including this Pod: counted failures and ignored ones."""
    counts = evaluate(state.job.spec.pod_failure_policy, pod).counts
    ignored = number_in(pod.metadata.annotations, INDEX_IGNORED_FAILURES) or 0
    return (
        (INDEX_FAILURES, failures_before(pod) + (1 if counts else 0)),
        (INDEX_IGNORED_FAILURES, ignored + (0 if counts else 1)),
    )


def last_failures(state: JobState) -> dict[int, Pod]:
    """Return by index the failed Pod with the highest failure count; empty without a limit per index."""
    if state.job.spec.backoff_limit_per_index is None or not is_indexed(state.job):
        return {}
    last: dict[int, Pod] = {}
    for pod in state.new_failed:
        index = valid_index(state.job, pod)
        if index is not None and (index not in last or _tries(pod) > _tries(last[index])):
            last[index] = pod
    return last


def _tries(pod: Pod) -> int:
    return failures_before(pod) + (number_in(pod.metadata.annotations, INDEX_IGNORED_FAILURES) or 0)


def unreplaced(state: JobState) -> set[str]:
    """Return the uids of failed Pods that stay until replaced: their annotations hold the failure count."""
    successors: dict[int | None, int] = {}
    for pod in state.active:
        index = valid_index(state.job, pod)
        successors[index] = max(successors.get(index, -1), _tries(pod))
    done = state.succeeded_indexes | state.failed_indexes
    return {
        pod.metadata.uid or ""
        for index, pod in last_failures(state).items()
        if index not in done and successors.get(index, -1) <= _tries(pod)
    }


def _earlier(first: float | None, second: float) -> float:
    return second if first is None else min(first, second)
