"""Metrics of PodResources, under Kubernetes' names.

All but the total have names that the metrics library does not allow for counters, so they are gauges that only grow.
"""

from __future__ import annotations

import enum
from typing import Final

from dray.runtime.metrics import Metrics

_PREFIX: Final = "kubelet_pod_resources_endpoint"


class Method(enum.StrEnum):
    """The methods that are counted separately."""

    LIST = "list"
    GET = "get"
    GET_ALLOCATABLE = "get_allocatable"


class EndpointMetrics:
    """Counts requests and errors by API version."""

    def __init__(self, metrics: Metrics) -> None:
        labels = ["server_api_version"]
        self._total = metrics.counter(f"{_PREFIX}_requests_total", "Requests", labels)
        self._requests = {
            method: metrics.gauge(f"{_PREFIX}_requests_{method}", f"Requests of {method}", labels) for method in Method
        }
        self._errors = {
            method: metrics.gauge(f"{_PREFIX}_errors_{method}", f"Errors of {method}", labels) for method in Method
        }

    def requested(self, version: str, method: Method | None = None) -> None:
        """Count a request; those of v1alpha1 only in the total."""
        self._total.labels(version).inc()
        if method is not None:
            self._requests[method].labels(version).inc()

    def failed(self, version: str, method: Method) -> None:
        """Count an error."""
        self._errors[method].labels(version).inc()
