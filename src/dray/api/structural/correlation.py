"""Correlation of old and new values for ratcheting: equality, and the old value that a new one replaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dray.api.document import Document
from dray.api.structural.types import LIST_TYPE, MAP_KEYS, MAP_TYPE
from dray.lib.processor_time import ticking

# Stands for an absent old value.
MISSING: Final = object()


def same(one: Any, other: Any) -> bool:
    """Report whether two values are equal, including their types: 1 equals neither true nor 1.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def old_member(old: Any, name: str) -> Any:
    """Return the old value of a field or map entry."""
    return old.get(name, MISSING) if isinstance(old, dict) else MISSING


class OldItems:
    """Correlates the items of a list with the old ones; possible only for lists of type map."""

    def __init__(self, schema: Document) -> None:
        keyed = schema.get(LIST_TYPE) == "map"
        self._keys: Final[Sequence[str]] = tuple(schema.get(MAP_KEYS) or ()) if keyed else ()

    def by_key(self, old: Any) -> Mapping[tuple[Any, ...], Any]:
        """Return the old items by their keys."""
        if not self._keys or not isinstance(old, list):
            return {}
        return {self._key(item): item for item in ticking(old) if isinstance(item, dict)}

    def find(self, index: Mapping[tuple[Any, ...], Any], item: Any) -> Any:
        """Return the old item, or `MISSING`."""
        return index.get(self._key(item), MISSING) if index and isinstance(item, dict) else MISSING

    def _key(self, item: Document) -> tuple[Any, ...]:
        return tuple(str(item.get(name)) for name in self._keys)


def correlates_members(schema: Document) -> bool:
    """Report whether fields of the old and new object correspond; an atomic map is replaced as a whole."""
    return bool(schema.get(MAP_TYPE) != "atomic")
