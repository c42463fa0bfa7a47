"""A read-only view of an informer's cache; its objects are shared and must not be changed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from dray.api.document import NamespacedName
from dray.client.index import BY_OWNER_UID, IndexedCache

T = TypeVar("T")


class Lister(Generic[T]):
    """What components read instead of asking the server."""

    def __init__(self, cache: IndexedCache[T]) -> None:
        self._cache = cache

    def get(self, name: str, namespace: str = "") -> T | None:
        """One object, or None when the cache has none."""
        return self._cache.get(NamespacedName(namespace, name))

    def get_key(self, key: NamespacedName) -> T | None:
        """One object by its key."""
        return self._cache.get(key)

    def list(self, namespace: str = "") -> tuple[T, ...]:
        """All objects, or those of one namespace."""
        return self._cache.in_namespace(namespace) if namespace else self._cache.values()

    def owned_by(self, uid: str) -> tuple[T, ...]:
        """The objects that name the uid as an owner; needs the owner index."""
        return self._cache.by_index(BY_OWNER_UID, uid)

    def by_index(self, name: str, value: Hashable) -> tuple[T, ...]:
        """The objects found under a value of an index."""
        return self._cache.by_index(name, value)

    def __len__(self) -> int:
        return len(self._cache)
