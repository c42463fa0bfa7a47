"""Table columns that a definition specifies by JSON paths."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from dray.api.document import Document
from dray.api.structural.paths import Finder, PathSyntaxError, compile_path
from dray.api.timestamps import TimeFormatError, parse_time
from dray.apiserver.registry.columns import AGE, NAME, human_duration
from dray.apiserver.registry.strategy import Column
from dray.lib.processor_time import ticking

_DEFAULT: Final = (NAME, Column("Age", "date", AGE.description, AGE.cell))


def printer_columns(described: Sequence[Document]) -> tuple[Column, ...]:
    """Return the name and the specified columns; the age only when none are specified."""
    if not described:
        return _DEFAULT
    return (NAME, *(_column(item) for item in described))


def _column(item: Document) -> Column:
    path = item.get("jsonPath") or ""
    return Column(
        item["name"],
        item["type"],
        item.get("description") or f"Custom resource definition column (in JSONPath format): {path}",
        _cell(item["type"], _finder(path)),
        item.get("format") or "",
        item.get("priority") or 0,
    )


def _finder(path: str) -> Finder:
    try:
        return compile_path(path)
    except PathSyntaxError:
        # An unsupported path: the column stays empty, the others are shown.
        return lambda _value: []


def _cell(kind: str, find: Finder) -> Callable[[Document, datetime], Any]:
    make = _CELLS[kind]

    def cell(document: Document, now: datetime) -> Any:
        found = find(document)
        return make(found, now) if found else None

    return cell


def _integer(found: list[Any], _now: datetime) -> Any:
    value = found[0]
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _number(found: list[Any], _now: datetime) -> Any:
    value = found[0]
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _boolean(found: list[Any], _now: datetime) -> Any:
    return found[0] if isinstance(found[0], bool) else None


def _string(found: list[Any], _now: datetime) -> Any:
    if found[0] is None:
        return None
    return " ".join(
        item if isinstance(item, str) else json.dumps(item, separators=(",", ":")) for item in ticking(found)
    )


def _date(found: list[Any], now: datetime) -> Any:
    if not isinstance(found[0], str):
        return "<invalid>" if found[0] is not None else None
    try:
        return human_duration(now - parse_time(found[0]))
    except TimeFormatError:
        return "<invalid>"


_CELLS: Final[dict[str, Callable[[list[Any], datetime], Any]]] = {
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "string": _string,
    "date": _date,
}
