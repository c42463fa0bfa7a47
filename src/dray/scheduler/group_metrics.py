"""The metrics of PodGroups, with Kubernetes' names."""

from __future__ import annotations

from typing import Final

from dray.framework.status import Status
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics, exponential_buckets

_ALGORITHM_BUCKETS: Final = exponential_buckets(start=0.001, factor=2, count=15)


class GroupMetrics:
    """One per scheduler."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._clock = clock
        self._placement_started = 0.0
        self._attempts = metrics.counter(
            "scheduler_podgroup_schedule_attempts_total",
            "Attempts to schedule PodGroups, by result.",
            ("result", "profile"),
        )
        self._attempt_duration = metrics.histogram(
            "scheduler_podgroup_scheduling_attempt_duration_seconds",
            "Duration of an attempt to schedule a PodGroup.",
            ("result", "profile"),
        )
        self._algorithm_duration = metrics.histogram(
            "scheduler_podgroup_scheduling_algorithm_duration_seconds",
            "Duration of a group cycle.",
            (),
            _ALGORITHM_BUCKETS,
        )
        self._placements = metrics.counter(
            "scheduler_generated_placements_total", "Domains in which groups were tried.", ("profile",)
        )
        self._placement_evaluations = metrics.counter(
            "scheduler_placement_evaluations_total",
            "Domains in which groups were tried, by result.",
            ("result", "profile"),
        )
        self._placement_duration = metrics.histogram(
            "scheduler_placement_evaluation_duration_seconds",
            "Duration of trying a group in one domain, by result.",
            ("result", "profile"),
            _ALGORITHM_BUCKETS,
        )

    def placement_tried(self, profile: str, status: Status | None) -> None:
        """Count a domain of the topology in which a group was tried; without a status, the attempt begins."""
        if status is None:
            self._placement_started = self._clock.monotonic()
            return
        self._placements.labels(profile).inc()
        if not (status.is_success or status.is_rejected):
            # An internal error says nothing about the domain.
            return
        result = "feasible" if status.is_success else "infeasible"
        self._placement_evaluations.labels(result, profile).inc()
        seconds = self._clock.monotonic() - self._placement_started
        self._placement_duration.labels(result, profile).observe(seconds)

    def attempted(self, result: str, profile: str, seconds: float) -> None:
        """Observe the end of an attempt."""
        self._attempts.labels(result, profile).inc()
        self._attempt_duration.labels(result, profile).observe(seconds)

    def searched(self, seconds: float) -> None:
        """Observe the duration of a group cycle."""
        self._algorithm_duration.observe(seconds)
