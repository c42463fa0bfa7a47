"""Numbers about containers, under Kubernetes' names."""

from __future__ import annotations

from typing import Final

from dray.runtime.metrics import Metrics

CONTAINER: Final = "container"
INIT_CONTAINER: Final = "init_container"


class StartMetrics:
    """How often containers were started, and why they were not."""

    def __init__(self, metrics: Metrics) -> None:
        self._started = metrics.counter(
            "kubelet_started_containers_total", "Attempts to start a container", ["container_type"]
        )
        self._failed = metrics.counter(
            "kubelet_started_containers_errors_total",
            "Containers that could not be started",
            ["container_type", "code"],
        )

    def tried(self, kind: str, failure: str) -> None:
        """A container was to be started; `failure` is the reason that its status shows, empty when it runs."""
        self._started.labels(kind).inc()
        if failure:
            self._failed.labels(kind, failure).inc()
