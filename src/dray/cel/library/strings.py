"""The string extension, version 2."""

from __future__ import annotations

from typing import Any, Final

from dray.cel.library.formatting import format_string
from dray.cel.runtime import fail, traversal
from dray.cel.signatures import Registry
from dray.cel.values import Budget

REGISTRY: Final = Registry()
_declare = REGISTRY.declare

_ASCII_LOWER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_ASCII_UPPER: Final = {lower: lower - 32 for lower in range(ord("a"), ord("z") + 1)}
# The characters that Go's strings.TrimSpace removes: those with Unicode's White_Space property.
_SPACES: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


def _char_at(text: str, position: int) -> str:
    if not 0 <= position <= len(text):
        fail(f"index out of range: {position}")
    return text[position : position + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if not part:
        return start
    if start < 0:
        fail(f"index out of range: {start}")
    return text.find(part, start)


def _last_index_of(text: str, part: str, end: int | None = None) -> int:
    if end is None:
        return text.rfind(part)
    if not part:
        return end
    if end < 0:
        fail(f"index out of range: {end}")
    return -1 if end >= len(text) else text.rfind(part, 0, end + len(part))


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    return text.replace(old, new, count)


def _replace_cost(text: str, old: str, new: str, count: int = -1) -> int:
    """Return the cost of reading the text and of the result, whose size is known in advance."""
    found = text.count(old) if count < 0 else min(count, text.count(old))
    return traversal(len(text), 0.2) + traversal(max(0, found * (len(new) - len(old))))


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    if limit == 1:
        return [text]
    pieces = -1 if limit < 0 else limit - 1
    if separator:
        return text.split(separator, pieces)
    return list(text) if pieces < 0 or len(text) <= limit else [*text[:pieces], text[pieces:]]


def _substring(text: str, start: int, end: int | None = None) -> str:
    if end is None:
        if not 0 <= start <= len(text):
            fail(f"index out of range: {start}")
        return text[start:]
    if start > end:
        fail(f"invalid substring range. start: {start}, end: {end}")
    if not 0 <= start <= len(text) or end > len(text):
        fail(f"index out of range: {start if not 0 <= start <= len(text) else end}")
    return text[start:end]


def _join(budget: Budget, values: list[Any], separator: str = "") -> str:
    total = len(separator) * max(0, len(values) - 1)
    for value in values:
        if not isinstance(value, str):
            fail()
        total += len(value)
    budget.spend(traversal(total, 0.2))
    return separator.join(values)


_QUOTED: Final = str.maketrans(
    {
        "\a": "\\a",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\v": "\\v",
        "\\": "\\\\",
        '"': '\\"',
    }
)


def _quote(text: str) -> str:
    return f'"{text.translate(_QUOTED)}"'


def _walk(text: str, *_: Any) -> int:
    return traversal(len(text))


def _walk_bytes(text: str, *_: Any) -> int:
    # Kubernetes charges by bytes here.
    return traversal(len(text), 0.1 if text.isascii() else 0.4)


def _walk_and_build(text: str, *_: Any) -> int:
    return traversal(len(text), 0.2)


_declare("string::charAt(int) -> string", _char_at)
_declare("string::indexOf(string) -> int", _index_of, charge=_walk_bytes)
_declare("string::indexOf(string, int) -> int", _index_of, charge=_walk_bytes)
_declare("string::lastIndexOf(string) -> int", _last_index_of, charge=_walk_bytes)
_declare("string::lastIndexOf(string, int) -> int", _last_index_of, charge=_walk_bytes)
_declare("string::lowerAscii() -> string", lambda text: text.translate(_ASCII_LOWER), charge=_walk)
_declare("string::upperAscii() -> string", lambda text: text.translate(_ASCII_UPPER), charge=_walk)
_declare("string::replace(string, string) -> string", _replace, charge=_replace_cost)
_declare("string::replace(string, string, int) -> string", _replace, charge=_replace_cost)
_declare("string::split(string) -> list(string)", _split, charge=_walk_and_build)
_declare("string::split(string, int) -> list(string)", _split, charge=_walk_and_build)
_declare("string::substring(int) -> string", _substring, charge=_walk)
_declare("string::substring(int, int) -> string", _substring, charge=_walk)
_declare("string::trim() -> string", lambda text: text.strip(_SPACES), charge=_walk)
_declare("list(string)::join() -> string", _join, budgeted=True)
_declare("list(string)::join(string) -> string", _join, budgeted=True)
_declare("string::format(list(dyn)) -> string", format_string, budgeted=True)
_declare("strings.quote(string) -> string", _quote, charge=lambda text: traversal(len(text), 0.2))
