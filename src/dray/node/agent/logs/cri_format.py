"""Parses and filters container logs in the CRI format, `time stream F|P text`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dray.api.timestamps import TimeFormatError, parse_time, seconds_after

# Time, stream and tag; the text may be missing.
_FIELDS_LEAST: Final = 3


class LogOptionsError(ValueError):
    """Invalid log options."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The options of a log request; None means no limit."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since: datetime | None = None
    limit_bytes: int | None = None
    # "stdout" or "stderr"; empty means both.
    stream: str = ""


def read_options(query: Mapping[str, str], now: datetime) -> LogOptions:
    """Parse the options in a URL query; raises `LogOptionsError`."""
    since = None
    try:
        if query.get("sinceTime"):
            since = parse_time(query["sinceTime"])
        if query.get("sinceSeconds"):
            since = seconds_after(now, -int(query["sinceSeconds"]))
        tail = int(query["tailLines"]) if query.get("tailLines") else None
        limit = int(query["limitBytes"]) if query.get("limitBytes") else None
    except (ValueError, TimeFormatError) as error:
        raise LogOptionsError(str(error)) from error
    stream = query.get("stream", "")
    return LogOptions(
        follow=_truth(query.get("follow", "")),
        previous=_truth(query.get("previous", "")),
        timestamps=_truth(query.get("timestamps", "")),
        tail_lines=tail,
        since=since,
        limit_bytes=limit,
        stream=stream.lower() if stream in ("Stdout", "Stderr") else "",
    )


def _truth(text: str) -> bool:
    return text.lower() in ("1", "t", "true")


@dataclass(frozen=True, slots=True)
class Line:
    """A line, or a part of a long line."""

    time: str
    stream: str
    whole: bool
    content: bytes

    def render(self, *, timestamps: bool) -> bytes:
        """Return the line as it is sent to the client."""
        end = b"\n" if self.whole else b""
        return (f"{self.time} ".encode() if timestamps else b"") + self.content + end


def parse_line(raw: bytes) -> Line | None:
    """Parse a line without its newline; None if it is not in the format."""
    parts = raw.split(b" ", 3)
    if len(parts) < _FIELDS_LEAST:
        return None
    time, stream, tag, *content = parts
    return Line(time.decode(), stream.decode(), tag.split(b":")[0] == b"F", b"".join(content))


def wanted(line: Line, options: LogOptions) -> bool:
    """Whether the line matches the options' stream and time."""
    if options.stream and line.stream != options.stream:
        return False
    if options.since is None:
        return True
    try:
        # A datetime holds only six digits of the nanoseconds.
        return parse_time(line.time[:26].rstrip("Z") + "Z") >= options.since
    except TimeFormatError:
        return True


def last_lines(raw: Iterable[bytes], count: int) -> list[bytes]:
    """Return the last lines; the parts of a long line count as one."""
    groups: list[list[bytes]] = [[]]
    for item in raw:
        groups[-1].append(item)
        line = parse_line(item)
        if line is None or line.whole:
            groups.append([])
    groups = [group for group in groups if group]
    return [item for group in (groups[-count:] if count else []) for item in group]


def render(raw: Iterable[bytes], options: LogOptions) -> Iterator[bytes]:
    """Yield the matching lines as they are sent to the client."""
    fresh = True
    for item in raw:
        line = parse_line(item)
        if line is None or not wanted(line, options):
            continue
        # A timestamp comes before a line, not before each of its parts.
        yield line.render(timestamps=options.timestamps and fresh)
        fresh = line.whole


def cut(chunks: Iterable[bytes], limit: int | None) -> Iterator[bytes]:
    """Truncate the output to the limit."""
    left = limit
    for chunk in chunks:
        if left is None:
            yield chunk
            continue
        if left <= 0:
            return
        yield chunk[:left]
        left -= len(chunk)
