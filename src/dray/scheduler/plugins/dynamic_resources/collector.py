"""Tells Prometheus of the classes' devices when it asks, and never spends much time on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dray.scheduler.plugins.dynamic_resources.measures import ClassMeasure

NAME: Final = "dray_class"
# Measuring may take this part of the time; a large cluster is measured less often.
SHARE_MAX: Final = 0.01


class ClassCollector(Collector):
    """Measures again when there was time enough since; in between the last measures are told."""

    def __init__(self, measure: Callable[[], Mapping[str, ClassMeasure]], monotonic: Callable[[], float]) -> None:
        self._measure = measure
        self._monotonic = monotonic
        self._known: Mapping[str, ClassMeasure] = {}
        self._next = float("-inf")

    def collect(self) -> Iterator[Metric]:
        """The metrics of every class."""
        started = self._monotonic()
        if started >= self._next:
            self._known = self._measure()
            ended = self._monotonic()
            self._next = ended + (ended - started) / SHARE_MAX
        return self._metrics()

    def _metrics(self) -> Iterator[Metric]:
        devices = GaugeMetricFamily(
            "dray_class_devices", "Devices of a class that are in usable pools, by state.", labels=["class", "state"]
        )
        largest = GaugeMetricFamily(
            "dray_class_largest_free_block", "The most free devices of a class that one node has.", labels=["class"]
        )
        fragmentation = GaugeMetricFamily(
            "dray_class_fragmentation_ratio",
            "The part of a class's free devices that are not on the node with most of them.",
            labels=["class"],
        )
        for name, measured in self._known.items():
            devices.add_metric([name, "free"], measured.free)
            devices.add_metric([name, "not_free"], measured.total - measured.free)
            largest.add_metric([name], measured.largest)
            fragmentation.add_metric([name], measured.fragmentation)
        yield devices
        yield largest
        yield fragmentation
