"""Results that depend on a spec alone, computed once for all objects with that spec, such as the Pods of one template.

The key of a spec is its JSON text, which is written several times faster than the spec is traversed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

import orjson

from dray.api.document import Document

R = TypeVar("R")

# Templates in use at the same time, for each kind of result.
COUNT_MAX: Final = 1024
# Larger specs, as those of ResourceSlices, rarely occur twice.
TEXT_LENGTH_MAX: Final = 8192


def json_text(part: object) -> bytes | None:
    """Return the JSON text of a part of an object; None if it has a number that JSON text does not show as it is."""
    try:
        return orjson.dumps(part)
    except TypeError:
        return None


class SpecCache(Generic[R]):
    """A bounded cache of results by spec; they are shared and must not be modified."""

    def __init__(self, count_max: int = COUNT_MAX, text_length_max: int = TEXT_LENGTH_MAX) -> None:
        self._count_max = count_max
        self._text_length_max = text_length_max
        # Least recently used first. Finding the first entry of a plain dict is slow after many deletions.
        self._known: OrderedDict[tuple[Hashable, bytes], R] = OrderedDict()

    def get(self, purpose: Hashable, spec: Document, compute: Callable[[Document], R]) -> R:
        """Return what `compute` returns for the spec; it must depend on nothing but the spec and the purpose."""
        text = json_text(spec)
        if text is None:
            return compute(spec)
        key = (purpose, text)
        known = self._known
        if key in known:
            known.move_to_end(key)
            return known[key]
        result = compute(spec)
        if len(text) <= self._text_length_max:
            known[key] = result
            if len(known) > self._count_max:
                known.popitem(last=False)
        return result

    def __len__(self) -> int:
        return len(self._known)
