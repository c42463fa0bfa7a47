"""Usage over time for `dray top --since` and `dray usage`: read from the API server of `dray up`, and printed."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from dray.api.timestamps import TimeFormatError, age, parse_duration
from dray.cli.command import exit_on_read_error
from dray.cli.output import Column, render
from dray.runtime.logs import wants_colour
from dray.sim.snapshot import SnapshotError
from dray.sim.usage_history import MERGED_SECONDS, HistoryError, from_document
from dray.sim.usage_window import ClassCourse, NamespaceCourse, Window, class_courses, namespace_courses

PATH: Final = "/debug/usage"
# The tables with a course over time.
COURSES: Final = ("classes", "namespaces")
_NOT_THERE: Final = (
    "the API server has no history of usage: only that of `dray up` records one, unless it runs with --usage-interval=0"
)
_DAYS: Final = re.compile(r"(\d{1,4})d")
_SECONDS_PER_DAY: Final = 86_400.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Shorter times without observation are not worth a note.
_UNOBSERVED_FRACTION_NOTED: Final = 0.05

CLASS_COLUMNS: Final[Sequence[Column[ClassCourse]]] = (
    Column("CLASS", lambda row: row.name),
    Column("DEVICES", lambda row: f"{row.devices:g}"),
    Column("NOW", lambda row: f"{row.now:.0%}"),
    Column("AVERAGE", lambda row: f"{row.average:.0%}"),
    Column("PEAK", lambda row: f"{row.peak:.0%}"),
    Column("USAGE", lambda row: row.course),
)
NAMESPACE_COLUMNS: Final[Sequence[Column[NamespaceCourse]]] = (
    Column("NAMESPACE", lambda row: row.namespace),
    Column("CLASS", lambda row: row.device_class),
    Column("NOW", lambda row: f"{row.now:.1f}"),
    Column("AVERAGE", lambda row: f"{row.average:.1f}"),
    Column("PEAK", lambda row: f"{row.peak:.1f}"),
    Column("DEVICE-HOURS", lambda row: f"{row.device_hours:.1f}"),
    Column("USAGE", lambda row: row.course),
)


@dataclass(frozen=True, slots=True)
class Courses:
    """Usage over time."""

    by_class: list[ClassCourse]
    by_namespace: list[NamespaceCourse]


def span(text: str) -> float:
    """Return the seconds of `24h`, `30m` or `7d`, for a flag."""
    days = _DAYS.fullmatch(text)
    try:
        seconds = int(days[1]) * _SECONDS_PER_DAY if days else parse_duration(text).total_seconds()
    except (TimeFormatError, OverflowError):
        seconds = 0.0
    if not 0 < seconds <= MERGED_SECONDS:
        raise argparse.ArgumentTypeError(f"invalid duration {text!r}: specify up to 30d, for example 30m, 24h or 7d")
    return seconds


def print_courses(prog: str, arguments: argparse.Namespace) -> int:
    """Print usage over time by class, by namespace, or both."""
    window = read_window(prog, arguments)
    courses, output = Courses(class_courses(window), namespace_courses(window)), arguments.output
    colour = wants_colour(sys.stdout, os.environ)
    if arguments.what == "all" and output != "table":
        sys.stdout.write(render([courses], (), output, kind="CoursesList"))
        return 0
    parts = []
    if arguments.what in ("all", "classes"):
        parts.append(render(courses.by_class, CLASS_COLUMNS, output, kind="ClassCourseList", colour=colour))
    if arguments.what in ("all", "namespaces"):
        parts.append(render(courses.by_namespace, NAMESPACE_COLUMNS, output, kind="NamespaceCourseList", colour=colour))
    sys.stdout.write("\n".join(parts))
    return 0


def read_window(prog: str, arguments: argparse.Namespace) -> Window:
    """Read the usage of the last `arguments.since` seconds; exit if there is none. Notes what is missing."""
    # Imported on use: `dray top --help` needs none of it.
    import asyncio

    from dray.cli.cluster import read_page

    with exit_on_read_error(prog):
        query = {"seconds": f"{arguments.since:g}"}
        answer = asyncio.run(read_page(arguments.kubeconfig, arguments.context, PATH, query, missing=_NOT_THERE))
        try:
            points = [from_document(document) for document in answer["points"]]
        except HistoryError as error:
            raise SnapshotError(str(error)) from error
    window = Window.of(points, arguments.since)
    for note in notes(answer, window):
        sys.stderr.write(f"{prog}: note: {note}\n")
    return window


def notes(answer: dict[str, Any], window: Window) -> Iterator[str]:
    """Yield what the numbers do not contain."""
    if answer.get("hiddenNamespaces"):
        count = answer["hiddenNamespaces"]
        yield f"{count} namespace{'s are' if count > 1 else ' is'} hidden: you may not list the Pods"
    if answer.get("hiddenClasses"):
        yield "the totals by class are hidden: you may not list resourceslices.resource.k8s.io"
    wanted = window.end - window.start
    missing = wanted - window.observed_seconds
    if missing > wanted * _UNOBSERVED_FRACTION_NOTED:
        yield f"{_duration(window.observed_seconds)} of {_duration(wanted)} were recorded; the rest is not counted"


def _duration(seconds: float) -> str:
    return age(_EPOCH, _EPOCH + timedelta(seconds=seconds))
