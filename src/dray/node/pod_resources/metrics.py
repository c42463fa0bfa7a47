"""Counters of PodResources, under Kubernetes' names."""

from __future__ import annotations

import enum
from typing import Final

from dray.runtime.metrics import Counter, Metrics

_PREFIX: Final = "kubelet_pod_resources_endpoint"


class Method(enum.StrEnum):
    """The methods that are counted separately."""

    LIST = "list"
    GET = "get"
    GET_ALLOCATABLE = "get_allocatable"


class EndpointMetrics:
    """Counts requests and errors by API version."""

    def __init__(self, metrics: Metrics) -> None:
        def counters(kind: str) -> dict[Method, Counter]:
            names = {method: f"{_PREFIX}_{kind}_{method}" for method in Method}
            return {
                method: metrics.counter(name, f"{kind.capitalize()} of {method}", labels)
                for method, name in names.items()
            }

        labels = ["server_api_version"]
        self._total = metrics.counter(f"{_PREFIX}_requests_total", "Requests", labels)
        self._requests = counters("requests")
        self._errors = counters("errors")

    def requested(self, version: str, method: Method | None = None) -> None:
        """Count a request; those of v1alpha1 only in the total."""
        self._total.labels(version).inc()
        if method is not None:
            self._requests[method].labels(version).inc()

    def failed(self, version: str, method: Method) -> None:
        """Count an error."""
        self._errors[method].labels(version).inc()
