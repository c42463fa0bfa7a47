"""Numbers of raw values in the notation in which they came.

Kubernetes keeps a RawExtension as bytes: `1e3`, `1.10` and integers of more than 64 bits come back as they were
written. Here such a number is a float that knows its text. A stored value that has one ends with a space, which JSON
permits, so that all others are read as fast as ever. White space between tokens is not kept; Go removes it as well
when it writes JSON.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, Final

import orjson

from dray.api.document import Document
from dray.api.limits import INTEGER_DIGITS_MAX
from dray.api.parse import parse_json, without_surrogates
from dray.api.schema.model import ListOf, MapOf, Scalar, StructType, Type
from dray.lib.processor_time import tick

# A number with a fraction or an exponent, or one that 64 bits may not hold; or text that looks like one.
_UNUSUAL: Final = re.compile(rb"[:\[,\s]-?[0-9]+(?:[.eE]|(?<=[0-9]{19}))")
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
# The end of a stored value that has raw numbers, and of no other.
MARK: Final = b" "

# Field names; every element of a list or map has the step None.
_Path = tuple[str | None, ...]


class RawNumber(float):
    """A number whose text differs from what its value would be written as."""

    __slots__ = ("text",)

    text: str

    def __new__(cls, text: str) -> RawNumber:
        """Return the number that the text denotes."""
        made = super().__new__(cls, text)
        made.text = text
        return made


def _number(text: str) -> int | float:
    """Return a plain number if it is written as it came."""
    tick()
    if len(text) <= INTEGER_DIGITS_MAX:
        try:
            plain: int | float = orjson.loads(text)
        except orjson.JSONDecodeError:
            return RawNumber(text)
        if orjson.dumps(plain).decode() == text:
            return plain
    return RawNumber(text)


def _exact(body: bytes) -> Any:
    value = json.loads(body.decode("utf-8", errors="replace"), parse_float=_number, parse_int=_number)
    return without_surrogates(value) if _SURROGATE.search(body) else value


def fragment(value: object) -> orjson.Fragment:
    """Return the JSON text of a raw number; the `default` of orjson."""
    if isinstance(value, RawNumber):
        return orjson.Fragment(value.text)
    raise TypeError


def dump_stored(content: Document) -> bytes:
    """Encode a document, marked if it has raw numbers."""
    try:
        return orjson.dumps(content)
    except TypeError:
        return orjson.dumps(content, default=fragment) + MARK


def load_stored(value: bytes) -> Document:
    """Decode a stored value, with its raw numbers."""
    document: Document = _exact(value) if value.endswith(MARK) else orjson.loads(value)
    return document


def keep_raw_numbers(document: Document, body: bytes, struct: StructType) -> None:
    """Replace raw values of a decoded JSON body by ones with their numbers as they came, in place."""
    paths = _raw_paths(struct)
    if paths and _UNUSUAL.search(body):
        exact = _exact(body)
        for path in paths:
            _graft(document, exact, path)


def load_raw(raw: bytes) -> Any:
    """Decode a raw value alone, by the rules of a whole body; raises `ParseError`."""
    value, _ = parse_json(raw)
    return _exact(raw) if _UNUSUAL.search(b" " + raw) else value


def _graft(target: Any, source: Any, path: _Path) -> None:
    step, rest = path[0], path[1:]
    if step is None:
        if isinstance(target, list):
            pairs = list(zip(target, source, strict=False)) if isinstance(source, list) else []
        else:
            pairs = [(item, source.get(name)) for name, item in target.items()] if isinstance(target, dict) else []
        for inner, exact in pairs:
            _graft(inner, exact, rest)
    elif isinstance(target, dict) and isinstance(source, dict) and step in target and step in source:
        if rest:
            _graft(target[step], source[step], rest)
        else:
            target[step] = source[step]


@cache
def _raw_paths(struct: StructType) -> tuple[_Path, ...]:
    """Return where the raw values of a type are, besides its metadata."""
    found: list[_Path] = []

    def visit(kind: Type, path: _Path, above: tuple[str, ...]) -> None:
        if isinstance(kind, ListOf | MapOf):
            visit(kind.element, (*path, None), above)
        elif isinstance(kind, StructType) and kind.name not in above and not kind.name.endswith(".ObjectMeta"):
            for name, item in kind.fields.items():
                if item.type is Scalar.ANY and item.wire == "raw":
                    found.append((*path, name))
                else:
                    visit(item.type, (*path, name), (*above, kind.name))

    visit(struct, (), ())
    return tuple(found)
