"""Reads objects that a write refers to: from the cache, or from the store if their events have not arrived yet."""

from __future__ import annotations

import orjson

from dray.api.document import Document, GroupResource, NamespacedName
from dray.apiserver.malformed import each_shown, load_object
from dray.apiserver.object_cache import (
    NAMESPACES,
    NODES,
    PRIORITY_CLASSES,
    RUNTIME_CLASSES,
    SERVICE_ACCOUNTS,
    TOPOLOGY_LABELS,
    ObjectCache,
)
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

    async def runtime_class(self, name: str) -> Document | None:
        """Return a runtime class."""
        return self._cache.runtime_classes.get(name) or await self._stored(RUNTIME_CLASSES, name)

    async def node_topology(self, name: str) -> dict[str, str]:
        """Return the topology labels of a node; empty if it has none or does not exist."""
        if self._cache.nodes.node_uid(name) is not None:
            return self._cache.node_topology.get(name, {})
        node = await self._stored(NODES, name) or {}
        labels = (node.get("metadata") or {}).get("labels") or {}
        return {label: labels[label] for label in TOPOLOGY_LABELS if label in labels}

    async def node(self, name: str) -> Document | None:
        """Return a node, from the store."""
        return await self._stored(NODES, name)

    async def nodes(self) -> list[Document]:
        """Return all nodes, from the store."""
        page = await self._store.list_page(resource_prefix(NODES))
        return each_shown(load_object, page.entries)

    async def _stored(self, resource: GroupResource, path: str) -> Document | None:
        entry = await self._store.get(resource_prefix(resource) + path)
        if entry is None:
            return None
        document: Document = orjson.loads(entry.value)
        return document
