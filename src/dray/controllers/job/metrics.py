"""Metrics of the Job controller, with the names of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from dray.api.types.batch_v1 import Job
from dray.api.types.core_v1 import Pod
from dray.controllers.job.indexes import parse_indexes
from dray.controllers.job.job_state import COMPLETE, JOB_FAILED, JobState, completions, find
from dray.controllers.job.plan import Action
from dray.controllers.job.pod_templates import INDEXED, NON_INDEXED, TRACKING, is_indexed
from dray.controllers.pod_control.pod_status import FAILED, is_finished
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics, exponential_buckets

_PREFIX: Final = "job_controller_"
_SYNC_LABELS: Final = ("completion_mode", "result", "action")
_SUCCEEDED: Final = "succeeded"
_FAILED: Final = "failed"


@dataclass(slots=True)
class Sync:
    """One sync of a Job; `action` is its outcome so far."""

    action: Action = Action.RECONCILING


class JobMetrics:
    """Counts syncs, created Pods, and finished Jobs, Pods and indexes."""

    def __init__(self, metrics: Metrics) -> None:
        self._sync_seconds = metrics.histogram(
            _PREFIX + "job_sync_duration_seconds",
            "Duration of a Job sync",
            _SYNC_LABELS,
            buckets=exponential_buckets(start=0.004, factor=2, count=15),
        )
        self._syncs = metrics.counter(_PREFIX + "job_syncs_total", "Job syncs, by result and action", _SYNC_LABELS)
        self._finished = metrics.counter(
            _PREFIX + "jobs_finished_total", "Finished Jobs", ("completion_mode", "result", "reason")
        )
        self._pods_finished = metrics.counter(
            _PREFIX + "job_pods_finished_total",
            "Finished Pods that are fully tracked in the Job's status",
            ("completion_mode", "result"),
        )
        self._indexes_finished = metrics.counter(
            _PREFIX + "job_finished_indexes_total", "Finished indexes of Indexed Jobs", ("status", "backoffLimit")
        )
        self._pods_created = metrics.counter(
            _PREFIX + "job_pods_creation_total", "Attempts to create Pods, by reason and status", ("reason", "status")
        )
        self._failure_policy = metrics.counter(
            _PREFIX + "pod_failures_handled_by_failure_policy_total",
            "Failed Pods handled by a rule of the Pod failure policy",
            ("action",),
        )
        self._with_finalizer = metrics.counter(
            _PREFIX + "terminated_pods_tracking_finalizer_total",
            "Terminated Pods that have the tracking finalizer, by event (add, delete)",
            ("event",),
        )
        self._external = metrics.counter(
            _PREFIX + "jobs_by_external_controller_total",
            "Jobs managed by an external controller",
            ("controller_name",),
        )

    @contextmanager
    def sync(self, job: Job, clock: Clock) -> Iterator[Sync]:
        """Measure one sync of a Job."""
        start, sync = clock.monotonic(), Sync()
        try:
            yield sync
        except Exception:
            self._count_sync((_mode(job), "error", sync.action), clock.monotonic() - start)
            raise
        self._count_sync((_mode(job), "success", sync.action), clock.monotonic() - start)

    def _count_sync(self, labels: tuple[str, str, str], seconds: float) -> None:
        self._sync_seconds.labels(*labels).observe(seconds)
        self._syncs.labels(*labels).inc()

    def created(self, state: JobState, *, success: bool) -> None:
        """Count an attempt to create a Pod."""
        self._pods_created.labels(reason_to_create(state), _SUCCEEDED if success else _FAILED).inc()

    def reported(self, before: Job, after: Job) -> None:
        """Count what a written status has in addition to the previous one."""
        mode = _mode(after)
        succeeded = (after.status.succeeded or 0) - (before.status.succeeded or 0)
        if is_indexed(after):
            succeeded = self._count_indexes(before, after)
        failed = (after.status.failed or 0) - (before.status.failed or 0)
        for result, number in ((_SUCCEEDED, succeeded), (_FAILED, failed)):
            if number > 0:
                self._pods_finished.labels(mode, result).inc(number)
        for kind, result in ((COMPLETE, _SUCCEEDED), (JOB_FAILED, _FAILED)):
            condition = find(after.status.conditions, kind)
            if condition is not None and find(before.status.conditions, kind) is None:
                self._finished.labels(mode, result, condition.reason or "").inc()

    def _count_indexes(self, before: Job, after: Job) -> int:
        """Count finished indexes; return how many more have succeeded. Indexes out of range do not count."""
        limit = "global" if after.spec.backoff_limit_per_index is None else "perIndex"
        size = completions(after)
        succeeded = _more(before.status.completed_indexes, after.status.completed_indexes, size)
        failed = _more(before.status.failed_indexes, after.status.failed_indexes, size)
        for status, number in ((_SUCCEEDED, succeeded), (_FAILED, failed)):
            if number > 0:
                self._indexes_finished.labels(status, limit).inc(number)
        return succeeded

    def failure_policy_applied(self, actions: Iterable[str]) -> None:
        """Count the actions of failure policy rules."""
        for action in actions:
            self._failure_policy.labels(action).inc()

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Count ended Pods that have or lose the finalizer, whatever their owner."""
        before, after = _is_ended_with_finalizer(old), _is_ended_with_finalizer(new)
        if before is not after:
            self._with_finalizer.labels("add" if after else "delete").inc()

    def managed_by_other(self, controller: str) -> None:
        """Count a new Job that another controller manages."""
        self._external.labels(controller).inc()


def reason_to_create(state: JobState) -> str:
    """Return the metric label for why a Pod is created."""
    if state.failed > 0 and state.job.spec.pod_replacement_policy == FAILED:
        return "recreate_failed"
    return "recreate_terminating_or_failed" if state.failed > 0 or state.terminating else "new"


def _mode(job: Job) -> str:
    return INDEXED if is_indexed(job) else NON_INDEXED


def _more(before: str | None, after: str | None, size: int) -> int:
    return 0 if before == after else len(parse_indexes(after, size)) - len(parse_indexes(before, size))


def _is_ended_with_finalizer(pod: Pod | None) -> bool:
    # The finalizer first: most Pods have none.
    return pod is not None and TRACKING in pod.metadata.finalizers and is_finished(pod)
