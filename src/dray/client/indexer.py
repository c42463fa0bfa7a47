"""An indexed cache of objects, and the lister that reads it. Every index always covers exactly the cached objects.

Objects are held by namespace and then by name: a pair of the two for every object would take as much memory as the
name itself, and those of one namespace are found without an index.

Indexes hold the keys of objects: the next version of an object, which mostly has the same values, changes no index.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Generic, TypeAlias, TypeVar

from dray.api.document import NamespacedName
from dray.client.objects import key_of

T = TypeVar("T")

# Maps an object to its index values.
IndexFunction: TypeAlias = Callable[[Any], Iterable[Hashable]]

BY_OWNER_UID: Final = "owner-uid"


@dataclass(frozen=True, slots=True)
class ImmutableFields:
    """An index function of fields that never change while an object exists: it is called once for each object."""

    function: IndexFunction

    def __call__(self, obj: Any) -> Iterable[Hashable]:
        """Return the index values of an object."""
        return self.function(obj)


class _Index:
    """The keys of objects by the values of one index function."""

    def __init__(self, function: IndexFunction) -> None:
        self.function: Final[IndexFunction] = function.function if isinstance(function, ImmutableFields) else function
        self.is_immutable: Final = isinstance(function, ImmutableFields)
        # Value -> keys, as a dict to keep their order of insertion.
        self.buckets: Final[dict[Hashable, dict[NamespacedName, None]]] = {}
        # The values of each object; objects without any are left out.
        self.values: Final[dict[NamespacedName, tuple[Hashable, ...]]] = {}

    def put(self, key: NamespacedName, values: tuple[Hashable, ...]) -> None:
        """Set the values of an object."""
        if key in self.values:
            self.remove(key)
        if values:
            self.values[key] = values
        for value in values:
            self.buckets.setdefault(value, {})[key] = None

    def put_all(self, objects: Iterable[tuple[NamespacedName, Any]]) -> None:
        """Add objects."""
        for key, obj in objects:
            self.put(key, tuple(self.function(obj)))

    def remove(self, key: NamespacedName) -> None:
        """Remove an object."""
        for value in self.values.pop(key, ()):
            bucket = self.buckets.get(value)
            if bucket is None:
                continue
            bucket.pop(key, None)
            if not bucket:
                del self.buckets[value]


class Lister(Generic[T]):
    """The read-only side of an informer's cache. Its objects are shared and must not be changed."""

    def __init__(self) -> None:
        # Namespace -> name -> object; no namespace is empty.
        self._objects: Final[dict[str, dict[str, T]]] = {}
        self._indexes: dict[str, _Index] = {}

    def get(self, name: str, namespace: str = "") -> T | None:
        """Return an object, or None."""
        objects = self._objects.get(namespace)
        return objects.get(name) if objects is not None else None

    def get_key(self, key: NamespacedName) -> T | None:
        """Return an object by its key, or None."""
        namespace, name = key
        objects = self._objects.get(namespace)
        return objects.get(name) if objects is not None else None

    def list(self, namespace: str = "") -> tuple[T, ...]:
        """Return all objects, grouped by namespace, or those of one namespace."""
        if not namespace:
            return tuple(chain.from_iterable([objects.values() for objects in self._objects.values()]))
        objects = self._objects.get(namespace)
        return tuple(objects.values()) if objects is not None else ()

    def owned_by(self, uid: str) -> tuple[T, ...]:
        """Return the objects with the uid among their owners; requires the index `BY_OWNER_UID`."""
        return self.by_index(BY_OWNER_UID, uid)

    def by_index(self, name: str, value: Hashable) -> tuple[T, ...]:
        """Return the objects with a value of an index."""
        keys = self._indexes[name].buckets.get(value)
        if keys is None:
            return ()
        objects = self._objects
        return tuple([objects[namespace][object_name] for namespace, object_name in keys])

    @property
    def namespaces(self) -> Collection[str]:
        """The namespaces that have objects, as a collection that follows the cache."""
        return self._objects

    def index_values(self, name: str) -> Collection[Hashable]:
        """Return the values of an index that have objects, as a collection that follows the cache."""
        return self._indexes[name].buckets

    def __len__(self) -> int:
        return sum(map(len, self._objects.values()))

    def __bool__(self) -> bool:
        # Asked for every event by some controllers; the number of objects takes a step for each namespace.
        return bool(self._objects)


class Indexer(Lister[T]):
    """Objects by key; changed only by the informer that owns it."""

    def __init__(self, indexes: Mapping[str, IndexFunction] | None = None) -> None:
        super().__init__()
        # The indexes whose values an update may change.
        self._mutable_indexes: list[_Index] = []
        for name, function in (indexes or {}).items():
            self.add_index(name, function)

    def add_index(self, name: str, function: IndexFunction) -> None:
        """Add an index; an existing name must stand for the same function."""
        if name in self._indexes:
            return
        index = self._indexes[name] = _Index(function)
        if not index.is_immutable:
            self._mutable_indexes.append(index)
        index.put_all(self.items())

    def put(self, key: NamespacedName, obj: T) -> T | None:
        """Set the object at the key; return the previous one, which must be an earlier version of the same object."""
        old = self.get_key(key)
        if old is None:
            self.add(key, obj)
        else:
            self.update(key, obj)
        return old

    def add(self, key: NamespacedName, obj: T) -> None:
        """Add an object at a key that has none."""
        namespace, name = key
        objects = self._objects.get(namespace)
        if objects is None:
            objects = self._objects[namespace] = {}
        objects[name] = obj
        for index in self._indexes.values():
            values = tuple(index.function(obj))
            # Most objects have no values of most indexes.
            if values:
                index.put(key, values)

    def update(self, key: NamespacedName, obj: T) -> None:
        """Replace an object by a later version of it."""
        namespace, name = key
        self._objects[namespace][name] = obj
        for index in self._mutable_indexes:
            values = tuple(index.function(obj))
            # Most updates change no values.
            if values != index.values.get(key, ()):
                index.put(key, values)

    def put_all(self, objects: Iterable[T]) -> None:
        """Set all of the objects at their keys: as `put`, without a pair for every key of a long list."""
        if self._indexes:
            for obj in objects:
                self.put(key_of(obj), obj)
            return
        known, tables = "", self._objects
        names = tables.get(known)
        for obj in objects:
            namespace, name = key_of(obj)
            if names is None or namespace != known:
                known, names = namespace, tables.setdefault(namespace, {})
            names[name] = obj

    def take_all(self, other: Indexer[T]) -> None:
        """Take the objects of another cache, which is not used any more; this one must be empty."""
        assert not self._objects, "only an empty cache can take all of another"
        self._objects.update(other._objects)
        for index in self._indexes.values():
            index.put_all(self.items())

    def remove(self, key: NamespacedName) -> T | None:
        """Remove the key; return its object."""
        namespace, name = key
        objects = self._objects.get(namespace)
        old = objects.pop(name, None) if objects is not None else None
        if old is not None:
            if not objects:
                del self._objects[namespace]
            for index in self._indexes.values():
                if key in index.values:
                    index.remove(key)
        return old

    def items(self) -> Iterator[tuple[NamespacedName, T]]:
        """Yield all objects with their keys; the cache must not change meanwhile."""
        for namespace, objects in self._objects.items():
            for name, obj in objects.items():
                yield NamespacedName(namespace, name), obj

    def keys_outside(self, wanted: Indexer[T]) -> tuple[NamespacedName, ...]:
        """Return the cached keys that another cache lacks."""
        return tuple(key for key, _ in self.items() if wanted.get_key(key) is None)
