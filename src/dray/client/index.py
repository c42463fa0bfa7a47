"""A cache of objects with indexes: every index knows, at all times, exactly the objects cached."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from typing import Any, Final, Generic, TypeAlias, TypeVar

from dray.api.document import NamespacedName
from dray.client.objects import key_of, labels_of, owners_of

T = TypeVar("T")

# Maps an object to the values it is found under.
IndexFunction: TypeAlias = Callable[[Any], Iterable[Hashable]]

BY_NAMESPACE: Final = "namespace"
BY_OWNER_UID: Final = "owner-uid"


def namespace_values(obj: Any) -> tuple[str, ...]:
    """The object's namespace."""
    return (key_of(obj).namespace,)


def owner_uid_values(obj: Any) -> tuple[str, ...]:
    """The uids of the object's owners."""
    if isinstance(obj, dict):
        return tuple(owner.uid for owner in owners_of(obj))
    references = obj.metadata.owner_references
    return tuple([owner.uid or "" for owner in references]) if references else ()


def label_values(label: str) -> IndexFunction:
    """An index function over one label's value."""

    def values(obj: Any) -> tuple[str, ...]:
        value = labels_of(obj).get(label)
        return () if value is None else (value,)

    return values


class IndexedCache(Generic[T]):
    """Objects by key; changed only by the informer that owns it."""

    def __init__(self, indexes: Mapping[str, IndexFunction] | None = None) -> None:
        self._objects: dict[NamespacedName, T] = {}
        self._functions: dict[str, IndexFunction] = dict(indexes or {})
        # Index name -> value -> key -> object; inner maps are dicts to keep their order of insertion.
        self._indexes: dict[str, dict[Hashable, dict[NamespacedName, T]]] = {name: {} for name in self._functions}

    def add_index(self, name: str, function: IndexFunction) -> None:
        """Index by one more function; the same name again must mean the same function."""
        if name in self._functions:
            return
        self._functions[name] = function
        self._indexes[name] = {}
        for key, obj in self._objects.items():
            self._enter(name, key, obj)

    def put(self, key: NamespacedName, obj: T) -> T | None:
        """Set the object at the key; returns what was there."""
        old = self._objects.get(key)
        self._objects[key] = obj
        if old is None:
            for name in self._functions:
                self._enter(name, key, obj)
            return None
        for name, function in self._functions.items():
            before, after = tuple(function(old)), tuple(function(obj))
            if before != after:
                self._leave(name, key, before)
            for value in after:
                self._indexes[name].setdefault(value, {})[key] = obj
        return old

    def remove(self, key: NamespacedName) -> T | None:
        """Forget the key; returns what was there."""
        old = self._objects.pop(key, None)
        if old is not None:
            self._leave_all(key, old)
        return old

    def get(self, key: NamespacedName) -> T | None:
        """The object at the key."""
        return self._objects.get(key)

    def keys_outside(self, wanted: Container[NamespacedName]) -> tuple[NamespacedName, ...]:
        """The cached keys that are not among the wanted ones."""
        return tuple(key for key in self._objects if key not in wanted)

    def values(self) -> tuple[T, ...]:
        """All objects."""
        return tuple(self._objects.values())

    def by_index(self, name: str, value: Hashable) -> tuple[T, ...]:
        """The objects found under a value of an index."""
        return tuple(self._indexes[name].get(value, {}).values())

    def index_values(self, name: str) -> tuple[Hashable, ...]:
        """The values of an index that have objects."""
        return tuple(self._indexes[name])

    def __len__(self) -> int:
        return len(self._objects)

    def _enter(self, name: str, key: NamespacedName, obj: T) -> None:
        index = self._indexes[name]
        for value in self._functions[name](obj):
            index.setdefault(value, {})[key] = obj

    def _leave_all(self, key: NamespacedName, obj: T) -> None:
        for name, function in self._functions.items():
            self._leave(name, key, function(obj))

    def _leave(self, name: str, key: NamespacedName, values: Iterable[Hashable]) -> None:
        index = self._indexes[name]
        for value in values:
            bucket = index.get(value)
            if bucket is None:
                continue
            bucket.pop(key, None)
            if not bucket:
                del index[value]
