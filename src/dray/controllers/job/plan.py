"""Which Pods a Job starts and which it removes; pure."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dray.api.types.core_v1 import Pod
from dray.controllers.job.backoff import Record, finish_time, remaining
from dray.controllers.job.failure_policy import judge
from dray.controllers.job.indexes import number_in
from dray.controllers.job.job_state import (
    Scene,
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
    """What a look at a Job came to, in the words of its metrics."""

    # Decided or leaving: nothing is started or stopped any more but for the end.
    RECONCILING = "reconciling"
    TRACKING = "tracking"
    # Also while it waits to do so.
    PODS_CREATED = "pods_created"
    PODS_DELETED = "pods_deleted"


@dataclass(frozen=True, slots=True)
class Start:
    """A Pod to create: its index, and what its predecessors did."""

    index: int | None = None
    failures: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The writes."""

    action: Action
    create: tuple[Start, ...] = ()
    # Ended with the Job: counted like any other.
    delete: tuple[Pod, ...] = ()
    # Not wanted any more: they lose their finalizer first, so that they are not counted as failed.
    discard: tuple[Pod, ...] = ()
    requeue_seconds: float | None = None


def plan_pods(scene: Scene, record: Record) -> Plan:
    """Compare the Pods that run with those that should."""
    job = scene.job
    if verdict_of(scene) is not None:
        return Plan(Action.RECONCILING, delete=scene.active)
    if job.metadata.deletion_timestamp is not None:
        return Plan(Action.RECONCILING)
    wait = _deadline_wait(scene)
    if job.spec.suspend:
        return Plan(Action.PODS_DELETED, discard=scene.active)
    wanted = _wanted(scene)
    surplus = _surplus(scene, wanted)
    if surplus:
        return Plan(Action.PODS_DELETED, discard=surplus[:BURST_MAX], requeue_seconds=wait)
    room = wanted - len(scene.active) - (len(scene.terminating) if replaces_only_failed(job) else 0)
    if room <= 0:
        return Plan(Action.TRACKING, requeue_seconds=wait)
    return _starts(scene, record, min(room, BURST_MAX), wait)


def _deadline_wait(scene: Scene) -> float | None:
    end = deadline(scene.job)
    return None if end is None else max((end - scene.now).total_seconds(), 0.0)


def _wanted(scene: Scene) -> int:
    """How many Pods should run now."""
    job = scene.job
    parallelism = 1 if job.spec.parallelism is None else job.spec.parallelism
    if job.spec.completions is None:
        # A work queue: when one has succeeded the others finish by themselves.
        return len(scene.active) if scene.succeeded > 0 else parallelism
    return max(min(job.spec.completions - scene.succeeded, parallelism), 0)


def _surplus(scene: Scene, wanted: int) -> tuple[Pod, ...]:
    """Pods that nobody will count, Pods of the same or of no index, and as many others as are too many."""
    held = {pod.metadata.uid for pod in scene.tracked}
    gone = {pod.metadata.uid: pod for pod in scene.active if pod.metadata.uid not in held}
    if is_indexed(scene.job):
        gone |= {pod.metadata.uid: pod for pod in _misplaced(scene)}
    rest = [pod for pod in scene.active if pod.metadata.uid not in gone]
    return (*gone.values(), *choose_for_deletion(rest, max(len(rest) - wanted, 0), scene.now))


def _misplaced(scene: Scene) -> Iterable[Pod]:
    by_index: dict[int | None, list[Pod]] = defaultdict(list)
    for pod in scene.active:
        by_index[valid_index(scene.job, pod)].append(pod)
    for index, pods in by_index.items():
        if index is None or index in scene.succeeded_indexes or index in scene.failed_indexes:
            yield from pods
        else:
            yield from order_for_deletion(pods, scene.now)[:-1]


# --- New Pods. ---


def _starts(scene: Scene, record: Record, count: int, wait: float | None) -> Plan:
    if is_indexed(scene.job) and scene.job.spec.backoff_limit_per_index is not None:
        return _starts_per_index(scene, count, wait)
    backoff = record.remaining(scene.now)
    if backoff > 0:
        return _create((), _sooner(wait, backoff))
    if not is_indexed(scene.job):
        return _create((Start(),) * count, wait)
    return _create(tuple(Start(index) for index in _free(scene)[:count]), wait)


def _create(starts: tuple[Start, ...], wait: float | None) -> Plan:
    return Plan(Action.PODS_CREATED, create=starts, requeue_seconds=wait)


def _free(scene: Scene) -> list[int]:
    """The indexes that nobody works on and that are not done."""
    job = scene.job
    busy = {valid_index(job, pod) for pod in scene.active}
    if replaces_only_failed(job):
        busy |= {valid_index(job, pod) for pod in scene.terminating}
    done = scene.succeeded_indexes | scene.failed_indexes
    return [index for index in range(completions(job)) if index not in busy and index not in done]


def _starts_per_index(scene: Scene, count: int, wait: float | None) -> Plan:
    """Each index waits for itself."""
    last = last_failures(scene)
    starts: list[Start] = []
    for index in _free(scene):
        if len(starts) == count:
            break
        pod = last.get(index)
        backoff = _index_backoff(scene, pod, scene.now) if pod is not None else 0.0
        if backoff > 0:
            wait = _sooner(wait, backoff)
        else:
            starts.append(Start(index, _history(scene, pod)))
    return _create(tuple(starts), wait)


def _index_backoff(scene: Scene, pod: Pod, now: datetime) -> float:
    failures = sum(number for _, number in _failure_counts(scene, pod))
    return remaining(failures, finish_time(pod, now), now)


def _history(scene: Scene, pod: Pod | None) -> tuple[tuple[str, str], ...]:
    if pod is None:
        return ((INDEX_FAILURES, "0"),)
    counts = _failure_counts(scene, pod)
    return tuple((key, str(number)) for key, number in counts if number or key == INDEX_FAILURES)


def _failure_counts(scene: Scene, pod: Pod) -> tuple[tuple[str, int], ...]:
    """How often the index has failed with this Pod, counted and ignored."""
    counts = judge(scene.job.spec.pod_failure_policy, pod).counts
    ignored = number_in(pod.metadata.annotations, INDEX_IGNORED_FAILURES) or 0
    return (
        (INDEX_FAILURES, failures_before(pod) + (1 if counts else 0)),
        (INDEX_IGNORED_FAILURES, ignored + (0 if counts else 1)),
    )


def last_failures(scene: Scene) -> dict[int, Pod]:
    """With a limit per index: the failed Pod of each index that knows how often it failed."""
    if scene.job.spec.backoff_limit_per_index is None or not is_indexed(scene.job):
        return {}
    last: dict[int, Pod] = {}
    for pod in scene.new_failed:
        index = valid_index(scene.job, pod)
        if index is not None and (index not in last or _tries(pod) > _tries(last[index])):
            last[index] = pod
    return last


def _tries(pod: Pod) -> int:
    return failures_before(pod) + (number_in(pod.metadata.annotations, INDEX_IGNORED_FAILURES) or 0)


def unreplaced(scene: Scene) -> set[str]:
    """Uids of failed Pods that must be kept until their successor exists: they know how often the index failed."""
    successors: dict[int | None, int] = {}
    for pod in scene.active:
        index = valid_index(scene.job, pod)
        successors[index] = max(successors.get(index, -1), _tries(pod))
    done = scene.succeeded_indexes | scene.failed_indexes
    return {
        pod.metadata.uid or ""
        for index, pod in last_failures(scene).items()
        if index not in done and successors.get(index, -1) <= _tries(pod)
    }


def _sooner(first: float | None, second: float) -> float:
    return second if first is None else min(first, second)
