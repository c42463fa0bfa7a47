"""Rows for people and for programs: aligned tables with colours where they are wanted, CSV, JSON and YAML."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from dray.runtime.logs import wants_colour

T = TypeVar("T")

FORMS: Final = ("table", "wide", "json", "yaml", "csv")
RESET: Final = "\033[0m"
COLOURS: Final = {"green": "\033[32m", "yellow": "\033[33m", "red": "\033[31m", "cyan": "\033[36m", "dim": "\033[2m"}
_GAP: Final = "   "
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column; `wide` ones are shown when asked for."""

    title: str
    text: Callable[[T], str]
    wide: bool = False
    # The name of a colour, or nothing.
    colour: Callable[[T], str] | None = None


def render(rows: Sequence[T], columns: Sequence[Column[T]], form: str = "table", *, colour: bool = False) -> str:
    """All rows in one of `FORMS`."""
    if form == "json":
        return json.dumps([plain(row) for row in rows], indent=2) + "\n"
    if form == "yaml":
        # Much to import for what is seldom asked for.
        import yaml

        return str(yaml.safe_dump([plain(row) for row in rows], sort_keys=False, allow_unicode=True))
    shown = [column for column in columns if form != "table" or not column.wide]
    if form == "csv":
        return _csv(rows, shown)
    return _table(rows, shown, colour=colour)


class Words(Protocol):
    """An answer as lines for people."""

    def __call__(self, *, colour: bool) -> Iterable[str]:
        """The lines, in colours or not."""


def write_answer(rows: Sequence[Any], form: str, words: Words) -> None:
    """Print an answer: as `text` in words, otherwise its rows in one of `FORMS`."""
    if form == "text":
        sys.stdout.write("\n".join(words(colour=wants_colour(sys.stdout, os.environ))) + "\n")
    else:
        sys.stdout.write(render(rows, (), form))


def plain(row: Any) -> Any:
    """A dataclass as JSON data; names in camel case, as everything in Kubernetes."""
    return _camel(msgspec.to_builtins(row))


def _camel(value: Any) -> Any:
    if isinstance(value, dict):
        return {_camel_name(key): _camel(item) if key in _NESTED else item for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_camel(item) for item in value]
    return value


# Fields whose values are rows of their own; other mappings have names of users' as keys.
_NESTED: Final = frozenset({"holders", "nodes", "requests", "devices", "pods", "findings", "rows", "changes"})


def _camel_name(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _csv(rows: Sequence[T], columns: Sequence[Column[T]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([column.title for column in columns])
    writer.writerows([[column.text(row) for column in columns] for row in rows])
    return stream.getvalue()


def _table(rows: Sequence[T], columns: Sequence[Column[T]], *, colour: bool) -> str:
    cells = [[column.text(row) or "-" for column in columns] for row in rows]
    titles = [column.title for column in columns]
    widths = [max(map(len, texts)) for texts in zip(titles, *cells, strict=True)]
    lines = [_line(titles, widths)]
    for row, texts in zip(rows, cells, strict=True):
        padded = [text.ljust(width) for text, width in zip(texts, widths, strict=True)]
        if colour:
            padded = [_painted(text, column, row) for text, column in zip(padded, columns, strict=True)]
        lines.append(_GAP.join(padded).rstrip())
    return "\n".join(lines) + "\n"


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip()


def _painted(text: str, column: Column[T], row: T) -> str:
    name = column.colour(row) if column.colour is not None else ""
    return paint(text, name) if name else text


def paint(text: str, colour: str) -> str:
    """The text in a colour of `COLOURS`."""
    return f"{COLOURS[colour]}{text}{RESET}" if colour else text


def age(since: datetime | None, now: datetime) -> str:
    """How long ago, as kubectl writes it in short: 12s, 5m, 3h, 4d."""
    if since is None:
        return ""
    seconds = max(int((now - since).total_seconds()), 0)
    for unit, letter in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if seconds >= 2 * unit or (unit == _DAY and seconds >= unit):
            return f"{seconds // unit}{letter}"
    return f"{seconds}s"


def bar(share: float, width: int = 10) -> str:
    """A part of a whole, drawn."""
    filled = min(max(round(share * width), 0), width)
    return "█" * filled + "░" * (width - filled)


_CLEAR: Final = "\r\033[K"


class ProgressLine:
    """Writes to stderr, and only to a terminal."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._shown = ""

    def __call__(self, done: int, of: int, what: str) -> None:
        """Say how far it is; `of` 0 means that nobody knows."""
        if not self._on:
            return
        text = f"{bar(done / of, 30)} {done}/{of} {what}" if of else f"{done} {what}"
        if text != self._shown:
            self._shown = text
            sys.stderr.write(_CLEAR + text)
            sys.stderr.flush()

    def close(self) -> None:
        """Leave a clean line."""
        if self._shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
