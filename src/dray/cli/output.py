"""Output of rows as aligned and coloured tables, CSV, JSON and YAML; text answers; a progress line."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from itertools import zip_longest
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from dray.runtime.logs import wants_colour

T = TypeVar("T")

FORMATS: Final = ("table", "wide", "json", "yaml", "csv")
RESET: Final = "\033[0m"
COLOURS: Final = {"green": "\033[32m", "yellow": "\033[33m", "red": "\033[31m", "cyan": "\033[36m", "dim": "\033[2m"}
_CLEAR_LINE: Final = "\r\033[K"
_GAP: Final = "   "
# A column that alone is wrapped is at least this wide; if several are, at least that wide.
_WRAPPED_MIN: Final = 24
_NARROW_MIN: Final = 10
# Of the documents for programs. Their kinds, and the types of their items, are in `documents`.
API_VERSION: Final = "tools.dray.dev/v1"


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column of a table; `wide` columns are left out of the default format."""

    title: str
    text: Callable[[T], str]
    wide: bool = False
    # Returns a key of `COLOURS`, or nothing.
    colour: Callable[[T], str] | None = None


class TextLines(Protocol):
    """The text format of an answer."""

    def __call__(self, *, colour: bool) -> Iterable[str]:
        """Return the lines, in colour or not."""


def render(
    rows: Sequence[T],
    columns: Sequence[Column[T]],
    output_format: str = "table",
    *,
    kind: str = "",
    colour: bool = False,
) -> str:
    """Render all rows in one of `FORMATS`; JSON and YAML are documents of the kind."""
    if output_format in ("json", "yaml"):
        return render_document(document(kind, rows), output_format)
    shown = [column for column in columns if output_format != "table" or not column.wide]
    if output_format == "csv":
        return _csv(rows, shown)
    return table(rows, shown, colour=colour, width=terminal_width())


def document(kind: str, rows: Iterable[Any]) -> Mapping[str, Any]:
    """Return the document for programs with these rows."""
    return {"apiVersion": API_VERSION, "kind": kind, "items": [to_plain(row) for row in rows]}


def render_document(content: Mapping[str, Any], output_format: str) -> str:
    """Render a document as JSON or YAML."""
    if output_format == "json":
        return json.dumps(content, indent=2) + "\n"
    # Imported on use: slow to import, rarely needed.
    import yaml

    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def write_answer(kind: str, rows: Sequence[Any], output_format: str, text_lines: TextLines) -> None:
    """Print an answer as text, or its rows as a document of the kind."""
    if output_format == "text":
        sys.stdout.write("\n".join(text_lines(colour=wants_colour(sys.stdout, os.environ))) + "\n")
    else:
        sys.stdout.write(render(rows, (), output_format, kind=kind))


def to_plain(value: Any) -> Any:
    """Convert a value to JSON data; the fields of structures are in camel case, the keys of mappings as they are."""
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {camel_case(encoded): to_plain(getattr(value, name)) for encoded, name in names}
    if is_dataclass(value):
        return {camel_case(item.name): to_plain(getattr(value, item.name)) for item in dataclass_fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(item) for item in value]
    return msgspec.to_builtins(value)


def camel_case(name: str) -> str:
    """Return a field's name in documents."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _csv(rows: Sequence[T], columns: Sequence[Column[T]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([column.title for column in columns])
    writer.writerows([[column.text(row) for column in columns] for row in rows])
    return stream.getvalue()


def terminal_width() -> int:
    """Return the width of the terminal; 0 if the output is not one, which is never wrapped."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def table(rows: Sequence[T], columns: Sequence[Column[T]], *, colour: bool = False, width: int = 0) -> str:
    """Return an aligned table; if it is wider than `width`, its widest columns are wrapped."""
    cells = [[column.text(row) or "-" for column in columns] for row in rows]
    titles = [column.title for column in columns]
    widths = [max(map(len, texts)) for texts in zip(titles, *cells, strict=True)]
    if width:
        widths = _narrowed(widths, [len(title) for title in titles], width - len(_GAP) * (len(widths) - 1))
    lines = [_line(titles, widths)]
    for row, texts in zip(rows, cells, strict=True):
        wrapped = [_wrapped(text, limit) for text, limit in zip(texts, widths, strict=True)]
        for parts in zip_longest(*wrapped, fillvalue=""):
            padded = [text.ljust(limit) for text, limit in zip(parts, widths, strict=True)]
            if colour:
                padded = [_painted(text, column, row) for text, column in zip(padded, columns, strict=True)]
            lines.append(_GAP.join(padded).rstrip())
    return "\n".join(lines) + "\n"


def _narrowed(widths: Sequence[int], title_widths: Sequence[int], available: int) -> list[int]:
    """Return widths that fit: the widest column is narrowed or, if that does not suffice, all that are wide."""
    if sum(widths) <= available:
        return list(widths)
    widest = widths.index(max(widths))
    left = available - sum(widths) + widths[widest]
    if left >= max(_WRAPPED_MIN, title_widths[widest]):
        return [left if position == widest else own for position, own in enumerate(widths)]
    for limit in range(max(widths), _NARROW_MIN - 1, -1):
        found = [min(own, max(limit, title)) for own, title in zip(widths, title_widths, strict=True)]
        if sum(found) <= available:
            break
    return found


def _wrapped(text: str, width: int) -> list[str]:
    return [text] if len(text) <= width else textwrap.wrap(text, width) or [text]


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip()


def _painted(text: str, column: Column[T], row: T) -> str:
    name = column.colour(row) if column.colour is not None else ""
    return paint(text, name) if name else text


def paint(text: str, colour: str) -> str:
    """Return the text in a colour of `COLOURS`."""
    return f"{COLOURS[colour]}{text}{RESET}" if colour else text


def bar(share: float, width: int = 10) -> str:
    """Return a bar for a share between 0 and 1."""
    filled = min(max(round(share * width), 0), width)
    return "█" * filled + "░" * (width - filled)


class ProgressLine:
    """The progress of a long run on stderr, if that is a terminal."""

    def __init__(self) -> None:
        self._enabled = sys.stderr.isatty()
        self._shown = ""

    def __call__(self, done: int, of: int, what: str) -> None:
        """Show the progress; `of` is 0 if the total is unknown."""
        if not self._enabled:
            return
        text = f"{bar(done / of, 30)} {done}/{of} {what}" if of else f"{done} {what}"
        if text != self._shown:
            self._shown = text
            sys.stderr.write(_CLEAR_LINE + text)
            sys.stderr.flush()

    def close(self) -> None:
        """Clear the line."""
        if self._shown:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
