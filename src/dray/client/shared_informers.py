"""Runs informers against a client, shared between the components of a process."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, Generic, TypeAlias, TypeVar

from dray.api.errors import APIError
from dray.client.indexer import IndexFunction, Lister
from dray.client.informer import Action, DoList, DoWatch, Handler, Informer, Selection
from dray.client.interface import Bookmark, Client, Resource, WatchEvent
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.tasks import TaskGroup

_log = logging.getLogger(__name__)

T = TypeVar("T")

EVERYTHING: Final = Selection()

_Key: TypeAlias = tuple[Resource[Any], Selection]

# Transforms an object before it is cached, to store only the fields that a controller needs of many objects.
# The result must still have its metadata's namespace, name, uid and resource version.
Transform: TypeAlias = Callable[[Any], T]


class SharedInformer(Generic[T]):
    """Runs one informer against a client."""

    def __init__(
        self,
        client: Client,
        resource: Resource[Any],
        informer: Informer[T],
        clock: Clock,
        namespace: str = "",
        transform: Transform[T] | None = None,
    ) -> None:
        self.resource = resource
        self._transform = transform
        self._client = client
        self._informer = informer
        self.lister: Lister[T] = informer.lister
        self._clock = clock
        self._namespace = namespace
        self._synced = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Whether the first list is in."""
        return self._informer.synced

    def add_handler(self, handler: Handler[T]) -> None:
        """Call the handler on every change, beginning with the cached objects as additions."""
        self._informer.add_handler(handler)

    def add_index(self, name: str, function: IndexFunction) -> None:
        """Index the cache by one more function."""
        self._informer.add_index(name, function)

    async def wait_for_sync(self) -> None:
        """Return when the first list is in."""
        await self._synced.wait()

    async def run(self) -> None:
        """List and watch until cancelled."""
        action = self._informer.start()
        while True:
            if action.delay_seconds > 0:
                await self._clock.sleep(action.delay_seconds)
            action = await (self._list(action) if isinstance(action, DoList) else self._watch(action))

    async def resync_every(self, seconds: float) -> None:
        """Call the handlers for every cached object periodically until cancelled."""
        while True:
            await self._clock.sleep(seconds)
            self._informer.resync()

    async def _list(self, action: DoList) -> Action:
        try:
            page = await self._client.list(self.resource, self._namespace, action.options)
        except APIError as error:
            self._log_failure("list failed", error)
            return self._informer.list_failed(error)
        if self._transform is not None:
            page = replace(page, items=[self._transform(item) for item in page.items])
        following = self._informer.page_received(page)
        self._update_synced()
        return following

    async def _watch(self, action: DoWatch) -> Action:
        self._informer.watch_opened(self._clock.monotonic())
        failure: APIError | None = None
        stream = self._client.watch_batches(self.resource, self._namespace, action.options)
        try:
            async with aclosing(stream) as batches:
                async for batch in batches:
                    for event in batch if self._transform is None else map(self._transform_event, batch):
                        self._informer.event_received(event)
                    self._update_synced()
        except APIError as error:
            self._log_failure("watch ended", error)
            failure = error
        return self._informer.watch_ended(failure, self._clock.monotonic())

    def _transform_event(self, event: WatchEvent[Any] | Bookmark) -> WatchEvent[T] | Bookmark:
        if isinstance(event, Bookmark):
            return event
        assert self._transform is not None
        return WatchEvent(event.type, self._transform(event.object), event.key, event.resource_version)

    def _update_synced(self) -> None:
        if self._informer.synced:
            self._synced.set()

    def _log_failure(self, message: str, error: APIError) -> None:
        _log.info(message, extra=fields(resource=str(self.resource.group_resource), reason=error.reason, error=error))


class SharedInformerFactory:
    """The informers of a process: one per resource and selection, shared by its users."""

    def __init__(self, client: Client, clock: Clock, rng: random.Random) -> None:
        self._client = client
        self._clock = clock
        self._rng = rng
        self._informers: dict[_Key, SharedInformer[Any]] = {}
        self._tasks: dict[_Key, asyncio.Task[Any]] = {}
        self._group: TaskGroup | None = None

    def informer(
        self,
        resource: Resource[T],
        selection: Selection = EVERYTHING,
        *,
        indexes: Mapping[str, IndexFunction] | None = None,
        watch_list: bool = False,
    ) -> SharedInformer[T]:
        """Return the informer of the selection, created on first use; it runs as soon as `run` does."""
        key = (resource, selection)
        shared = self._informers.get(key)
        if shared is None:
            rng = random.Random(self._rng.random())  # noqa: S311 - spreads load, guards nothing
            informer: Informer[T] = Informer(selection, rng, watch_list=watch_list)
            shared = SharedInformer(self._client, resource, informer, self._clock, selection.namespace)
            self._start(key, shared)
        for name, function in (indexes or {}).items():
            shared.add_index(name, function)
        return shared

    def transformed(self, resource: Resource[Any], transform: Transform[T]) -> SharedInformer[T]:
        """Return an informer of all objects that caches them transformed; not shared, the caller stops it."""
        assert (resource, EVERYTHING) not in self._informers
        rng = random.Random(self._rng.random())  # noqa: S311 - spreads load, guards nothing
        shared: SharedInformer[T] = SharedInformer(
            self._client, resource, Informer(EVERYTHING, rng, watch_list=True), self._clock, transform=transform
        )
        self._start((resource, EVERYTHING), shared)
        return shared

    def _start(self, key: _Key, informer: SharedInformer[Any]) -> None:
        self._informers[key] = informer
        self._spawn(key)

    def stop(self, resource: Resource[Any], selection: Selection = EVERYTHING) -> None:
        """Stop the informer of a selection, e.g. because its kind is no longer served."""
        self._informers.pop((resource, selection), None)
        task = self._tasks.pop((resource, selection), None)
        if task is not None:
            task.cancel()

    async def run(self) -> None:
        """Run all informers, including those requested later, until cancelled."""
        async with TaskGroup("informers") as group:
            self._group = group
            try:
                for key in tuple(self._informers):
                    self._spawn(key)
                await group.wait(asyncio.Event())
            finally:
                self._group = None
                self._tasks.clear()

    async def wait_for_sync(self) -> None:
        """Return when every informer requested so far has its first list."""
        for informer in tuple(self._informers.values()):
            await informer.wait_for_sync()

    def _spawn(self, key: _Key) -> None:
        if self._group is not None and key not in self._tasks:
            self._tasks[key] = self._group.spawn(self._informers[key].run(), f"informer {key[0].group_resource}")
