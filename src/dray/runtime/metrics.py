"""Metrics with Kubernetes' names: one registry per process part, rendered as Prometheus text.

Factories return the metric that is already there, so that several instances of a part may share one registry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from dray.runtime.measures import Collector, Counter, Family, Gauge, Histogram, Measure, page

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# Kubernetes' usual buckets for calls, from 1 ms to 16 s.
LATENCY_BUCKETS: Final = tuple(0.001 * 2**power for power in range(15))

_Measure = TypeVar("_Measure", bound=Measure)


def exponential_buckets(*, start: float, factor: float, count: int) -> tuple[float, ...]:
    """Bucket bounds growing by `factor`."""
    return tuple(start * factor**power for power in range(count))


class Metrics:
    """One part's metrics."""

    def __init__(self) -> None:
        self._made: dict[str, Measure] = {}
        self._collectors: dict[str, Collector] = {}
        self._lock = threading.Lock()

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        """A number that only grows; the name ends in `_total`."""
        return self._once(name, Counter, lambda: Counter(name.removesuffix("_total"), text, labels))

    def gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        """A number that goes up and down."""
        return self._once(name, Gauge, lambda: Gauge(name, text, labels))

    def histogram(
        self, name: str, text: str, labels: Sequence[str] = (), buckets: Sequence[float] = LATENCY_BUCKETS
    ) -> Histogram:
        """A distribution."""
        return self._once(name, Histogram, lambda: Histogram(name, text, labels, buckets=buckets))

    def collect_once(self, name: str, make: Callable[[], Collector]) -> None:
        """Have a collector asked whenever somebody looks; a second one of the name is not made."""
        with self._lock:
            if name not in self._collectors:
                self._collectors[name] = make()

    def families(self) -> Iterator[Family]:
        """Everything, in the order in which it was made."""
        for collector in (*self._made.values(), *self._collectors.values()):
            yield from collector.collect()

    def exposition(self) -> bytes:
        """Everything in the Prometheus text format."""
        return page(self.families()).encode()

    def value(self, name: str, labels: dict[str, str] | None = None) -> float:
        """One sample's value; 0 when there is none yet."""
        wanted = labels or {}
        return next(
            (
                value
                for family in self.families()
                if name.startswith(family.name)
                for suffix, found, value in family.samples
                if family.name + suffix == name and found == wanted
            ),
            0.0,
        )

    def _once(self, name: str, kind: type[_Measure], make: Callable[[], _Measure]) -> _Measure:
        with self._lock:
            metric = self._made.get(name)
            if metric is None:
                metric = make()
                assert all(metric.name != other.name for other in self._made.values()), f"{metric.name} is taken"
                self._made[name] = metric
            assert isinstance(metric, kind), f"{name} is registered as {type(metric).__name__}"
            return metric


def exposition(*parts: Metrics) -> bytes:
    """Several parts as one page; the parts have no metric name in common."""
    return b"".join(part.exposition() for part in parts)
