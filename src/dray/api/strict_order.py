"""Errors of strict decoding in the order and form in which Kubernetes reports them. Pure.

A Go struct is decoded in document order, and a repeated field that is also unknown is only unknown. YAML reports its
own errors and is converted to JSON with sorted keys. Maps, that is custom resources and patches, report all repeated
keys before anything else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from dray.lib.processor_time import tick

# Go's decoder stops collecting strict errors at this count.
STRICT_ERRORS_MAX: Final = 100
_YAML_HEADS: Final = ("yaml: unmarshal errors:\n", "error converting YAML to JSON: yaml: unmarshal errors:\n")
_LEVELS: Final = re.compile(r"\[(\d+)\]|([^.\[]+)")
_OPERATION_MEMBERS: Final = frozenset({"op", "path", "from", "value"})


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all its keys, repeated ones included."""


def duplicate_errors(body: bytes) -> list[str]:
    """Return `duplicate field "path"` for every repeated key of a JSON text, in document order."""
    repeated = dict.fromkeys(path for path, is_repeated in _keys(_load(body), "") if is_repeated)
    return [f'duplicate field "{path}"' for path in repeated][:STRICT_ERRORS_MAX]


def in_document_order(body: bytes, unknown: Sequence[str]) -> list[str]:
    """Return the errors of a Go struct: the given unknown fields and the repeated known ones, as they are written."""
    unknown_fields = {_path(text): text for text in unknown}
    errors: dict[str, None] = {}
    skipped = "\0"
    for path, is_repeated in _keys(_load(body), ""):
        if path.startswith(skipped) and path[len(skipped) : len(skipped) + 1] in (".", "["):
            continue
        if path in unknown_fields:
            # What is below an unknown field is not decoded.
            skipped = path
            errors[unknown_fields[path]] = None
        elif is_repeated:
            errors[f'duplicate field "{path}"'] = None
    return list(errors)[:STRICT_ERRORS_MAX]


def json_patch_errors(body: bytes) -> list[str]:
    """Return the errors of the operations of a JSON patch: unknown and repeated members."""
    operations = _load(body)
    errors: dict[str, None] = {}
    for index, operation in enumerate(operations or ()):
        if operation is None:
            continue
        known = _Pairs(pair for pair in operation if pair[0] in _OPERATION_MEMBERS)
        members = {key: f'json patch unknown field "[{index}].{key}"' for key, _ in operation}
        repeated = [path for path, is_repeated in _keys(known, f"[{index}]") if is_repeated]
        errors |= dict.fromkeys(text for key, text in members.items() if key not in _OPERATION_MEMBERS)
        errors |= dict.fromkeys(f'json patch duplicate field "{path}"' for path in repeated)
    return list(errors)[:STRICT_ERRORS_MAX]


def by_levels(unknown: Iterable[str]) -> list[str]:
    """Return errors of unknown fields in the order of a document whose keys are sorted on every level."""
    return sorted(unknown, key=lambda text: [(match[2] or "", int(match[1] or 0)) for match in _levels(_path(text))])


def as_warnings(errors: Iterable[str]) -> list[str]:
    """Return the texts of Warning headers: every line of YAML's errors is one."""
    warnings: list[str] = []
    for error in errors:
        head = next((each for each in _YAML_HEADS if error.startswith(each)), None)
        warnings += [error] if head is None else [line.strip() for line in error[len(head) :].split("\n")]
    return warnings


def _levels(path: str) -> Iterator[re.Match[str]]:
    return _LEVELS.finditer(path)


def _path(text: str) -> str:
    return text[text.index('"') + 1 : -1]


def _load(body: bytes) -> Any:
    # Numbers do not matter, and may be too large to convert.
    return json.loads(body, object_pairs_hook=_Pairs, parse_int=str, parse_float=str)


def _keys(value: Any, path: str) -> Iterator[tuple[str, bool]]:
    """Yield the path of every key in document order, with whether its object has had it before."""
    if isinstance(value, _Pairs):
        seen: set[str] = set()
        for key, child in value:
            tick()
            at = f"{path}.{key}" if path else key
            yield at, key in seen
            seen.add(key)
            yield from _keys(child, at)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            tick()
            yield from _keys(child, f"{path}[{index}]")
