"""A recording: the objects of a cluster, and every change of them, with its time. Pure.

A recording is a file of JSON objects, one a line: a header, the objects that were there at the start, and the changes
in the order in which they were observed. A file that ends in the middle of a line, because the recorder was killed, is
read up to there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dray.api.document import Document
from dray.api.timestamps import format_micro_time, parse_time
from dray.sim.snapshot import Snapshot, SnapshotError, in_hub_version

API_VERSION: Final = "dray.dev/v1"
KIND: Final = "Recording"
INITIAL: Final = "INITIAL"
ADDED: Final = "ADDED"
MODIFIED: Final = "MODIFIED"
DELETED: Final = "DELETED"
_TYPES: Final = frozenset({INITIAL, ADDED, MODIFIED, DELETED})

# apiVersion, kind, namespace and name.
ObjectKey = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one object, `seconds` after the start of the recording."""

    seconds: float
    type: str
    object: Document

    @property
    def key(self) -> ObjectKey:
        """What identifies the object."""
        return key_of(self.object)


@dataclass(frozen=True, slots=True)
class Recording:
    """The objects at the start, and the changes in order."""

    start: datetime
    initial: Sequence[Document]
    changes: Sequence[Change]

    @property
    def seconds(self) -> float:
        """The time of the last change."""
        return self.changes[-1].seconds if self.changes else 0.0

    def documents_at(self, seconds: float) -> list[Document]:
        """Return the objects as they were at that time."""
        found = {key_of(item): item for item in self.initial}
        for change in self.changes:
            if change.seconds > seconds:
                break
            if change.type == DELETED:
                found.pop(change.key, None)
            else:
                found[change.key] = change.object
        return list(found.values())

    def snapshot(self) -> Snapshot:
        """Return the objects at the start."""
        return Snapshot.of(self.initial)


def key_of(document: Document) -> ObjectKey:
    """Return what identifies an object."""
    metadata = document["metadata"]
    return document["apiVersion"], document["kind"], metadata.get("namespace") or "", metadata.get("name") or ""


def header_line(start: datetime) -> str:
    """Return the first line of a recording."""
    return _line({"apiVersion": API_VERSION, "kind": KIND, "start": format_micro_time(start)})


def change_line(seconds: float, change_type: str, document: Document) -> str:
    """Return the line of a change."""
    return _line({"seconds": round(seconds, 6), "type": change_type, "object": document})


def _line(value: Document) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False) + "\n"


def read_recording(lines: Iterable[str]) -> Recording:
    """Read a recording; raises `SnapshotError` if it is none."""
    remaining = iter(lines)
    start = _read_header(next(remaining, ""))
    initial: list[Document] = []
    changes: list[Change] = []
    for change in _changes(remaining):
        if change.type == INITIAL:
            initial.append(change.object)
        else:
            changes.append(change)
    return Recording(start, initial, changes)


def _read_header(line: str) -> datetime:
    try:
        header = json.loads(line)
        found, start = (header["apiVersion"], header["kind"]), parse_time(header["start"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SnapshotError("not a recording of `dray record`") from error
    if found != (API_VERSION, KIND):
        raise SnapshotError(f"this is a {found[1]} of {found[0]}, not a {KIND} of {API_VERSION}")
    return start


def _changes(lines: Iterator[str]) -> Iterator[Change]:
    for number, line in enumerate(lines, 2):
        if not line.endswith("\n"):
            # The recorder was killed while it wrote.
            return
        try:
            value: Any = json.loads(line)
            seconds, change_type, document = float(value["seconds"]), value["type"], in_hub_version(value["object"])
            key_of(document)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise SnapshotError(f"line {number} is no change of an object: {error}") from error
        if not math.isfinite(seconds):
            raise SnapshotError(f"line {number} has no time")
        if change_type not in _TYPES:
            raise SnapshotError(f"line {number} has the type {change_type!r}")
        yield Change(seconds, change_type, document)
