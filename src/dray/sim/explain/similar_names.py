"""Finds the known name that a user probably meant. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

# Minimum similarity of a suggested name, and the number of names that are compared.
_SIMILARITY_MIN: Final = 0.65
_KNOWN_MAX: Final = 5_000
# Characters that are mistaken for each other.
_CONFUSED: Final = str.maketrans({"o": "0", "l": "1", "i": "1", "_": "-"})


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the most similar of the known names; empty if none is similar, or one is equal."""
    names = sorted(set(known))[:_KNOWN_MAX]
    if name in names:
        return ""
    by_shape: dict[str, str] = {}
    for item in names:
        by_shape.setdefault(_shape(item), item)
    shape = _shape(name)
    if shape in by_shape:
        return by_shape[shape]
    found = difflib.get_close_matches(shape, by_shape, n=1, cutoff=_SIMILARITY_MIN)
    return by_shape[found[0]] if found else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a suggestion to add to a message; empty if nothing is similar."""
    found = nearest(name, known)
    return f' (did you mean "{found}"?)' if found else ""


def listed(names: Iterable[str], few: int = 3) -> str:
    """Return the first names, and how many more there are."""
    known = list(names)
    more = f" and {len(known) - few} more" if len(known) > few else ""
    return ", ".join(known[:few]) + more


def _shape(name: str) -> str:
    return name.lower().translate(_CONFUSED)
