"""The scheduler's metrics, with Kubernetes' names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dray.runtime.metrics import Metrics, exponential_buckets

SCHEDULED: Final = "scheduled"
UNSCHEDULABLE: Final = "unschedulable"
ERROR: Final = "error"
_SLI_BUCKETS: Final = exponential_buckets(start=0.01, factor=2, count=20)
_PLUGIN_BUCKETS: Final = exponential_buckets(start=0.00001, factor=1.5, count=20)


class SchedulerMetrics:
    """The metrics of one scheduler."""

    def __init__(self, metrics: Metrics) -> None:
        self._attempts = metrics.counter(
            "scheduler_schedule_attempts_total", "Attempts to schedule Pods, by result.", ("result", "profile")
        )
        self._attempt_duration = metrics.histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "Duration of a scheduling attempt: algorithm and binding.",
            ("result", "profile"),
        )
        self._algorithm_duration = metrics.histogram(
            "scheduler_scheduling_algorithm_duration_seconds", "Duration of the scheduling algorithm."
        )
        self._sli = metrics.histogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "Time from a Pod's first appearance in the queue to its binding.",
            ("attempts",),
            _SLI_BUCKETS,
        )
        self._pod_attempts = metrics.histogram(
            "scheduler_pod_scheduling_attempts", "Attempts until a Pod was bound.", (), (1, 2, 4, 8, 16)
        )
        self._incoming = metrics.counter(
            "scheduler_queue_incoming_pods_total", "Pods put into a queue, by event.", ("queue", "event")
        )
        self._plugin = metrics.histogram(
            "scheduler_plugin_execution_duration_seconds",
            "Duration of a plugin call; one scheduling attempt in ten is measured.",
            ("plugin", "extension_point", "status"),
            _PLUGIN_BUCKETS,
        )
        self._pending = metrics.gauge("scheduler_pending_pods", "Pending Pods, by queue.", ("queue",))
        self._cache_size = metrics.gauge(
            "scheduler_scheduler_cache_size", "Nodes, Pods and assumed Pods in the cache.", ("type",)
        )

    def follow(self, queue: Callable[[], dict[str, int]], cache: dict[str, Callable[[], int]]) -> None:
        """Export the sizes, which are read when metrics are collected."""
        for name in queue():
            self._pending.labels(name).set_function(_size_of(queue, name))
        for kind, size in cache.items():
            self._cache_size.labels(kind).set_function(size)

    def attempted(self, result: str, profile: str, seconds: float) -> None:
        """Observe the end of an attempt."""
        self._attempts.labels(result, profile).inc()
        self._attempt_duration.labels(result, profile).observe(seconds)

    def searched(self, seconds: float) -> None:
        """Observe the duration of a search for a node."""
        self._algorithm_duration.observe(seconds)

    def bound(self, attempts: int, seconds: float) -> None:
        """Observe the binding of a Pod, with the time since it was first queued."""
        self._sli.labels(str(min(attempts, 16))).observe(seconds)
        self._pod_attempts.observe(attempts)

    def incoming(self, queue: str, event: str) -> None:
        """Count a Pod that was added to a queue."""
        self._incoming.labels(queue, event).inc()

    def plugin_ran(self, plugin: str, point: str, status: str, seconds: float) -> None:
        """Observe one call of a plugin."""
        self._plugin.labels(plugin, point, status).observe(seconds)


def _size_of(queue: Callable[[], dict[str, int]], name: str) -> Callable[[], int]:
    return lambda: queue()[name]
