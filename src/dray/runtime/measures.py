"""Counters, gauges and histograms that the Prometheus library renders when asked; counting costs next to nothing.

They take no lock: whoever counts does so on the event loop's thread. Any thread may look.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Final, Self

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import INF, floatToGoString

# What a measure's name is followed by, the labels of its own (buckets have a bound), and the number.
Sample = tuple[str, dict[str, str], float]


class Measure(Collector):
    """A metric: counted with by itself when it has no labels, else by what `labels` gives."""

    type: ClassVar[str]

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self._name: Final = name
        self._text: Final = text
        self._labels: Final = tuple(labels)
        self._children: Final[dict[tuple[str, ...], Self]] = {}

    def labels(self, *values: str) -> Self:
        """The one that counts for these values, in the order of the label names; who counts often keeps it."""
        child = self._children.get(values)
        if child is None:
            assert len(values) == len(self._labels) > 0, f"{self._name} has the labels {self._labels}"
            child = self._children.setdefault(values, self._child())
        return child

    def remove(self, *values: str) -> None:
        """Forget what was counted for these values."""
        self._children.pop(values, None)

    def describe(self) -> Iterator[Metric]:
        """The names alone, so that nobody can take them again."""
        yield Metric(self._name, self._text, self.type)

    def collect(self) -> Iterator[Metric]:
        """Everything counted so far."""
        metric = Metric(self._name, self._text, self.type)
        for labels, samples in self._counted():
            for suffix, more, value in samples:
                metric.add_sample(self._name + suffix, labels | more, value)
        yield metric

    def _counted(self) -> Iterator[tuple[dict[str, str], Iterable[Sample]]]:
        if not self._labels:
            yield {}, self.samples()
        for values, child in list(self._children.items()):
            yield dict(zip(self._labels, values, strict=True)), child.samples()

    def _child(self) -> Self:
        return type(self)(self._name, self._text)

    @abstractmethod
    def samples(self) -> Iterable[Sample]:
        """What this one has counted."""


class Counter(Measure):
    """A number that only grows; shown with `_total` after its name."""

    type = "counter"
    _value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Count."""
        self._value += amount

    def samples(self) -> Iterable[Sample]:
        """The number."""
        return (("_total", {}, self._value),)


class Gauge(Measure):
    """A number that goes up and down."""

    type = "gauge"
    _value = 0.0
    _read: Callable[[], float] | None = None

    def inc(self, amount: float = 1) -> None:
        """Raise it, or lower it by a negative amount."""
        self._value += amount

    def set(self, value: float) -> None:
        """Make it this number."""
        self._value = float(value)

    def set_function(self, read: Callable[[], float]) -> None:
        """Have the number read when somebody looks."""
        self._read = read

    def samples(self) -> Iterable[Sample]:
        """The number."""
        return (("", {}, self._value if self._read is None else float(self._read())),)


class Histogram(Measure):
    """A distribution; the bounds ascend, and above the last of them there is one more bucket."""

    type = "histogram"

    def __init__(self, name: str, text: str, labels: Sequence[str] = (), *, buckets: Sequence[float]) -> None:
        super().__init__(name, text, labels)
        assert list(buckets) == sorted(buckets), f"{name}: the bounds must ascend"
        self._bounds: Final = tuple(map(float, buckets))
        self._counts: Final = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, amount: float) -> None:
        """Count it in its bucket, the first whose bound is not below it."""
        self._sum += amount
        self._counts[bisect_left(self._bounds, amount)] += 1

    def _child(self) -> Self:
        return type(self)(self._name, self._text, buckets=self._bounds)

    def samples(self) -> Iterator[Sample]:
        """How many are not above each bound, how many there are, and what they add up to."""
        total = 0.0
        for bound, count in zip((*self._bounds, INF), self._counts, strict=True):
            total += count
            yield "_bucket", {"le": floatToGoString(bound)}, total  # type: ignore[no-untyped-call]
        yield "_count", {}, total
        yield "_sum", {}, self._sum
