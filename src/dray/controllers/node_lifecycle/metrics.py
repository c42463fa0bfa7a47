"""Metrics of nodes and zones, with the names of Kubernetes."""

from __future__ import annotations

from typing import Final

from dray.controllers.node_lifecycle.zones import Zones
from dray.runtime.metrics import Metrics, exponential_buckets

_PREFIX: Final = "node_collector_"
_PERCENT: Final = 100.0


class LifecycleMetrics:
    """Counts evictions and shows the health of zones."""

    def __init__(self, metrics: Metrics) -> None:
        self._health = metrics.gauge(_PREFIX + "zone_health", "Percentage of healthy nodes in a zone", ("zone",))
        self._size = metrics.gauge(_PREFIX + "zone_size", "Nodes in a zone", ("zone",))
        self._unhealthy = metrics.gauge(
            _PREFIX + "unhealthy_nodes_in_zone", "Nodes of a zone that are not ready", ("zone",)
        )
        self._evictions = metrics.counter(_PREFIX + "evictions_total", "Nodes whose Pods were evicted", ("zone",))
        self.one_seconds = metrics.histogram(
            _PREFIX + "update_node_health_duration_seconds",
            "Duration of the health update of one node",
            buckets=exponential_buckets(start=0.001, factor=4, count=8),
        )
        self.all_seconds = metrics.histogram(
            _PREFIX + "update_all_nodes_health_duration_seconds",
            "Duration of the health check of all nodes",
            buckets=exponential_buckets(start=0.01, factor=4, count=8),
        )
        self._shown: set[str] = set()

    def evicted(self, zone: str) -> None:
        """Count a node that was tainted to evict its Pods."""
        self._evictions.labels(zone).inc()

    def show(self, zones: Zones) -> None:
        """Update the gauges of the zones."""
        present = set()
        for name, zone in zones.items():
            present.add(name)
            self._size.labels(name).set(zone.size)
            self._unhealthy.labels(name).set(len(zone.unhealthy))
            self._health.labels(name).set(_PERCENT * len(zone.healthy) / zone.size if zone.size else _PERCENT)
        for name in self._shown - present:
            for gauge in (self._size, self._unhealthy, self._health):
                gauge.remove(name)
        self._shown = present
