"""Runs informers against a client, shared between the components of a process."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sized
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, Generic, TypeAlias, TypeVar

from dray.api.document import NamespacedName
from dray.api.errors import APIError
from dray.api.object_form import FormError, formed
from dray.api.schema.load import kind_type
from dray.client.codec import undecodable
from dray.client.indexer import IndexFunction, Lister
from dray.client.informer import (
    ALWAYS,
    STREAM_SECONDS_MAX,
    Action,
    DoList,
    DoWatch,
    Handler,
    Informer,
    Selection,
    SkippedListener,
)
from dray.client.interface import CacheEvent, Client, ListPage, Resource, Undecodable, WatchEvent
from dray.client.request_state import RequestState
from dray.client.skipped_objects import SkippedObjects
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.tasks import TaskGroup

_log = logging.getLogger(__name__)

T = TypeVar("T")

EVERYTHING: Final = Selection()

_GONE: Final = 410
_NOT_LISTED: Final = "waiting for the first list"

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
        self._accept = _acceptance(resource, transform)
        self._client = client
        self._informer = informer
        self.lister: Lister[T] = informer.lister
        self._clock = clock
        self._namespace = namespace
        self._synced = asyncio.Event()
        self._state = RequestState(_log, str(resource.group_resource), resource, namespace)
        # Whether the latest failure came instead of a watch and not in it.
        self._failed_to_open = False

    @property
    def failure(self) -> str | None:
        """Why the server is not being followed: the failure of the latest list or watch."""
        return self._state.failure

    @property
    def synced(self) -> bool:
        """Whether the first list is in."""
        return self._informer.synced

    def add_handler(self, handler: Handler[T], *, needed_while: Sized = ALWAYS) -> None:
        """Call the handler on every change, beginning with the cached objects as additions.

        It is not called while the collection `needed_while` is empty; see `Informer.add_handler`.
        """
        self._informer.add_handler(handler, needed_while=needed_while)

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

    async def _list(self, action: DoList) -> Action:
        try:
            page = await self._client.list(self.resource, self._namespace, action.options)
        except APIError as error:
            if error.code != _GONE:
                self._state.failed("list", error)
            return self._informer.list_failed(error)
        self._state.succeeded()
        following = self._informer.page_received(page if self._accept is None else _accepted(page, self._accept))
        self._update_synced()
        # A server in this process answers without a pause: between two pages, others get their turn.
        await asyncio.sleep(0)
        return following

    async def _watch(self, action: DoWatch) -> Action:
        self._informer.watch_requested(self._clock.monotonic())
        streaming = self._informer.is_listing
        failure: APIError | None = None
        stream = self._client.watch_batches(self.resource, self._namespace, action.options)
        try:
            async with asyncio.timeout(STREAM_SECONDS_MAX if streaming else None) as deadline, aclosing(stream):
                async for batch in stream:
                    if self._state.failure is not None and (batch or self._failed_to_open):
                        self._state.succeeded()
                    self._informer.batch_received(batch if self._accept is None else map(self._accept_event, batch))
                    if streaming and not self._informer.is_listing:
                        streaming = False
                        deadline.reschedule(None)
                        self._update_synced()
        except TimeoutError:
            _log.warning("streamed list did not end, will be listed", extra=self._fields())
            return self._informer.stream_timed_out()
        except APIError as error:
            failure = error
        now = self._clock.monotonic()
        if failure is not None:
            self._watch_failed(failure, now)
        return self._informer.watch_ended(failure, now)

    def _watch_failed(self, error: APIError, now: float) -> None:
        """Record the failure, unless it only ends a watch that worked: then the next attempt tells."""
        opened = self._informer.is_watch_open
        if error.code == _GONE or (opened and self._informer.is_watch_healthy(now)):
            _log.info("watch ended", extra=self._fields(reason=error.reason, error=error))
        else:
            self._failed_to_open = not opened
            self._state.failed("watch", error)

    def _accept_event(self, event: CacheEvent[Any]) -> CacheEvent[T]:
        if not isinstance(event, WatchEvent):
            return event
        assert self._accept is not None
        try:
            return WatchEvent(event.type, self._accept(event.object), event.key, event.resource_version)
        except FormError as error:
            return undecodable(event.object, str(error))

    def _update_synced(self) -> None:
        if self._informer.synced:
            self._synced.set()

    def _fields(self, **values: Any) -> dict[str, Any]:
        return fields(subject=str(self.resource.group_resource), **values)


def _acceptance(resource: Resource[Any], transform: Transform[T] | None) -> Transform[T] | None:
    """Return what makes a cached object of a received one, and raises `FormError`; None if it is cached as it is.

    What was decoded as a structure has the form of its kind. Documents are checked here; of those that are transformed,
    the transform tells whether the fields that it reads are right.
    """
    if resource.type is not dict:
        return transform
    struct = None if resource.metadata_only or transform else kind_type(resource.group_version_kind)

    def accept(document: Any) -> T:
        checked = formed(document, struct)
        if transform is None:
            return checked  # type: ignore[return-value]
        try:
            return transform(checked)
        except Exception as error:
            raise FormError(f"{type(error).__name__}: {error}") from error

    return accept


def _accepted(page: ListPage[Any], accept: Transform[T]) -> ListPage[T]:
    items: list[T] = []
    skipped = list(page.undecodable)
    for item in page.items:
        try:
            items.append(accept(item))
        except FormError as error:
            skipped.append(undecodable(item, str(error)))
    return replace(page, items=items, undecodable=skipped)


class SharedInformerFactory:
    """The informers of a process: one per resource and selection, shared by its users."""

    def __init__(self, client: Client, clock: Clock, rng: random.Random, skipped: SkippedObjects | None = None) -> None:
        """Objects that do not decode are skipped, and reported to `skipped`, which is run with the informers."""
        self.skipped = skipped
        self._client = client
        self._clock = clock
        self._rng = rng
        self._informers: dict[_Key, SharedInformer[Any]] = {}
        # Informers of kinds that come and go, without which the component can work.
        self._optional: set[_Key] = set()
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
            informer: Informer[T] = Informer(selection, rng, watch_list=watch_list, on_skipped=self._listener(resource))
            shared = SharedInformer(self._client, resource, informer, self._clock, selection.namespace)
            self._start(key, shared)
        for name, function in (indexes or {}).items():
            shared.add_index(name, function)
        return shared

    def transformed(self, resource: Resource[Any], transform: Transform[T]) -> SharedInformer[T]:
        """Return an informer of all objects that caches them transformed; not shared, the caller stops it.

        It does not count for `out_of_sync`.
        """
        assert (resource, EVERYTHING) not in self._informers
        rng = random.Random(self._rng.random())  # noqa: S311 - spreads load, guards nothing
        informer: Informer[T] = Informer(EVERYTHING, rng, watch_list=True, on_skipped=self._listener(resource))
        shared: SharedInformer[T] = SharedInformer(self._client, resource, informer, self._clock, transform=transform)
        self._optional.add((resource, EVERYTHING))
        self._start((resource, EVERYTHING), shared)
        return shared

    def _listener(self, resource: Resource[Any]) -> SkippedListener:
        if self.skipped is not None:
            return self.skipped.listener(resource)

        def log(key: NamespacedName, skipped: Undecodable | None) -> None:
            if skipped is not None:
                described = fields(subject=str(resource.group_resource), object=str(key), problem=skipped.problem)
                _log.warning("object does not decode and is skipped", extra=described)

        return log

    def _start(self, key: _Key, informer: SharedInformer[Any]) -> None:
        self._informers[key] = informer
        self._spawn(key)

    def stop(self, resource: Resource[Any], selection: Selection = EVERYTHING) -> None:
        """Stop the informer of a selection, e.g. because its kind is no longer served."""
        self._informers.pop((resource, selection), None)
        self._optional.discard((resource, selection))
        task = self._tasks.pop((resource, selection), None)
        if task is not None:
            task.cancel()

    async def run(self) -> None:
        """Run all informers, including those requested later, until cancelled."""
        async with TaskGroup("informers") as group:
            self._group = group
            try:
                if self.skipped is not None:
                    group.spawn(self.skipped.run(), "events of skipped objects")
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

    def out_of_sync(self) -> str | None:
        """Return which informers do not follow the server and why, None if all do; a health check."""
        by_reason: dict[str, set[str]] = {}
        for key, informer in self._informers.items():
            reason = informer.failure or (None if informer.synced else _NOT_LISTED)
            if reason is not None and key not in self._optional:
                by_reason.setdefault(reason, set()).add(str(informer.resource.group_resource))
        found = [f"{', '.join(sorted(names))}: {reason}" for reason, names in by_reason.items()]
        return "; ".join(sorted(found)) or None

    def _spawn(self, key: _Key) -> None:
        if self._group is not None and key not in self._tasks:
            self._tasks[key] = self._group.spawn(self._informers[key].run(), f"informer {key[0].group_resource}")
