"""Evictions by the metrics that Kubernetes has for them."""

from __future__ import annotations

from typing import Final

from dray.runtime.metrics import Metrics

_BUCKETS: Final = (0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240)


class EvictionMetrics:
    """Counts Pods deleted, and how late; `subsystem` names the controller."""

    def __init__(self, metrics: Metrics, subsystem: str) -> None:
        self._deletions = metrics.counter(f"{subsystem}_pod_deletions_total", "Pods deleted by the controller")
        self._latency = metrics.histogram(
            f"{subsystem}_pod_deletion_duration_seconds",
            "Time from when a Pod had to go until it was deleted",
            buckets=_BUCKETS,
        )

    def deleted(self, late_seconds: float) -> None:
        """A Pod was deleted."""
        self._deletions.inc()
        self._latency.observe(max(late_seconds, 0.0))
