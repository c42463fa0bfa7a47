"""Reads objects that a write refers to: from the cache, or from the store if their events have not arrived yet."""

from __future__ import annotations

import orjson

from dray.api.document import Document, GroupResource, NamespacedName
from dray.apiserver.object_cache import NAMESPACES, PRIORITY_CLASSES, SERVICE_ACCOUNTS, ObjectCache
from dray.apiserver.reflector import resource_prefix
from dray.store.interface import Store


class ObjectLookup:
    """Finds objects that may have been created a moment ago. Results are shared and never changed."""

    def __init__(self, store: Store, cache: ObjectCache) -> None:
        self._store = store
        self._cache = cache

    async def namespace(self, name: str) -> Document | None:
        """Return a namespace."""
        return self._cache.namespaces.get(name) or await self._stored(NAMESPACES, name)

    async def service_account(self, key: NamespacedName) -> Document | None:
        """Return a service account."""
        return self._cache.service_accounts.get(key) or await self._stored(SERVICE_ACCOUNTS, str(key))

    async def priority_class(self, name: str) -> Document | None:
        """Return a priority class."""
        return self._cache.priority_classes.get(name) or await self._stored(PRIORITY_CLASSES, name)

    async def _stored(self, resource: GroupResource, path: str) -> Document | None:
        entry = await self._store.get(resource_prefix(resource) + path)
        if entry is None:
            return None
        document: Document = orjson.loads(entry.value)
        return document
