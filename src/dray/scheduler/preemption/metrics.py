"""The metrics of preemption, with Kubernetes' names."""

from __future__ import annotations

from typing import Final

from dray.runtime.metrics import Metrics, exponential_buckets

_VICTIMS: Final = exponential_buckets(start=1, factor=2, count=7)
_EXECUTION: Final = exponential_buckets(start=0.01, factor=2, count=20)
_EVALUATION: Final = exponential_buckets(start=0.001, factor=2, count=16)
# The kind of preemptor in metrics.
POD: Final = "pod"


class PreemptionMetrics:
    """One per scheduler."""

    def __init__(self, metrics: Metrics) -> None:
        self.attempts = metrics.counter(
            "scheduler_preemption_attempts_total", "Total preemption attempts in the cluster till now."
        )
        self.victims = metrics.histogram(
            "scheduler_preemption_victims", "Number of selected preemption victims.", (), _VICTIMS
        )
        self._executions = metrics.counter(
            "scheduler_preemption_goroutines_execution_total", "Evictions of the victims of a Pod.", ("result",)
        )
        self._execution_duration = metrics.histogram(
            "scheduler_preemption_goroutines_duration_seconds",
            "Duration of the evictions of the victims of a Pod.",
            ("result",),
            _EXECUTION,
        )
        self._evaluation_duration = metrics.histogram(
            "scheduler_preemption_evaluation_duration_seconds",
            "Duration of the search for victims.",
            ("preemptor", "result"),
            _EVALUATION,
        )
        self._violations = metrics.counter(
            "scheduler_preemption_pdb_violations_total",
            "Victims whose eviction violates a disruption budget.",
            ("preemptor",),
        )

    def executed(self, seconds: float, *, succeeded: bool) -> None:
        """Observe the end of the evictions for a Pod."""
        result = "success" if succeeded else "error"
        self._executions.labels(result).inc()
        self._execution_duration.labels(result).observe(seconds)

    def evaluated(self, result: str, seconds: float, violations: int = 0) -> None:
        """Observe the end of a search for victims."""
        self._evaluation_duration.labels(POD, result).observe(seconds)
        if violations:
            self._violations.labels(POD).inc(violations)
