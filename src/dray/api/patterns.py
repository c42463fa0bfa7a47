"""Matches of RE2: linear in the text, but up to five nanoseconds for each of its bytes and each step of the pattern."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any, Final

from dray.lib.processor_time import check, run_aside

# Bytes times steps, about 10 ms; more is searched in a thread, since RE2 releases the interpreter.
_INLINE_WORK_MAX: Final = 2_000_000
# A short match may have taken a look at the whole text.
_INLINE_MATCHES: Final = 16
_ASIDE_MATCHES: Final = 1024


def search(pattern: Any, text: str) -> Any:
    """Return the first match of a compiled pattern, or None."""
    if not _takes_long(pattern, text):
        return pattern.search(text)
    return run_aside(partial(pattern.search, text))


def find_all(pattern: Any, text: str) -> Iterator[str]:
    """Yield the texts of all matches."""
    matches, takes_long = pattern.finditer(text), _takes_long(pattern, text)
    following = partial(_texts, matches, _ASIDE_MATCHES if takes_long else _INLINE_MATCHES)
    while texts := run_aside(following) if takes_long else following():
        yield from texts
        check()


def _takes_long(pattern: Any, text: str) -> bool:
    return len(text) * int(pattern.programsize) > _INLINE_WORK_MAX


def _texts(matches: Iterator[Any], count: int) -> list[str]:
    return [match[0] for match in islice(matches, count)]
