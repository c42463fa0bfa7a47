"""Numbers about device plugins, under Kubernetes' names."""

from __future__ import annotations

from typing import Final

from dray.runtime.metrics import Metrics

# Prometheus' usual buckets, which kubelet uses here.
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class DeviceMetrics:
    """What is measured about registration and allocation."""

    def __init__(self, metrics: Metrics) -> None:
        labels = ["resource_name"]
        self._registrations = metrics.counter(
            "kubelet_device_plugin_registration_total", "Calls of Register, rejected ones too", labels
        )
        self._allocations = metrics.histogram(
            "kubelet_device_plugin_alloc_duration_seconds", "Time of a plugin's Allocate", labels, BUCKETS
        )

    def registered(self, resource: str) -> None:
        """A plugin called Register."""
        self._registrations.labels(resource).inc()

    def allocated(self, resource: str, seconds: float) -> None:
        """A call of Allocate has ended."""
        self._allocations.labels(resource).observe(seconds)
