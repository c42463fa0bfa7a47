"""The metrics of preemption, with Kubernetes' names."""

from __future__ import annotations

from typing import Final

from dray.runtime.metrics import Metrics, exponential_buckets

_VICTIMS: Final = exponential_buckets(start=1, factor=2, count=7)
_EXECUTION: Final = exponential_buckets(start=0.01, factor=2, count=20)
_EVALUATION: Final = exponential_buckets(start=0.001, factor=2, count=16)
# The kind of preemptor in metrics.
POD: Final = "pod"
POD_GROUP: Final = "podgroup"
_GROUP_VICTIMS: Final = exponential_buckets(start=1, factor=2, count=11)


class PreemptionMetrics:
    """One per scheduler."""

    def __init__(self, metrics: Metrics) -> None:
        self.attempts = metrics.counter(
            "scheduler_preemption_attempts_total", "Total preemption attempts in the cluster till now."
        )
        self._victims = metrics.histogram(
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
        self._duration_by_kind = metrics.histogram(
            "scheduler_preemption_execution_duration_seconds",
            "Duration of the evictions of the victims of a preemptor.",
            ("preemptor", "result"),
            _EVALUATION,
        )
        self._group_attempts = metrics.counter(
            "scheduler_workload_preemption_attempts_total", "Preemption attempts of PodGroups, by result.", ("result",)
        )
        self._group_victims = metrics.histogram(
            "scheduler_workload_preemption_victims", "Number of victims of a PodGroup.", (), _GROUP_VICTIMS
        )
        self._disruptions = metrics.histogram(
            "scheduler_preemption_workload_disruptions",
            "Number of preempted units that belong to PodGroups: a Pod, or all Pods of a group.",
            ("preemptor",),
            _GROUP_VICTIMS,
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

    def selected(self, kind: str, victims: int) -> None:
        """Observe the number of victims of a preemptor."""
        (self._victims if kind == POD else self._group_victims).observe(victims)

    def disrupted(self, kind: str, units: int) -> None:
        """Observe how many units of groups a preemptor disrupts, if any."""
        if units:
            self._disruptions.labels(kind).observe(units)

    def executed(self, kind: str, seconds: float, *, succeeded: bool) -> None:
        """Observe the end of the evictions for a preemptor."""
        result = "success" if succeeded else "error"
        self._executions.labels(result).inc()
        self._execution_duration.labels(result).observe(seconds)
        self._duration_by_kind.labels(kind, result).observe(seconds)

    def group_attempted(self, result: str) -> None:
        """Count a preemption attempt of a group."""
        self._group_attempts.labels(result).inc()

    def evaluated(self, kind: str, result: str, seconds: float, violations: int = 0) -> None:
        """Observe the end of a search for victims."""
        self._evaluation_duration.labels(kind, result).observe(seconds)
        if violations:
            self._violations.labels(kind).inc(violations)
