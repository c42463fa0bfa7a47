"""The Job controller's metrics, by Kubernetes' names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from dray.api.types.batch_v1 import Job
from dray.api.types.core_v1 import Pod
from dray.controllers.job.indexes import parse_indexes
from dray.controllers.job.job_state import COMPLETE, JOB_FAILED, Scene, completions, find
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
    """One look at a Job; `action` is what it has come to so far."""

    action: Action = Action.RECONCILING


class JobMetrics:
    """Counts what is done for Jobs, and what becomes of them and their Pods."""

    def __init__(self, metrics: Metrics) -> None:
        self._sync_seconds = metrics.histogram(
            _PREFIX + "job_sync_duration_seconds",
            "Time to bring one Job up to date",
            _SYNC_LABELS,
            buckets=exponential_buckets(start=0.004, factor=2, count=15),
        )
        self._syncs = metrics.counter(_PREFIX + "job_syncs_total", "Looks at Jobs, by what they came to", _SYNC_LABELS)
        self._finished = metrics.counter(
            _PREFIX + "jobs_finished_total", "Jobs that came to their end", ("completion_mode", "result", "reason")
        )
        self._pods_finished = metrics.counter(
            _PREFIX + "job_pods_finished_total", "Pods that ended and are counted", ("completion_mode", "result")
        )
        self._indexes_finished = metrics.counter(
            _PREFIX + "job_finished_indexes_total", "Indexes that ended", ("status", "backoffLimit")
        )
        self._pods_created = metrics.counter(
            _PREFIX + "job_pods_creation_total", "Attempts to create a Pod, and what for", ("reason", "status")
        )
        self._judged = metrics.counter(
            _PREFIX + "pod_failures_handled_by_failure_policy_total",
            "Failed Pods that a rule of the failure policy matched",
            ("action",),
        )
        self._held = metrics.counter(
            _PREFIX + "terminated_pods_tracking_finalizer_total",
            "Ended Pods that have the finalizer (add), and that have it no more (delete)",
            ("event",),
        )
        self._others = metrics.counter(
            _PREFIX + "jobs_by_external_controller_total", "Jobs that another controller manages", ("controller_name",)
        )

    @contextmanager
    def sync(self, job: Job, clock: Clock) -> Iterator[Sync]:
        """Time one look at a Job."""
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

    def created(self, scene: Scene, *, success: bool) -> None:
        """A Pod was created for the Job, or could not be."""
        self._pods_created.labels(reason_to_create(scene), _SUCCEEDED if success else _FAILED).inc()

    def reported(self, before: Job, after: Job) -> None:
        """The Job's status was written: count what it has more than the one before."""
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
        """Count indexes and return how many more have succeeded; one that is out of range by now does not count."""
        limit = "global" if after.spec.backoff_limit_per_index is None else "perIndex"
        size = completions(after)
        succeeded = _more(before.status.completed_indexes, after.status.completed_indexes, size)
        failed = _more(before.status.failed_indexes, after.status.failed_indexes, size)
        for status, number in ((_SUCCEEDED, succeeded), (_FAILED, failed)):
            if number > 0:
                self._indexes_finished.labels(status, limit).inc(number)
        return succeeded

    def judged(self, actions: Iterable[str]) -> None:
        """Rules of the failure policy were applied."""
        for action in actions:
            self._judged.labels(action).inc()

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Follow the Pods that have ended and are held, whoever they belong to."""
        before, after = _is_held(old), _is_held(new)
        if before is not after:
            self._held.labels("add" if after else "delete").inc()

    def managed_by_other(self, controller: str) -> None:
        """A Job appeared that another controller manages."""
        self._others.labels(controller).inc()


def reason_to_create(scene: Scene) -> str:
    """What a Job's next Pod is made for."""
    if scene.failed > 0 and scene.job.spec.pod_replacement_policy == FAILED:
        return "recreate_failed"
    return "recreate_terminating_or_failed" if scene.failed > 0 or scene.terminating else "new"


def _mode(job: Job) -> str:
    return INDEXED if is_indexed(job) else NON_INDEXED


def _more(before: str | None, after: str | None, size: int) -> int:
    return 0 if before == after else len(parse_indexes(after, size)) - len(parse_indexes(before, size))


def _is_held(pod: Pod | None) -> bool:
    # The finalizer first: most Pods have none.
    return pod is not None and TRACKING in pod.metadata.finalizers and is_finished(pod)
