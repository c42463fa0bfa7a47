"""Counters, gauges and histograms with the names of Kubernetes, and the Prometheus text format.

A registry returns an existing metric of the same name, so that several instances of a component may share one.
Metrics take no lock: they are updated on the thread of the event loop and may be read on any thread.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol, Self, TypeVar

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# The usual buckets of Kubernetes for latencies, from 1 ms to 16 s.
LATENCY_BUCKETS: Final = tuple(0.001 * 2**power for power in range(15))
# Suffix of the metric name, labels, and value.
Sample = tuple[str, Mapping[str, str], float]
# Go, whose number format this is, writes more digits with an exponent.
_DIGITS_MAX: Final = 6


@dataclass(slots=True)
class Family:
    """The samples of one metric under its full name."""

    name: str
    text: str
    type: str
    labels: tuple[str, ...] = ()
    samples: list[Sample] = field(default_factory=list)

    def add(self, values: Sequence[str], value: float) -> None:
        """Add a sample with label values."""
        self.samples.append(("", dict(zip(self.labels, values, strict=True)), value))


class Collector(Protocol):
    """Returns metrics when they are scraped."""

    def collect(self) -> Iterable[Family]:
        """Return the current families."""


class Metric(ABC):
    """A metric; with labels, its children from `labels` are updated instead of itself."""

    type: ClassVar[str]

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self._name: Final = name
        self._text: Final = text
        self._labels: Final = tuple(labels)
        self._children: Final[dict[tuple[str, ...], Self]] = {}

    @property
    def name(self) -> str:
        """The full name; that of a counter usually ends in `_total`."""
        return self._name

    def labels(self, *values: str) -> Self:
        """Return the child for label values, in the order of the label names; callers may keep it."""
        child = self._children.get(values)
        if child is None:
            assert len(values) == len(self._labels) > 0, f"{self._name} has the labels {self._labels}"
            child = self._children.setdefault(values, self._child())
        return child

    def remove(self, *values: str) -> None:
        """Remove the child for label values."""
        self._children.pop(values, None)

    def collect(self) -> Iterator[Family]:
        """Yield the family of this metric."""
        family = Family(self._name, self._text, self.type, self._labels)
        for labels, samples in self._labelled_samples():
            family.samples += [(suffix, {**labels, **more}, value) for suffix, more, value in samples]
        yield family

    def _labelled_samples(self) -> Iterator[tuple[dict[str, str], Iterable[Sample]]]:
        if not self._labels:
            yield {}, self.samples()
        for values, child in list(self._children.items()):
            yield dict(zip(self._labels, values, strict=True)), child.samples()

    def _child(self) -> Self:
        return type(self)(self._name, self._text)

    @abstractmethod
    def samples(self) -> Iterable[Sample]:
        """Return the samples without labels."""


class Counter(Metric):
    """A value that only grows."""

    type = "counter"
    _value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Increase the value."""
        self._value += amount

    def samples(self) -> Iterable[Sample]:
        """Return the value."""
        return (("", {}, self._value),)


class Gauge(Metric):
    """A value that goes up and down."""

    type = "gauge"
    _value = 0.0
    _read: Callable[[], float] | None = None

    def inc(self, amount: float = 1) -> None:
        """Change the value by an amount, which may be negative."""
        self._value += amount

    def set(self, value: float) -> None:
        """Set the value."""
        self._value = float(value)

    def set_function(self, read: Callable[[], float]) -> None:
        """Read the value from a function when it is scraped."""
        self._read = read

    def samples(self) -> Iterable[Sample]:
        """Return the value."""
        return (("", {}, self._value if self._read is None else float(self._read())),)


class Histogram(Metric):
    """A distribution over buckets with ascending bounds, and one more for larger values."""

    type = "histogram"

    def __init__(self, name: str, text: str, labels: Sequence[str] = (), *, buckets: Sequence[float]) -> None:
        super().__init__(name, text, labels)
        assert list(buckets) == sorted(buckets), f"{name}: the bounds must ascend"
        self._bounds: Final = tuple(map(float, buckets))
        self._counts: Final = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, amount: float) -> None:
        """Count a value in the first bucket whose bound is not below it."""
        self._sum += amount
        self._counts[bisect_left(self._bounds, amount)] += 1

    def _child(self) -> Self:
        return type(self)(self._name, self._text, buckets=self._bounds)

    def samples(self) -> Iterator[Sample]:
        """Yield the cumulative bucket counts, the count and the sum."""
        total = 0.0
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            total += count
            yield "_bucket", {"le": number(bound)}, total
        yield "_count", {}, total
        yield "_sum", {}, self._sum


_Metric = TypeVar("_Metric", bound=Metric)


def exponential_buckets(*, start: float, factor: float, count: int) -> tuple[float, ...]:
    """Return bucket bounds that grow by `factor`."""
    return tuple(start * factor**power for power in range(count))


class Metrics:
    """A registry of metrics."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self._collectors: dict[str, Collector] = {}
        self._lock = threading.Lock()

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        """Return the counter of the name."""
        return self._once(name, Counter, lambda: Counter(name, text, labels))

    def gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        """Return the gauge of the name."""
        return self._once(name, Gauge, lambda: Gauge(name, text, labels))

    def histogram(
        self, name: str, text: str, labels: Sequence[str] = (), buckets: Sequence[float] = LATENCY_BUCKETS
    ) -> Histogram:
        """Return the histogram of the name."""
        return self._once(name, Histogram, lambda: Histogram(name, text, labels, buckets=buckets))

    def collect_once(self, name: str, make: Callable[[], Collector]) -> None:
        """Add a collector, which is called for each scrape; a second one of the same name is ignored."""
        with self._lock:
            if name not in self._collectors:
                self._collectors[name] = make()

    def families(self) -> Iterator[Family]:
        """Yield all metric families in the order of their creation."""
        for collector in (*self._metrics.values(), *self._collectors.values()):
            yield from collector.collect()

    def exposition(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return page(self.families()).encode()

    def value(self, name: str, labels: dict[str, str] | None = None) -> float:
        """Return the value of one sample; 0 when there is none yet."""
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

    def _once(self, name: str, kind: type[_Metric], make: Callable[[], _Metric]) -> _Metric:
        with self._lock:
            metric = self._metrics.get(name)
            if metric is None:
                metric = self._metrics[name] = make()
            assert isinstance(metric, kind), f"{name} is registered as {type(metric).__name__}"
            return metric


def exposition(*registries: Metrics) -> bytes:
    """Return the metrics of several registries, which have no metric name in common."""
    return b"".join(registry.exposition() for registry in registries)


def page(families: Iterable[Family]) -> str:
    """Return families in the text format, version 0.0.4."""
    return "".join(line for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {_escaped(family.text)}\n"
    yield f"# TYPE {family.name} {family.type}\n"
    for suffix, labels, value in family.samples:
        shown = ",".join(f'{key}="{_quoted(text)}"' for key, text in sorted(labels.items()))
        yield f"{family.name}{suffix}{f'{{{shown}}}' if shown else ''} {number(value)}\n"


def number(value: float) -> str:
    """Return a number in the format of Go."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    text = repr(float(value))
    digits = text.find(".")
    if value <= 0 or digits <= _DIGITS_MAX:
        return text
    mantissa = f"{text[0]}.{text[1:digits]}{text[digits + 1 :]}".rstrip("0.")
    return f"{mantissa}e+{digits - 1:02d}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")
