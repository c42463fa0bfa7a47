"""Tables of rows with kubectl's flags: -A, -l, --field-selector, --no-headers, and its output formats."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

from dray.cli.jsonpath import JSONPathError, as_text, evaluate, values
from dray.cli.output import FORMATS, Column, document, render, to_plain
from dray.sim.explain.similar_names import did_you_mean
from dray.sim.snapshot import SnapshotError

T = TypeVar("T")

# Formats that take an argument after `=`.
_TEMPLATES: Final = ("jsonpath", "custom-columns")
ROW_FORMATS: Final = (*FORMATS, "name", "jsonpath=…", "custom-columns=…")
_NO_VALUE: Final = "<none>"


@dataclass(frozen=True, slots=True)
class RowSelection:
    """What the flags select of the rows."""

    labels: Any = None
    # (path, value, is equal)
    fields: tuple[tuple[str, str, bool], ...] = ()

    def selects(self, row: object, labels: Mapping[str, str]) -> bool:
        """Return whether a row is selected."""
        if self.labels is not None and not self.labels.matches(labels):
            return False
        plain = to_plain(row) if self.fields else None
        return all(
            (wanted in [as_text(value) for value in _field_values(path, plain)]) == is_equal
            for path, wanted, is_equal in self.fields
        )


def _field_values(path: str, plain: Any) -> list[Any]:
    """Return the values of a field, whose name may be that of an API object."""
    own = path.removeprefix("metadata.").removeprefix("status.")
    name = own.lstrip(".").partition(".")[0].partition("[")[0]
    if isinstance(plain, dict) and name not in plain:
        known = f"known are {', '.join(plain)}"
        raise SnapshotError(f'--field-selector: there is no field "{name}"{did_you_mean(name, plain)}; {known}')
    found = values(own, plain)
    return [item for one in found for item in (one if isinstance(one, list) else [one])]


@dataclass(frozen=True, slots=True)
class Table(Generic[T]):
    """Rows with their columns, and how kubectl would name them."""

    # Of the document for programs.
    kind: str
    rows: Sequence[T]
    columns: Sequence[Column[T]]
    name: Callable[[T], str]
    # Printed instead of an empty table.
    nothing: str = ""


def output_format(text: str) -> str:
    """Check `-o`; templates are read when they are used."""
    name = text.partition("=")[0]
    if text in (*FORMATS, "name"):
        return text
    if name in _TEMPLATES and "=" in text and text.partition("=")[2]:
        return text
    if name in _TEMPLATES:
        raise argparse.ArgumentTypeError(f"{name} needs a template, as in -o {name}={_EXAMPLES[name]}")
    known = (*FORMATS, "name", *_TEMPLATES)
    raise argparse.ArgumentTypeError(f'unknown format "{text}"{did_you_mean(text, known)}: choose {", ".join(known)}')


_EXAMPLES: Final = {"jsonpath": "'{.items[*].name}'", "custom-columns": "NAME:.name,STATE:.state"}


def add_row_flags(parser: argparse.ArgumentParser, *, labels: bool = False) -> None:
    """Add the flags that select rows and form the output."""
    parser.add_argument("--no-headers", action="store_true", help="print tables without their titles")
    parser.add_argument(
        "--field-selector",
        type=field_selector,
        default=(),
        metavar="FIELD=VALUE",
        help="only rows with these fields of -o json, as in state=free,node!=a",
    )
    if labels:
        parser.add_argument(
            "-l", "--selector", type=label_selector, default=None, metavar="LABELS", help="only with these labels"
        )


def label_selector(text: str) -> Any:
    """Parse the value of -l."""
    # Imported on use: few calls have one.
    from dray.api.selectors import LabelSelector, SelectorError

    try:
        return LabelSelector.parse(text)
    except SelectorError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def field_selector(text: str) -> tuple[tuple[str, str, bool], ...]:
    """Parse the value of --field-selector."""
    found = []
    for part in filter(None, text.split(",")):
        path, separator, wanted = part.partition("=")
        if not separator or not path.strip("!= "):
            raise argparse.ArgumentTypeError(f'"{part}" is not FIELD=VALUE or FIELD!=VALUE')
        found.append((path.rstrip("!").strip(), wanted.removeprefix("=").strip(), not path.endswith("!")))
    return tuple(found)


def selection(arguments: argparse.Namespace) -> RowSelection:
    """Return what the flags select."""
    return RowSelection(getattr(arguments, "selector", None), tuple(arguments.field_selector))


def render_table(table: Table[T], arguments: argparse.Namespace, *, colour: bool) -> str:
    """Render the table in the format of -o."""
    name, _, template = arguments.output.partition("=")
    if name == "name":
        return "".join(f"{table.name(row)}\n" for row in table.rows)
    if name == "jsonpath":
        return f"{evaluate(template, document(table.kind, table.rows))}\n"
    if name == "custom-columns":
        columns, plain = _custom_columns(template), [to_plain(row) for row in table.rows]
        return _headed(render(plain, columns), arguments)
    if not table.rows and name not in ("json", "yaml") and table.nothing:
        return table.nothing
    text = render(table.rows, table.columns, arguments.output, kind=table.kind, colour=colour)
    return _headed(text, arguments) if name in ("table", "wide", "csv") else text


def _custom_columns(template: str) -> list[Column[Any]]:
    found = []
    for part in template.split(","):
        title, separator, path = part.partition(":")
        if not separator or not title or not path:
            raise JSONPathError(f"custom-columns: {part!r} is not TITLE:PATH, as in NAME:.name")
        found.append(Column(title, partial(_cell, path)))
    return found


def _cell(path: str, row: Any) -> str:
    return ",".join(as_text(value) for value in values(path, row)) or _NO_VALUE


def _headed(text: str, arguments: argparse.Namespace) -> str:
    return text.partition("\n")[2] if arguments.no_headers else text
