"""Where in a value a rule's `fieldPath` points: names of fields and keys of maps, checked against the schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dray.api.document import Document

_STEP: Final = re.compile(r"\.(?P<name>[^.\[\]]+)|\['(?P<key>(?:\\.|[^'\\])*)'\]")


class RulePathError(ValueError):
    """A path that leads nowhere in the schema."""


def rule_path(schema: Document, text: str) -> str:
    """The path as field errors show it, relative to the value; empty when none is given."""
    shown = ""
    for name in _steps(text):
        properties = schema.get("properties")
        additional = schema.get("additionalProperties")
        if properties:
            if name not in properties:
                raise RulePathError("does not refer to a valid field")
            schema, shown = properties[name], f"{shown}.{name}"
        elif isinstance(additional, dict):
            schema, shown = additional, f"{shown}[{name}]"
        else:
            raise RulePathError("does not refer to a valid field")
    return shown.lstrip(".")


def _steps(text: str) -> Iterator[str]:
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise RulePathError(f"expected [ or . but got: {text[position:]}")
        yield match["name"] if match["name"] is not None else re.sub(r"\\(.)", r"\1", match["key"])
        position = match.end()
