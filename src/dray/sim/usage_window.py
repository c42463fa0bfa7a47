"""Usage over a time: averages, peaks, device-hours, and a line of its course. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from dray.sim.usage_history import Point

# The parts of the time in the line of a row.
LINE_PARTS: Final = 24
_LEVELS: Final = "▁▂▃▄▅▆▇█"
_NOT_OBSERVED: Final = "·"
_SECONDS_PER_HOUR: Final = 3600.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClassCourse:
    """Usage of a class over time; the fractions are from 0 to 1, those of its devices at that time."""

    name: str
    # Now.
    devices: float
    now: float
    average: float
    peak: float
    course: str


@dataclass(frozen=True, slots=True)
class NamespaceCourse:
    """Devices that a namespace uses by a class, over time."""

    namespace: str
    device_class: str
    now: float
    average: float
    peak: float
    device_hours: float
    course: str


@dataclass(frozen=True, slots=True)
class NamespaceHours:
    """Device-hours of a namespace by a class."""

    namespace: str
    device_class: str
    device_hours: float


@dataclass(frozen=True, slots=True)
class Window:
    """The points of a time that ends with the newest of them."""

    points: Sequence[Point]
    start: float
    end: float

    @classmethod
    def of(cls, points: Sequence[Point], seconds: float) -> Window:
        """Return the window of the last seconds."""
        end = points[-1].time if points else 0.0
        start = end - seconds
        return cls([point for point in points if point.time > start], start, end)

    def seconds(self, point: Point) -> float:
        """Return how much of a point is in the window."""
        return min(point.seconds, max(point.time - self.start, 0.0))

    @property
    def observed_seconds(self) -> float:
        """How much of the time was observed."""
        return sum(map(self.seconds, self.points))


def class_courses(window: Window) -> list[ClassCourse]:
    """Return one row for each class that had devices."""
    names = sorted({name for point in window.points for name in point.sample.classes})
    return [_class_course(window, name) for name in names]


def _class_course(window: Window, name: str) -> ClassCourse:
    def used(point: Point) -> float:
        use = point.sample.classes.get(name)
        return use.used if use is not None else 0.0

    def total(point: Point) -> float:
        use = point.sample.classes.get(name)
        return use.total if use is not None else 0.0

    last = window.points[-1]
    peaks = [_fraction(use.peak, use.total) for use in _present(window, lambda point: point.sample.classes, name)]
    return ClassCourse(
        name,
        devices=total(last),
        now=_fraction(used(last), total(last)),
        average=_fraction(_mean(window, used), _mean(window, total)),
        peak=max(peaks, default=0.0),
        course=_line(window, used, total),
    )


def namespace_courses(window: Window) -> list[NamespaceCourse]:
    """Return one row for each namespace and class of devices that were in use."""
    owners = sorted({owner for point in window.points for owner in point.sample.namespaces})
    return [_namespace_course(window, owner) for owner in owners]


def _namespace_course(window: Window, owner: tuple[str, str]) -> NamespaceCourse:
    parts = _present(window, lambda point: point.sample.namespaces, owner)
    peak = max(part.peak for part in parts)

    def used(point: Point) -> float:
        part = point.sample.namespaces.get(owner)
        return part.used if part is not None else 0.0

    return NamespaceCourse(
        *owner,
        now=used(window.points[-1]),
        average=_mean(window, used),
        peak=peak,
        device_hours=_hours(window, used),
        course=_line(window, used, lambda _: peak),
    )


def namespace_hours(window: Window) -> list[NamespaceHours]:
    """Return the device-hours of each namespace and class."""
    return [
        NamespaceHours(row.namespace, row.device_class, round(row.device_hours, 6)) for row in namespace_courses(window)
    ]


K = TypeVar("K")


def _present(window: Window, values: Callable[[Point], Mapping[K, T]], key: K) -> list[T]:
    return [values(point)[key] for point in window.points if key in values(point)]


def _hours(window: Window, amount: Callable[[Point], float]) -> float:
    return sum(amount(point) * window.seconds(point) for point in window.points) / _SECONDS_PER_HOUR


def _mean(window: Window, amount: Callable[[Point], float]) -> float:
    """Return the average over the observed time; of points that stand for no time, the plain one."""
    observed = window.observed_seconds
    if observed:
        return _hours(window, amount) * _SECONDS_PER_HOUR / observed
    return sum(map(amount, window.points)) / len(window.points)


def _fraction(part: float, whole: float) -> float:
    return min(part / whole, 1.0) if whole else 0.0


def _line(window: Window, amount: Callable[[Point], float], full: Callable[[Point], float]) -> str:
    """Return the course as text: a character for each part of the time, `·` where nothing was observed."""
    cells: list[list[float]] = [[] for _ in range(LINE_PARTS)]
    width = (window.end - window.start) / LINE_PARTS
    for point in window.points:
        last = min(int((point.time - window.start) / width), LINE_PARTS - 1)
        first = min(int((point.time - window.seconds(point) - window.start) / width), last)
        for index in range(first, last + 1):
            cells[index].append(_fraction(amount(point), full(point)))
    return "".join(_level(sum(cell) / len(cell)) if cell else _NOT_OBSERVED for cell in cells)


def _level(fraction: float) -> str:
    return _LEVELS[min(round(fraction * (len(_LEVELS) - 1)), len(_LEVELS) - 1)]
