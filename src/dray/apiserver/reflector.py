"""Keeps the object cache current from the store: lists every cached resource once, then applies its events.

Slices come from the view with asynchronous commit, if the store has one: the scheduler of the process sees them there
and allocates their devices before they are committed.

An object that has not the form of its kind is left out: the cache keeps the state of it that had, if there was one.

A reflector that fell behind, or that the store does not answer, lists again; objects that vanished meanwhile leave
the cache. It retries for as long as it runs, and `out_of_sync` says what is stale until then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

import orjson

from dray.api.document import Document, GroupResource, NamespacedName
from dray.api.object_form import FormError, formed
from dray.api.schema.model import StructType
from dray.apiserver.document_cache import DocumentCache
from dray.apiserver.endpoint import KEY_ROOT
from dray.apiserver.object_cache import CACHED_RESOURCES, CLAIMS, NODES, PODS, SECRETS, SLICES, ObjectCache
from dray.client.codec import undecodable
from dray.client.interface import Undecodable
from dray.lib.processor_time import unmetered
from dray.runtime.suspendable import run_in_parts
from dray.runtime.tasks import TaskGroup
from dray.store.interface import (
    Entry,
    EventType,
    Page,
    RevisionCompactedError,
    Store,
    StoreUnavailableError,
    WatchOverflowError,
)

_LOG: Final = logging.getLogger("dray.apiserver.reflector")
# client-go's reflector: the first retry after 800 ms, the longest pause 30 s.
BACKOFF_SECONDS_MIN: Final = 0.8
BACKOFF_SECONDS_MAX: Final = 30.0
# Longer ones are brought into form in parts: others are served meanwhile.
_LONG_BYTES: Final = 64 * 1024
# Of these, with many writes, only a few fields are read.
_READ_IN_PART: Final = frozenset({PODS, NODES, SLICES, CLAIMS, SECRETS})

# Called with an object that is skipped from now on, or with None when it is not any more.
SkippedListener: TypeAlias = Callable[[GroupResource, NamespacedName, Undecodable | None], None]


def resource_prefix(resource: GroupResource) -> str:
    """Return the prefix of the resource's keys in the store."""
    return f"{KEY_ROOT}{resource.group or 'core'}/{resource.resource}/"


def _unchecked(_resource: GroupResource) -> None:
    return None


class StoreReflector:
    """Reflects the store in an `ObjectCache`; call `sync` once, then `run`."""

    def __init__(
        self,
        store: Store,
        cache: ObjectCache,
        documents: DocumentCache,
        struct_of: Callable[[GroupResource], StructType | None] = _unchecked,
    ) -> None:
        """`struct_of` returns, when it is needed, the type of a resource as it is stored; None if it is not checked."""
        # Set before `sync`.
        self.on_skipped: SkippedListener = lambda _resource, _key, _skipped: None
        newest = store.with_asynchronous_commit() or store
        self._resources: Final[Mapping[str, _ResourceReflector]] = {
            str(resource): _ResourceReflector(
                newest if resource == SLICES else store,
                cache,
                documents,
                resource,
                _unchecked if resource in _READ_IN_PART else struct_of,
                self._report,
            )
            for resource in CACHED_RESOURCES
        }

    def _report(self, resource: GroupResource, key: NamespacedName, skipped: Undecodable | None) -> None:
        self.on_skipped(resource, key, skipped)

    async def sync(self) -> None:
        """Fill the cache; a store that does not answer raises."""
        for reflector in self._resources.values():
            await reflector.list()

    async def refresh(self, resource: GroupResource) -> None:
        """Apply the newest state of a resource at once, without waiting for its events."""
        await self._resources[str(resource)].list()

    async def run(self) -> None:
        """Apply events until the store closes."""
        async with TaskGroup("store reflector") as group:
            for name, reflector in self._resources.items():
                group.spawn(reflector.run(), f"reflect {name}")
            await group.wait()

    def out_of_sync(self) -> str | None:
        """Return which resources are stale, and why; None if the cache follows the store."""
        stale = [
            f"{name}: {reflector.failure}"
            for name, reflector in self._resources.items()
            if reflector.failure is not None
        ]
        return "; ".join(stale) or None


class _ResourceReflector:
    """Reflects one resource."""

    def __init__(
        self,
        store: Store,
        cache: ObjectCache,
        documents: DocumentCache,
        resource: GroupResource,
        struct_of: Callable[[GroupResource], StructType | None],
        on_skipped: SkippedListener,
    ) -> None:
        self._struct_of = struct_of
        self._on_skipped = on_skipped
        self._store = store
        self._cache = cache
        self._documents = documents
        self._resource = resource
        self._prefix = resource_prefix(resource)
        self._keys: set[str] = set()
        # The keys of objects that are left out.
        self._skipped: set[str] = set()
        # Events after this revision are not in the cache yet; None before the first list and after a failure.
        self._revision: int | None = None
        # Why the cache is stale; None while it is not.
        self.failure: str | None = None

    async def list(self) -> None:
        """Bring the cache to the store's newest state."""
        page = await self._store.list_page(self._prefix)
        # A suspended request would apply it over what the watch has applied meanwhile.
        with unmetered():
            self._apply_page(page)

    def _apply_page(self, page: Page) -> None:
        for key in sorted(self._keys - {entry.key for entry in page.entries}):
            self._apply(key, _tombstone(key.removeprefix(self._prefix)), page.revision, deleted=True)
        for entry in page.entries:
            self._apply_entry(entry, *self._formed(entry, lambda entry: orjson.loads(entry.value)))
        self._revision = page.revision
        self._cache.progressed(self._resource, page.revision)

    async def run(self) -> None:
        """List if needed and watch, until the store closes; retry when the store does not answer."""
        backoff = BACKOFF_SECONDS_MIN
        while True:
            try:
                if self._revision is None:
                    await self.list()
                await self._watch()
            except (WatchOverflowError, RevisionCompactedError):
                self._revision = None
            except StoreUnavailableError as error:
                if self.failure is None:
                    backoff = BACKOFF_SECONDS_MIN
                    _LOG.warning("cannot reflect %s, retrying: %s", self._resource, error)
                self._revision, self.failure = None, str(error)
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, BACKOFF_SECONDS_MAX)
            else:
                return

    async def _watch(self) -> None:
        assert self._revision is not None
        async with await self._store.watch(self._prefix, after_revision=self._revision) as stream:
            self.failure = None
            async for batch in stream:
                for event in batch:
                    entry = event.entry
                    form = partial(self._formed, entry, self._documents.document)
                    is_long = event.type is not EventType.DELETE and len(entry.value) > _LONG_BYTES
                    document, problem = await run_in_parts(form) if is_long else (None, "")
                    if entry.revision <= self._revision:
                        # A refresh has applied it, or a newer state.
                        continue
                    if event.type is EventType.DELETE:
                        # The last value need not be one that can be read.
                        gone = _tombstone(entry.key.removeprefix(self._prefix))
                        self._apply(entry.key, gone, entry.revision, deleted=True)
                    else:
                        self._apply_entry(entry, *((document, problem) if is_long else form()))
                if batch:
                    self._cache.progressed(self._resource, batch[-1].revision)

    def _formed(self, entry: Entry, read: Callable[[Entry], Document]) -> tuple[Document | None, str]:
        """Return the object of an entry in the form of its kind, or what is known of it and why it has not the form."""
        document: Document | None = None
        try:
            document = read(entry)
            struct = self._struct_of(self._resource)
            return (document if struct is None else formed(document, struct)), ""
        except FormError as error:
            return document, str(error)
        except Exception as error:  # noqa: BLE001 - one malformed object must not hide all later ones
            return document, f"{type(error).__name__}: {error}"

    def _apply_entry(self, entry: Entry, document: Document | None, problem: str) -> None:
        if document is not None and not problem:
            try:
                self._apply(entry.key, document, entry.revision, deleted=False)
            except Exception as error:  # noqa: BLE001 - as above, in a field that was not checked
                problem = f"{type(error).__name__}: {error}"
        if problem:
            self._skip(entry, document, problem)
        elif entry.key in self._skipped:
            self._skipped.discard(entry.key)
            self._on_skipped(self._resource, _key(entry.key, self._prefix), None)

    def _skip(self, entry: Entry, document: object, problem: str) -> None:
        self._skipped.add(entry.key)
        known = undecodable(document, problem)
        key = _key(entry.key, self._prefix)
        skipped = Undecodable(key, known.uid, str(entry.revision), problem)
        self._on_skipped(self._resource, key, skipped)

    def _apply(self, key: str, document: Document, revision: int, *, deleted: bool) -> None:
        (self._keys.discard if deleted else self._keys.add)(key)
        self._cache.apply(self._resource, document, deleted=deleted, revision=revision)
        if deleted and key in self._skipped:
            self._skipped.discard(key)
            self._on_skipped(self._resource, _key(key, self._prefix), None)


def _tombstone(relative: str) -> Document:
    """Return what is known of a deleted object, and is needed of it: its key."""
    namespace, _, name = relative.rpartition("/")
    return {"metadata": {"namespace": namespace, "name": name}}


def _key(key: str, prefix: str) -> NamespacedName:
    namespace, _, name = key.removeprefix(prefix).rpartition("/")
    return NamespacedName(namespace, name)
