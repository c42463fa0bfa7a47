"""The work queue's metrics, with Kubernetes' names; queues of one name count together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from dray.runtime.metrics import Metrics, exponential_buckets

# Kubernetes' buckets: 10 ns to 10 s.
_BUCKETS: Final = exponential_buckets(start=1e-8, factor=10, count=10)

# Seconds of work in progress: of all keys together, and of the longest.
Unfinished = Callable[[], tuple[float, float]]
# The queues of each name that a process measures.
_queues: WeakKeyDictionary[Metrics, dict[str, list[Unfinished]]] = WeakKeyDictionary()


class MeasuredQueue:
    """Implements `dray.client.workqueue.QueueObserver`."""

    def __init__(self, metrics: Metrics, name: str, unfinished: Unfinished) -> None:
        labels = ("name",)
        queues = _queues.setdefault(metrics, {}).setdefault(name, [])
        queues.append(unfinished)
        self._known_depth = 0
        self._adds = metrics.counter("workqueue_adds_total", "Adds handled by the queue", labels).labels(name)
        self._depth = metrics.gauge("workqueue_depth", "Keys waiting in the queue", labels).labels(name)
        self._waits = metrics.histogram(
            "workqueue_queue_duration_seconds", "How long a key waits before it is worked", labels, _BUCKETS
        ).labels(name)
        self._works = metrics.histogram(
            "workqueue_work_duration_seconds", "How long working a key takes", labels, _BUCKETS
        ).labels(name)
        self._retries = metrics.counter("workqueue_retries_total", "Retries handled by the queue", labels).labels(name)
        metrics.gauge(
            "workqueue_unfinished_work_seconds", "Seconds of work in progress, all keys together", labels
        ).labels(name).set_function(lambda: sum(queue()[0] for queue in queues))
        metrics.gauge(
            "workqueue_longest_running_processor_seconds", "Seconds the longest work in progress has taken", labels
        ).labels(name).set_function(lambda: max(queue()[1] for queue in queues))

    def added(self, depth: int) -> None:
        """Count the key."""
        self._adds.inc()
        self._set_depth(depth)

    def started(self, depth: int, waited_seconds: float) -> None:
        """Note how long the key waited."""
        self._set_depth(depth)
        self._waits.observe(waited_seconds)

    def finished(self, worked_seconds: float) -> None:
        """Note how long the work took."""
        self._works.observe(worked_seconds)

    def retried(self) -> None:
        """Count the retry."""
        self._retries.inc()

    def _set_depth(self, depth: int) -> None:
        self._depth.inc(depth - self._known_depth)
        self._known_depth = depth
