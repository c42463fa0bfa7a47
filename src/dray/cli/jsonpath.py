"""kubectl's JSONPath templates, as in `-o jsonpath='{.items[*].name}'`.

Fields, indices, slices, wildcards, filters and ranges are evaluated; recursive descent and unions are errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

# Text outside of braces is copied; a brace cannot be part of an expression, except in quotes.
_BLOCK: Final = re.compile(r"\{((?:[^{}\"']|\"[^\"]*\"|'[^']*')*)\}")
_STEP: Final = re.compile(
    r"""
    \.(?P<field>\*|[A-Za-z_][\w-]*)
    | \[(?P<index>-?\d+)\]
    | \[(?P<start>-?\d*):(?P<stop>-?\d*)\]
    | \[(?P<all>\*)\]
    | \[(?P<quote>['"])(?P<key>[^'"]*)(?P=quote)\]
    | \[\?\(@(?P<path>[^=!]*?)\s*(?P<operator>==|!=)\s*(?P<value>[^)]*)\)\]
    """,
    re.VERBOSE,
)
_ESCAPES: Final = {r"\n": "\n", r"\t": "\t", r"\"": '"', r"\\": "\\"}


class JSONPathError(ValueError):
    """A template that cannot be read."""


def evaluate(template: str, document: Any) -> str:
    """Return the text of a template; the results of one expression are separated by spaces."""
    blocks = list(_blocks(template))
    text, rest = _run(blocks, 0, document, document)
    if rest < len(blocks):
        raise JSONPathError("{end} without {range}")
    return text


def values(path: str, document: Any) -> list[Any]:
    """Return what a path such as `.metadata.name` selects; nothing if it does not exist."""
    found = [document]
    for step in _steps(path):
        found = [item for one in found for item in _next(step, one)]
    return found


def as_text(value: Any) -> str:
    """Return a value as kubectl prints it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else json.dumps(value, separators=(",", ":"))


def _blocks(template: str) -> Iterator[tuple[bool, str]]:
    """Yield expressions and the texts between them, as (is expression, text)."""
    position = 0
    for match in _BLOCK.finditer(template):
        if match.start() > position:
            yield False, template[position : match.start()]
        yield True, match.group(1).strip()
        position = match.end()
    if position < len(template):
        if "{" in template[position:]:
            raise JSONPathError(f"unclosed brace in {template[position:]!r}")
        yield False, template[position:]


def _run(blocks: Sequence[tuple[bool, str]], position: int, root: Any, current: Any) -> tuple[str, int]:
    """Return the text up to the end of the template or of the range, and the position behind it."""
    parts: list[str] = []
    while position < len(blocks):
        is_expression, text = blocks[position]
        position += 1
        if not is_expression:
            parts.append(text)
        elif text == "end":
            return "".join(parts), position - 1
        elif text.startswith("range"):
            after = position
            for item in values(_absolute(text.removeprefix("range").strip()), _start(text, root, current)) or [None]:
                inner, after = _run(blocks, position, root, item)
                parts.append("" if item is None else inner)
            if after >= len(blocks):
                raise JSONPathError("{range} without {end}")
            position = after + 1
        elif text[:1] in ("'", '"'):
            parts.append(re.sub(r"\\.", lambda found: _ESCAPES.get(found.group(0), found.group(0)), text[1:-1]))
        else:
            parts.append(" ".join(as_text(item) for item in values(_absolute(text), _start(text, root, current))))
    return "".join(parts), position


def _start(text: str, root: Any, current: Any) -> Any:
    return root if "$" in text else current


def _absolute(text: str) -> str:
    return text.removeprefix("$").removeprefix("@")


def _steps(path: str) -> Iterator[re.Match[str]]:
    if path in ("", "."):
        return
    text = path if path[0] in ".[" else f".{path}"
    position = 0
    while position < len(text):
        step = _STEP.match(text, position)
        if step is None:
            raise JSONPathError(f"cannot read {text[position:]!r} in {path!r}")
        yield step
        position = step.end()


def _next(step: re.Match[str], value: Any) -> list[Any]:
    name = step["field"] if step["field"] != "*" else None
    key = name if name is not None else step["key"]
    if key is not None:
        return [value[key]] if isinstance(value, dict) and key in value else []
    items = list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, list) else []
    if step["index"] is not None:
        index = int(step["index"])
        return [items[index]] if -len(items) <= index < len(items) else []
    if step["start"] is not None:
        return items[int(step["start"] or 0) : int(step["stop"]) if step["stop"] else None]
    if step["path"] is not None:
        wanted = step["value"].strip().strip("'\"")
        is_equal = step["operator"] == "=="
        return [item for item in items if (wanted in map(as_text, values(step["path"], item))) == is_equal]
    return items
