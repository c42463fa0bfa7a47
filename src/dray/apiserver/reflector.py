"""Keeps the world current: lists the followed resources once, then applies every event of the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

import orjson

from dray.api.document import Document, GroupResource
from dray.apiserver.document_cache import DocumentCache
from dray.apiserver.endpoint import KEY_ROOT
from dray.apiserver.object_cache import FOLLOWED, ObjectCache
from dray.store.interface import EventType, RevisionCompactedError, Store, WatchOverflowError

_LOG: Final = logging.getLogger("dray.apiserver.follower")


def prefix_of(resource: GroupResource) -> str:
    """Where the store keeps the resource."""
    return f"{KEY_ROOT}{resource.group or 'core'}/{resource.resource}/"


class StoreReflector:
    """Feeds a World from the store; `start` returns when the world is complete."""

    def __init__(self, store: Store, cache: ObjectCache, documents: DocumentCache) -> None:
        self._store = store
        self._cache = cache
        self._documents = documents
        self._known: dict[str, set[str]] = {}
        self._resources: Final[Mapping[str, GroupResource]] = {prefix_of(item): item for item in FOLLOWED}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Read everything once, then follow in the background."""
        for prefix in self._resources:
            revision = await self._relist(prefix)
            self._tasks.append(asyncio.create_task(self._follow(prefix, revision), name=f"follow {prefix}"))

    async def stop(self) -> None:
        """End following."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _relist(self, prefix: str) -> int:
        page = await self._store.list_page(prefix)
        gone = self._known.get(prefix, set()) - {entry.key for entry in page.entries}
        for key in sorted(gone):
            self._take_in(prefix, key, _stand_in(key.removeprefix(prefix)), deleted=True)
        for entry in page.entries:
            self._take_in(prefix, entry.key, orjson.loads(entry.value), deleted=False)
        return page.revision

    async def _follow(self, prefix: str, revision: int) -> None:
        while True:
            try:
                stream = await self._store.watch(prefix, after_revision=revision)
                try:
                    async for batch in stream:
                        for event in batch:
                            document = self._documents.document(event.entry)
                            self._take_in(prefix, event.entry.key, document, deleted=event.type is EventType.DELETE)
                finally:
                    await stream.aclose()
            except (WatchOverflowError, RevisionCompactedError):
                # Fell behind; start over from a fresh list.
                revision = await self._relist(prefix)
            else:
                # The store is closing.
                return

    def _take_in(self, prefix: str, key: str, document: Document, *, deleted: bool) -> None:
        known = self._known.setdefault(prefix, set())
        (known.discard if deleted else known.add)(key)
        try:
            self._cache.apply(self._resources[prefix], document, deleted=deleted)
        except Exception:  # noqa: BLE001 - one odd object must not blind the server to all later ones
            _LOG.exception("cannot take in %s", key)


def _stand_in(relative: str) -> Document:
    """What is left to say of an object that went unseen: its place."""
    namespace, _, name = relative.rpartition("/")
    return {"metadata": {"namespace": namespace, "name": name}}
