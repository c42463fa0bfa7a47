"""A cache of objects with indexes: every index knows, at all times, exactly the objects cached.

Objects are held by namespace and then by name: a pair of the two for every object would take as much memory as the
name itself, and those of one namespace are found without an index.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, Generic, TypeAlias, TypeVar

from dray.api.document import NamespacedName
from dray.client.objects import labels_of

T = TypeVar("T")

# Maps an object to the values it is found under.
IndexFunction: TypeAlias = Callable[[Any], Iterable[Hashable]]

BY_OWNER_UID: Final = "owner-uid"


def owner_uid_values(obj: Any) -> tuple[str, ...]:
    """The uids of the object's owners."""
    if isinstance(obj, dict):
        documents = (obj.get("metadata") or {}).get("ownerReferences")
        return tuple([owner.get("uid") or "" for owner in documents]) if documents else ()
    references = obj.metadata.owner_references
    return tuple([owner.uid or "" for owner in references]) if references else ()


def label_values(label: str) -> IndexFunction:
    """An index function over one label's value."""

    def values(obj: Any) -> tuple[str, ...]:
        value = labels_of(obj).get(label)
        return () if value is None else (value,)

    return values


class _Index(Generic[T]):
    """The objects by what a function says of them."""

    def __init__(self, function: IndexFunction) -> None:
        self._function = function
        # Value -> key -> object; inner maps are dicts to keep their order of insertion.
        self.buckets: dict[Hashable, dict[NamespacedName, T]] = {}
        # The values each object is found under; those found under none are left out.
        self._values: dict[NamespacedName, tuple[Hashable, ...]] = {}

    def put(self, key: NamespacedName, obj: T) -> None:
        """A new object, or the next state of one."""
        before, after = self._values.get(key, ()), tuple(self._function(obj))
        if before != after:
            self.remove(key)
            if after:
                self._values[key] = after
        for value in after:
            self.buckets.setdefault(value, {})[key] = obj

    def remove(self, key: NamespacedName) -> None:
        """The object is gone."""
        for value in self._values.pop(key, ()):
            bucket = self.buckets.get(value)
            if bucket is None:
                continue
            bucket.pop(key, None)
            if not bucket:
                del self.buckets[value]


class IndexedCache(Generic[T]):
    """Objects by key; changed only by the informer that owns it."""

    def __init__(self, indexes: Mapping[str, IndexFunction] | None = None) -> None:
        # Namespace -> name -> object; no namespace is empty.
        self._objects: dict[str, dict[str, T]] = {}
        self._indexes: dict[str, _Index[T]] = {name: _Index(function) for name, function in (indexes or {}).items()}

    def add_index(self, name: str, function: IndexFunction) -> None:
        """Index by one more function; the same name again must mean the same function."""
        if name in self._indexes:
            return
        index = self._indexes[name] = _Index(function)
        for key, obj in self.items():
            index.put(key, obj)

    def put(self, key: NamespacedName, obj: T) -> T | None:
        """Set the object at the key; returns what was there."""
        namespace, name = key
        objects = self._objects.get(namespace)
        if objects is None:
            objects = self._objects[namespace] = {}
        old = objects.get(name)
        objects[name] = obj
        for index in self._indexes.values():
            index.put(key, obj)
        return old

    def remove(self, key: NamespacedName) -> T | None:
        """Forget the key; returns what was there."""
        namespace, name = key
        objects = self._objects.get(namespace)
        old = objects.pop(name, None) if objects is not None else None
        if old is not None:
            if not objects:
                del self._objects[namespace]
            for index in self._indexes.values():
                index.remove(key)
        return old

    def get(self, key: NamespacedName) -> T | None:
        """The object at the key."""
        namespace, name = key
        objects = self._objects.get(namespace)
        return objects.get(name) if objects is not None else None

    def items(self) -> Iterator[tuple[NamespacedName, T]]:
        """All objects with their keys; not to be changed meanwhile."""
        for namespace, objects in self._objects.items():
            for name, obj in objects.items():
                yield NamespacedName(namespace, name), obj

    def keys_outside(self, wanted: IndexedCache[T]) -> tuple[NamespacedName, ...]:
        """The cached keys that are not among those of another cache."""
        return tuple(key for key, _ in self.items() if wanted.get(key) is None)

    def values(self) -> tuple[T, ...]:
        """All objects, one namespace after the other."""
        return tuple(chain.from_iterable([objects.values() for objects in self._objects.values()]))

    def in_namespace(self, namespace: str) -> tuple[T, ...]:
        """The objects of a namespace."""
        objects = self._objects.get(namespace)
        return tuple(objects.values()) if objects is not None else ()

    def by_index(self, name: str, value: Hashable) -> tuple[T, ...]:
        """The objects found under a value of an index."""
        return tuple(self._indexes[name].buckets.get(value, {}).values())

    def index_values(self, name: str) -> tuple[Hashable, ...]:
        """The values of an index that have objects."""
        return tuple(self._indexes[name].buckets)

    def __len__(self) -> int:
        return sum(map(len, self._objects.values()))
