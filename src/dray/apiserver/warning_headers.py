"""The Warning headers of a response, within kube-apiserver's limits. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import orjson

# Of one response, in characters. If its texts are longer together, each of them is cut, and the last ones are left out.
TEXT_LENGTH_MAX: Final = 4096
CUT_LENGTH: Final = 256
_CONTROLS: Final = frozenset(map(chr, (*range(0x20), *range(0x7F, 0xA0))))


def warning_headers(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Return a header for each text, but not for equal and empty ones and those with control characters."""
    unique = [text for text in dict.fromkeys(texts) if text and _CONTROLS.isdisjoint(text)]
    if sum(map(len, unique)) > TEXT_LENGTH_MAX:
        unique = _cut(unique)
    return [("Warning", f"299 - {orjson.dumps(text).decode()}") for text in unique]


def _cut(texts: Iterable[str]) -> list[str]:
    found: list[str] = []
    length = 0
    for text in texts:
        if length >= TEXT_LENGTH_MAX:
            break
        found.append(text[:CUT_LENGTH])
        length += len(found[-1])
    return found
