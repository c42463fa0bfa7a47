"""Metrics of admission webhooks, with kube-apiserver's names."""

from __future__ import annotations

from typing import Final

from dray.runtime.metrics import Metrics

_CALL: Final = ("name", "operation", "type")


class WebhookMetrics:
    """Counts and times calls of webhooks."""

    def __init__(self, metrics: Metrics) -> None:
        self._durations = metrics.histogram(
            "apiserver_admission_webhook_admission_duration_seconds",
            "How long calls of webhooks took, by name, operation, type and whether the write was rejected.",
            (*_CALL, "rejected"),
        )
        self._requests = metrics.counter(
            "apiserver_admission_webhook_request_total",
            "Calls of webhooks, by name, operation, type, status code and whether the write was rejected.",
            ("code", *_CALL, "rejected"),
        )
        self._rejections = metrics.counter(
            "apiserver_admission_webhook_rejection_count",
            "Writes that were rejected for a webhook, by name, operation, type, kind of error and status code.",
            ("error_type", *_CALL, "rejection_code"),
        )
        self._fail_open = metrics.counter(
            "apiserver_admission_webhook_fail_open_count",
            "Calls of webhooks that failed and were ignored, by name and type.",
            ("name", "type"),
        )

    def called(self, name: str, kind: str, operation: str, seconds: float, *, code: int, rejected: bool) -> None:
        """Count a call that was answered."""
        shown = "true" if rejected else "false"
        self._durations.labels(name, operation, kind, shown).observe(seconds)
        self._requests.labels(str(code), name, operation, kind, shown).inc()

    def rejected(self, name: str, kind: str, operation: str, *, error: str, code: int) -> None:
        """Count a write that was rejected; `error` says why."""
        self._rejections.labels(error, name, operation, kind, str(code)).inc()

    def failed_open(self, name: str, kind: str) -> None:
        """Count a failure that was ignored."""
        self._fail_open.labels(name, kind).inc()
