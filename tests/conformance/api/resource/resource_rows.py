"""Rows of conformance tables: a document and its exact errors."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.field_errors import FieldError
from dray.api.validation.resource_expressions import Compilers, SelectorResult

LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
IDENTIFIER = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric "
    "characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is "
    "'[A-Za-z_][A-Za-z0-9_]*')"
)
LABEL_KEY = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    "(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


@dataclass(frozen=True)
class Row:
    """The behaviours of a row, its input, and the expected errors."""

    ids: tuple[str, ...]
    given: Any
    expected: tuple[str, ...] = ()


def row(ids: str, given: Any, *expected: str) -> Row:
    return Row(tuple(ids.split()), given, expected)


def params(rows: Mapping[str, Row]) -> list[Any]:
    """Return the rows as marked parameters."""
    return [
        pytest.param(item.given, list(item.expected), id=name, marks=pytest.mark.behaviour(*item.ids))
        for name, item in rows.items()
    ]


def texts(errors: list[FieldError]) -> list[str]:
    return [str(error) for error in errors]


def changed(document: Document, path: str, value: Any) -> Document:
    """Return a copy with one field set; `None` removes it. List positions are numbers in the dotted path."""
    result = copy.deepcopy(document)
    *parents, last = path.split(".")
    place: Any = result
    for step in parents:
        place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
    if isinstance(place, list):
        place[int(last)] = value
    elif value is None:
        place.pop(last, None)
    else:
        place[last] = value
    return result


def compiles(expression: str) -> SelectorResult:
    """A fake of the CEL compiler with one invalid and one costly expression."""
    if expression == "bad(":
        return SelectorResult(error="compilation failed: ERROR: <input>:1:5: Syntax error")
    return SelectorResult(cost=2_000_000 if expression == "costly" else 10)


COMPILERS = Compilers(compiles, compiles)
