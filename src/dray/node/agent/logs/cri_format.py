"""Container logs in CRI's format, `time stream F|P text`, and which part of them is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from dray.api.timestamps import TimeFormatError, parse_time


class LogOptionsError(ValueError):
    """Options that cannot be understood."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What is asked for; None means no bound."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since: datetime | None = None
    limit_bytes: int | None = None
    # "stdout" or "stderr"; empty means both.
    stream: str = ""


def read_options(query: Mapping[str, str], now: datetime) -> LogOptions:
    """The options in a URL's query."""
    since = None
    try:
        if query.get("sinceTime"):
            since = parse_time(query["sinceTime"])
        if query.get("sinceSeconds"):
            since = now - timedelta(seconds=int(query["sinceSeconds"]))
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
    """One line, or a part of one that did not end."""

    time: str
    stream: str
    whole: bool
    content: bytes

    def render(self, *, timestamps: bool) -> bytes:
        """As the reader sees it."""
        end = b"\n" if self.whole else b""
        return (f"{self.time} ".encode() if timestamps else b"") + self.content + end


def parse_line(raw: bytes) -> Line | None:
    """Read one line without its newline; None for what is not in the format."""
    parts = raw.split(b" ", 3)
    if len(parts) < 3:  # noqa: PLR2004 - time, stream and tag are always there
        return None
    content = parts[3] if len(parts) > 3 else b""  # noqa: PLR2004
    return Line(parts[0].decode(), parts[1].decode(), parts[2].split(b":")[0] == b"F", content)


def wanted(line: Line, options: LogOptions) -> bool:
    """Whether the line is of the stream and time asked for."""
    if options.stream and line.stream != options.stream:
        return False
    if options.since is None:
        return True
    try:
        # Nine digits of seconds are more than a datetime holds.
        return parse_time(line.time[:26].rstrip("Z") + "Z") >= options.since
    except TimeFormatError:
        return True


def last_lines(raw: Iterable[bytes], count: int) -> list[bytes]:
    """The last whole lines; the parts of a long line count as one."""
    groups: list[list[bytes]] = [[]]
    for item in raw:
        groups[-1].append(item)
        line = parse_line(item)
        if line is None or line.whole:
            groups.append([])
    groups = [group for group in groups if group]
    return [item for group in (groups[-count:] if count else []) for item in group]


def render(raw: Iterable[bytes], options: LogOptions) -> Iterator[bytes]:
    """What the reader sees of the lines."""
    fresh = True
    for item in raw:
        line = parse_line(item)
        if line is None or not wanted(line, options):
            continue
        # A timestamp belongs before a line, not before each of its parts.
        yield line.render(timestamps=options.timestamps and fresh)
        fresh = line.whole


def cut(chunks: Iterable[bytes], limit: int | None) -> Iterator[bytes]:
    """No more than the limit."""
    left = limit
    for chunk in chunks:
        if left is None:
            yield chunk
            continue
        if left <= 0:
            return
        yield chunk[:left]
        left -= len(chunk)
