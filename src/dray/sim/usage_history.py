"""A bounded series of usage: samples of the last day, then averages of 15 minutes for a month. Pure.

Each point is what was in use in the seconds until its time. Time that nobody observed (the process did not run, or
the machine was suspended) belongs to no point: it counts neither as used nor as free.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dray.api.document import Document
from dray.sim.usage_sample import ClassUse, NamespaceUse, Sample

VERSION: Final = 1
RAW_SECONDS: Final = 24 * 3600.0
# A day of minutes; with a shorter interval, samples are merged earlier.
RAW_MAX: Final = 1440
BUCKET_SECONDS: Final = 900.0
MERGED_SECONDS: Final = 30 * 24 * 3600.0
# With many classes and namespaces, the oldest points are dropped earlier.
BYTES_MAX: Final = 8 * 1024 * 1024
# A longer time between two samples than so many intervals was not observed.
_GAP_INTERVALS: Final = 2.5
_DIGITS: Final = 6


class HistoryError(ValueError):
    """A file or an answer is no history."""


@dataclass(frozen=True, slots=True)
class Point:
    """What was in use in the `seconds` until `time` (seconds since 1970)."""

    time: float
    seconds: float
    sample: Sample


@dataclass(slots=True)
class History:
    """Merged points and then single ones, the oldest first."""

    merged: list[Point] = field(default_factory=list)
    raw: list[Point] = field(default_factory=list)

    def points(self) -> list[Point]:
        """Return all points, the oldest first."""
        return [*self.merged, *self.raw]

    def add(self, point: Point) -> None:
        """Add the newest point; merge or drop those that are too old or too many."""
        # After the clock was set back, the points of the future would never be merged.
        self.merged = [item for item in self.merged if point.time - MERGED_SECONDS < item.time <= point.time]
        self.raw = [*(item for item in self.raw if item.time <= point.time), point]
        while len(self.raw) > RAW_MAX or self.raw[0].time <= point.time - RAW_SECONDS:
            oldest = self.raw.pop(0)
            if self.merged and self.merged[-1].time // BUCKET_SECONDS == oldest.time // BUCKET_SECONDS:
                oldest = merge([self.merged.pop(), oldest])
            self.merged.append(oldest)


def observed_seconds(before: float, now: float, interval: float) -> float:
    """Return which part of the time between two samples was observed: all of it, or nothing after a gap."""
    return now - before if 0 <= now - before <= interval * _GAP_INTERVALS else 0.0


def merge(points: Sequence[Point]) -> Point:
    """Return one point for several: averages by time, and peaks; what a point does not name is 0 in it."""
    seconds = sum(point.seconds for point in points)
    # Points that stand for no time count alike.
    weights = [point.seconds / seconds if seconds else 1 / len(points) for point in points]
    classes: dict[str, ClassUse] = {}
    for name in _names(point.sample.classes for point in points):
        uses = [
            (point.sample.classes.get(name, _NO_DEVICES), weight) for point, weight in zip(points, weights, strict=True)
        ]
        classes[name] = ClassUse(
            total=_average((use.total, weight) for use, weight in uses),
            held=_average((use.held, weight) for use, weight in uses),
            unavailable=_average((use.unavailable, weight) for use, weight in uses),
            used=_average((use.used, weight) for use, weight in uses),
            peak=max(use.peak for use, _ in uses),
        )
    owners: dict[tuple[str, str], NamespaceUse] = {}
    for owner in _names(point.sample.namespaces for point in points):
        parts = [
            (point.sample.namespaces.get(owner, _UNUSED), weight) for point, weight in zip(points, weights, strict=True)
        ]
        average = _average((use.used, weight) for use, weight in parts)
        owners[owner] = NamespaceUse(average, max(use.peak for use, _ in parts))
    return Point(points[-1].time, round(seconds, 3), Sample(classes, owners))


_NO_DEVICES: Final = ClassUse(0, 0, 0, 0, 0)
_UNUSED: Final = NamespaceUse(0, 0)


def _names(mappings: Iterable[Mapping[Any, object]]) -> list[Any]:
    return sorted({name for mapping in mappings for name in mapping})


def _average(amounts: Iterable[tuple[float, float]]) -> float:
    return round(sum(amount * weight for amount, weight in amounts), _DIGITS)


# --- As JSON data. ---


def to_document(point: Point) -> Document:
    """Return a point as JSON data."""
    namespaces: dict[str, dict[str, list[float]]] = {}
    for (namespace, name), part in point.sample.namespaces.items():
        namespaces.setdefault(namespace, {})[name] = [part.used, part.peak]
    classes = {
        name: [use.total, use.held, use.unavailable, use.used, use.peak] for name, use in point.sample.classes.items()
    }
    return {"time": point.time, "seconds": point.seconds, "classes": classes, "namespaces": namespaces}


def from_document(document: Any) -> Point:
    """Return the point of JSON data; raises `HistoryError`."""
    try:
        classes = {str(name): ClassUse(*map(float, _of(use, 5))) for name, use in document["classes"].items()}
        namespaces = {
            (str(namespace), str(name)): NamespaceUse(*map(float, _of(part, 2)))
            for namespace, parts in document["namespaces"].items()
            for name, part in parts.items()
        }
        return Point(float(document["time"]), float(document["seconds"]), Sample(classes, namespaces))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise HistoryError(f"not a point of the history of usage: {error!r}") from error


def _of(values: Sequence[Any], length: int) -> Sequence[Any]:
    if len(values) != length:
        raise ValueError(f"{length} numbers are needed, {len(values)} are there")
    return values


def encode(history: History, bytes_max: int = BYTES_MAX) -> bytes:
    """Return the content of the file, without the oldest points if they are too many."""
    lines = [json.dumps(to_document(point), separators=(",", ":")).encode() for point in history.points()]
    head = json.dumps({"version": VERSION, "merged": len(history.merged)}).encode()
    left = bytes_max - len(head) - 1
    kept: list[bytes] = []
    for line in reversed(lines):
        left -= len(line) + 1
        if left < 0:
            break
        kept.append(line)
    dropped = len(lines) - len(kept)
    head = json.dumps({"version": VERSION, "merged": max(len(history.merged) - dropped, 0)}).encode()
    return b"".join(line + b"\n" for line in (head, *reversed(kept)))


def decode(content: bytes) -> History:
    """Return the history of a file; raises `HistoryError`."""
    try:
        head, *documents = [json.loads(line) for line in content.splitlines()]
        version, merged = head["version"], int(head["merged"])
    except (ValueError, KeyError, TypeError) as error:
        raise HistoryError(f"not a history of usage: {error!r}") from error
    if version != VERSION:
        raise HistoryError(f"version {version} of the history is not known")
    points = [from_document(document) for document in documents]
    if not 0 <= merged <= len(points):
        raise HistoryError(f"{merged} of {len(points)} points cannot be averages")
    return History(points[:merged], points[merged:])
