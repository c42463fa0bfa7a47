"""When two JSON values are the same, and which part of an old object a part of the new one replaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dray.api.document import Document
from dray.api.structural.types import LIST_TYPE, MAP_KEYS, MAP_TYPE

# There is no old value to compare with.
MISSING: Final = object()


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in type too: 1 is neither true nor 1.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def old_member(old: Any, name: str) -> Any:
    """The old value of a field or map entry."""
    return old.get(name, MISSING) if isinstance(old, dict) else MISSING


class OldItems:
    """Finds the old item that a list item replaces; only lists of type map say which one that is."""

    def __init__(self, schema: Document) -> None:
        keyed = schema.get(LIST_TYPE) == "map"
        self._keys: Final[Sequence[str]] = tuple(schema.get(MAP_KEYS) or ()) if keyed else ()

    def by_key(self, old: Any) -> Mapping[tuple[Any, ...], Any]:
        """The old items by their keys."""
        if not self._keys or not isinstance(old, list):
            return {}
        return {self._key(item): item for item in old if isinstance(item, dict)}

    def find(self, index: Mapping[tuple[Any, ...], Any], item: Any) -> Any:
        """The old item, or `MISSING`."""
        return index.get(self._key(item), MISSING) if index and isinstance(item, dict) else MISSING

    def _key(self, item: Document) -> tuple[Any, ...]:
        return tuple(str(item.get(name)) for name in self._keys)


def correlates_members(schema: Document) -> bool:
    """Whether fields of an old object belong to the same fields of the new one; an atomic map changes as a whole."""
    return bool(schema.get(MAP_TYPE) != "atomic")
