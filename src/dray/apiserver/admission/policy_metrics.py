"""Metrics of validating admission policies, with kube-apiserver's names."""

from __future__ import annotations

from typing import Final

from dray.runtime.metrics import Counter, Metrics

_FOUND_MAX: Final = 1024


class PolicyMetrics:
    """Counts what policies decide."""

    def __init__(self, metrics: Metrics) -> None:
        self._checks = metrics.counter(
            "apiserver_validating_admission_policy_check_total",
            "Evaluations of validating admission policies, by policy, binding, action and kind of error.",
            ("enforcement_action", "error_type", "policy", "policy_binding"),
        )
        # Finding a counter by its labels costs more than counting with it.
        self._found: dict[tuple[str, ...], Counter] = {}

    def observe(self, policy: str, binding: str, action: str, *, is_error: bool = False) -> None:
        """Count one evaluation."""
        error = "invalid_error" if is_error else "no_error"
        labels = (action, error, policy, binding)
        counter = self._found.get(labels)
        if counter is None:
            counter = self._checks.labels(*labels)
            if len(self._found) < _FOUND_MAX:
                self._found[labels] = counter
        counter.inc()
