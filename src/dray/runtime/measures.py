"""Counters, gauges and histograms, and the page that Prometheus reads; counting costs next to nothing.

They take no lock: whoever counts does so on the event loop's thread. Any thread may look.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol, Self

# What a measure's name is followed by, the labels, and the number.
Sample = tuple[str, Mapping[str, str], float]
# From here on Go, whose form this is, writes numbers with an exponent.
_DIGITS_MAX: Final = 6


@dataclass(slots=True)
class Family:
    """Everything of one name at one moment; a counter's name is without its `_total`."""

    name: str
    text: str
    type: str
    labels: tuple[str, ...] = ()
    samples: list[Sample] = field(default_factory=list)

    def add(self, values: Sequence[str], value: float) -> None:
        """One number, for values of the labels."""
        self.samples.append(("", dict(zip(self.labels, values, strict=True)), value))


class Collector(Protocol):
    """Tells what it has when somebody looks."""

    def collect(self) -> Iterable[Family]:
        """Everything, now."""


class Measure(ABC):
    """A metric: counted with by itself when it has no labels, else by what `labels` gives."""

    type: ClassVar[str]

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self._name: Final = name
        self._text: Final = text
        self._labels: Final = tuple(labels)
        self._children: Final[dict[tuple[str, ...], Self]] = {}

    @property
    def name(self) -> str:
        """Without what it is followed by on the page."""
        return self._name

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

    def collect(self) -> Iterator[Family]:
        """Everything counted so far."""
        family = Family(self._name, self._text, self.type, self._labels)
        for labels, samples in self._counted():
            family.samples += [(suffix, {**labels, **more}, value) for suffix, more, value in samples]
        yield family

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
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            total += count
            yield "_bucket", {"le": number(bound)}, total
        yield "_count", {}, total
        yield "_sum", {}, self._sum


def page(families: Iterable[Family]) -> str:
    """The text format, version 0.0.4."""
    return "".join(line for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    yield f"# HELP {name} {_escaped(family.text)}\n"
    yield f"# TYPE {name} {family.type}\n"
    for suffix, labels, value in family.samples:
        shown = ",".join(f'{key}="{_quoted(text)}"' for key, text in sorted(labels.items()))
        yield f"{family.name}{suffix}{f'{{{shown}}}' if shown else ''} {number(value)}\n"


def number(value: float) -> str:
    """As Go writes it."""
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
