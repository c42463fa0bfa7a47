"""Tells Prometheus of the classes' devices when it asks, and never spends much time on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from dray.runtime.measures import Family
from dray.scheduler.plugins.dynamic_resources.measures import ClassMeasure

NAME: Final = "dray_class"
# Measuring may take this part of the time; a large cluster is measured less often.
SHARE_MAX: Final = 0.01


class ClassCollector:
    """Measures again when there was time enough since; in between the last measures are told."""

    def __init__(self, measure: Callable[[], Mapping[str, ClassMeasure]], monotonic: Callable[[], float]) -> None:
        self._measure = measure
        self._monotonic = monotonic
        self._known: Mapping[str, ClassMeasure] = {}
        self._next = float("-inf")

    def collect(self) -> Iterator[Family]:
        """The metrics of every class."""
        started = self._monotonic()
        if started >= self._next:
            self._known = self._measure()
            ended = self._monotonic()
            self._next = ended + (ended - started) / SHARE_MAX
        return self._metrics()

    def _metrics(self) -> Iterator[Family]:
        devices = Family(
            "dray_class_devices",
            "Devices of a class that are in usable pools, by state.",
            "gauge",
            ("class", "state"),
        )
        largest = Family(
            "dray_class_largest_free_block",
            "The most free devices of a class that one node has.",
            "gauge",
            ("class",),
        )
        fragmentation = Family(
            "dray_class_fragmentation_ratio",
            "The part of a class's free devices that are not on the node with most of them.",
            "gauge",
            ("class",),
        )
        for name, measured in self._known.items():
            devices.add((name, "free"), measured.free)
            devices.add((name, "not_free"), measured.total - measured.free)
            largest.add((name,), measured.largest)
            fragmentation.add((name,), measured.fragmentation)
        yield devices
        yield largest
        yield fragmentation
