"""The hands of the client room: run informers, wait on work queues, run controllers."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeAlias, TypeVar

from dray.api.errors import APIError, ConflictError
from dray.client.index import IndexFunction
from dray.client.informer import Action, DoList, DoWatch, Handler, Informer, Selection
from dray.client.interface import Bookmark, Client, Resource, WatchEvent
from dray.client.lister import Lister
from dray.client.queue_metrics import MeasuredQueue
from dray.client.workqueue import RetryLimiter, WorkQueue
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup

_log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

EVERYTHING: Final = Selection()

# Makes what an informer keeps of what the server sent: less of it, when a controller needs little of many objects.
# The result must still have its metadata's namespace, name, uid and resource version.
Reduce: TypeAlias = Callable[[Any], T]


class InformerLoop(Generic[T]):
    """Runs one informer against a client."""

    def __init__(
        self,
        client: Client,
        resource: Resource[Any],
        informer: Informer[T],
        clock: Clock,
        namespace: str = "",
        reduce: Reduce[T] | None = None,
    ) -> None:
        self.resource = resource
        self._reduce = reduce
        self._client = client
        self._informer = informer
        # What the informer knows.
        self.lister: Lister[T] = informer.lister
        self._clock = clock
        self._namespace = namespace
        self._synced = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Whether the first list is in."""
        return self._informer.synced

    def add_handler(self, handler: Handler[T]) -> None:
        """Have the handler hear every change."""
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
        """Tell the handlers of everything again and again until cancelled."""
        while True:
            await self._clock.sleep(seconds)
            self._informer.resync()

    async def _list(self, action: DoList) -> Action:
        try:
            page = await self._client.list(self.resource, self._namespace, action.options)
        except APIError as error:
            self._note("list failed", error)
            return self._informer.list_failed(error)
        if self._reduce is not None:
            page = replace(page, items=[self._reduce(item) for item in page.items])
        following = self._informer.page_received(page)
        self._note_sync()
        return following

    async def _watch(self, action: DoWatch) -> Action:
        self._informer.watch_opened(self._clock.monotonic())
        failure: APIError | None = None
        stream = self._client.watch_batches(self.resource, self._namespace, action.options)
        try:
            async with aclosing(stream) as batches:
                async for batch in batches:
                    for event in batch if self._reduce is None else map(self._reduced, batch):
                        self._informer.event_received(event)
                    self._note_sync()
        except APIError as error:
            self._note("watch ended", error)
            failure = error
        return self._informer.watch_ended(failure, self._clock.monotonic())

    def _reduced(self, event: WatchEvent[Any] | Bookmark) -> WatchEvent[T] | Bookmark:
        if isinstance(event, Bookmark):
            return event
        assert self._reduce is not None
        return WatchEvent(event.type, self._reduce(event.object), event.key, event.resource_version)

    def _note_sync(self) -> None:
        if self._informer.synced:
            self._synced.set()

    def _note(self, what: str, error: APIError) -> None:
        _log.info(what, extra=fields(resource=str(self.resource.group_resource), reason=error.reason, error=error))


class Informers:
    """A process's informers, shared: one per resource and selection."""

    def __init__(self, client: Client, clock: Clock, rng: random.Random) -> None:
        self._client = client
        self._clock = clock
        self._rng = rng
        self._loops: dict[tuple[Resource[Any], Selection], InformerLoop[Any]] = {}
        self._tasks: dict[tuple[Resource[Any], Selection], asyncio.Task[Any]] = {}
        self._group: TaskGroup | None = None

    def informer(
        self,
        resource: Resource[T],
        selection: Selection = EVERYTHING,
        *,
        indexes: Mapping[str, IndexFunction] | None = None,
        watch_list: bool = False,
    ) -> InformerLoop[T]:
        """The informer of the selection, made when it is new; runs as soon as `run` does."""
        place = (resource, selection)
        loop = self._loops.get(place)
        if loop is None:
            rng = random.Random(self._rng.random())  # noqa: S311 - spreads load, guards nothing
            informer: Informer[T] = Informer(selection, rng, watch_list=watch_list)
            loop = InformerLoop(self._client, resource, informer, self._clock, selection.namespace)
            self._start(place, loop)
        for name, function in (indexes or {}).items():
            loop.add_index(name, function)
        return loop

    def reduced(self, resource: Resource[Any], reduce: Reduce[T]) -> InformerLoop[T]:
        """An informer of everything that keeps little of each object; not shared, its caller stops it."""
        assert (resource, EVERYTHING) not in self._loops
        rng = random.Random(self._rng.random())  # noqa: S311 - spreads load, guards nothing
        loop: InformerLoop[T] = InformerLoop(
            self._client, resource, Informer(EVERYTHING, rng, watch_list=True), self._clock, reduce=reduce
        )
        self._start((resource, EVERYTHING), loop)
        return loop

    def _start(self, place: tuple[Resource[Any], Selection], loop: InformerLoop[Any]) -> None:
        self._loops[place] = loop
        self._spawn(place)

    def stop(self, resource: Resource[Any], selection: Selection = EVERYTHING) -> None:
        """Stop following a selection, e.g. because its kind is no longer served."""
        self._loops.pop((resource, selection), None)
        task = self._tasks.pop((resource, selection), None)
        if task is not None:
            task.cancel()

    async def run(self) -> None:
        """Run all informers, also those asked for later, until cancelled."""
        async with TaskGroup("informers") as group:
            self._group = group
            try:
                for place in tuple(self._loops):
                    self._spawn(place)
                await group.wait(asyncio.Event())
            finally:
                self._group = None
                self._tasks.clear()

    async def wait_for_sync(self) -> None:
        """Return when every informer asked for so far has its first list."""
        for loop in tuple(self._loops.values()):
            await loop.wait_for_sync()

    def _spawn(self, place: tuple[Resource[Any], Selection]) -> None:
        if self._group is not None and place not in self._tasks:
            self._tasks[place] = self._group.spawn(self._loops[place].run(), f"informer {place[0].group_resource}")


class QueueLoop(Generic[K]):
    """A work queue that workers can wait on."""

    def __init__(self, queue: WorkQueue[K], clock: Clock) -> None:
        self._queue = queue
        self._clock = clock
        self._waiters: deque[asyncio.Future[None]] = deque()
        # Workers that have been called and have not come yet.
        self._called = 0
        self._timer: asyncio.Task[None] | None = None
        self._timer_due = 0.0

    def add(self, key: K) -> None:
        """The key needs work."""
        self._queue.add(key, self._clock.monotonic())
        self._call_workers()

    def add_after(self, key: K, delay_seconds: float) -> None:
        """The key needs work when the delay is over."""
        self._queue.add_after(key, delay_seconds, self._clock.monotonic())
        self._call_workers()
        self._arm_timer()

    def add_rate_limited(self, key: K, *, overall: bool = True) -> float:
        """The key failed; returns how long it will wait."""
        delay = self._queue.add_rate_limited(key, self._clock.monotonic(), overall=overall)
        self._call_workers()
        self._arm_timer()
        return delay

    def forget(self, key: K) -> None:
        """The key succeeded."""
        self._queue.forget(key)

    def failures(self, key: K) -> int:
        """How often the key failed in a row."""
        return self._queue.failures(key)

    async def get(self) -> K:
        """The next key; call `done` with it afterwards."""
        while True:
            key = self._queue.take(self._clock.monotonic())
            if key is not None:
                self._call_workers()
                return key
            await self._wait()

    def done(self, key: K) -> None:
        """The key's work has ended."""
        self._queue.done(key, self._clock.monotonic())
        self._call_workers()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """Whether nothing waits, nothing is delayed and nothing is worked."""
        return self._queue.idle

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._arm_timer()
        try:
            await waiter
        except asyncio.CancelledError:
            # A call that went to a cancelled worker belongs to the next one.
            if not waiter.cancelled():
                self._called -= 1
                self._call_workers()
            raise
        self._called -= 1

    def _call_workers(self) -> None:
        """See to it that as many workers are on their way as keys wait."""
        while self._waiters and self._called < len(self._queue):
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._called += 1
                waiter.set_result(None)

    def _arm_timer(self) -> None:
        """Have the next delayed key noticed by a worker that waits; busy ones will look for themselves."""
        due = self._queue.next_timer() if self._waiters else None
        if due is None or (self._timer is not None and self._timer_due <= due):
            return
        self.close()
        self._timer_due = due
        self._timer = asyncio.create_task(self._fire_at(due), name="workqueue timer")

    async def _fire_at(self, due: float) -> None:
        await self._clock.sleep(due - self._clock.monotonic())
        self._timer = None
        self._queue.fire_timers(self._clock.monotonic())
        self._call_workers()
        self._arm_timer()


class TerminalError(Exception):
    """Trying again cannot help; the key waits for its next change."""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Work the key again later, though nothing failed."""

    after_seconds: float


Result: TypeAlias = Requeue | None


class Controller(Generic[K]):
    """informer -> keys -> work queue -> `reconcile(key)`; failures retry with backoff."""

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[Result]],
        clock: Clock,
        *,
        metrics: Metrics | None = None,
        workers: int = 1,
    ) -> None:
        self.name = name
        self._reconcile = reconcile
        self._workers = workers
        self._informers: list[InformerLoop[Any]] = []
        limiter: RetryLimiter[K] = RetryLimiter()
        if metrics is None:
            queue: WorkQueue[K] = WorkQueue(limiter)
        else:
            observer = MeasuredQueue(metrics, name, lambda: queue.unfinished_seconds(clock.monotonic()))
            queue = WorkQueue(limiter, observer)
        self.queue = QueueLoop(queue, clock)

    def watch(self, informer: InformerLoop[T], keys: Callable[[T], Iterable[K]]) -> None:
        """Work the keys an object maps to whenever it changes, those of its old form too."""

        def handler(old: T | None, new: T | None) -> None:
            for obj in (old, new):
                if obj is not None:
                    for key in keys(obj):
                        self.queue.add(key)

        self.follow(informer, handler)

    def follow(self, informer: InformerLoop[T], handler: Handler[T]) -> None:
        """Have a handler of the caller's own enqueue; the workers start when the informer has synced."""
        self._informers.append(informer)
        informer.add_handler(handler)

    async def run(self) -> None:
        """Work keys until cancelled."""
        for informer in self._informers:
            await informer.wait_for_sync()
        try:
            async with TaskGroup(self.name) as group:
                for number in range(self._workers):
                    group.spawn(self._work(), f"{self.name} worker {number}")
                await group.wait(asyncio.Event())
        finally:
            self.queue.close()

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            try:
                await self._work_one(key)
            finally:
                self.queue.done(key)
            # Work that never had to wait must still let the informers take their turn; an empty queue is waited for.
            if len(self.queue):
                await asyncio.sleep(0)

    async def _work_one(self, key: K) -> None:
        try:
            result = await self._reconcile(key)
        except TerminalError as error:
            _log.error("will not be retried", extra=self._about(key, error))
        except Exception as error:  # noqa: BLE001 - the outer edge: one key's failure must not stop the others
            self._note_failure(key, error)
            self.queue.add_rate_limited(key, overall=not isinstance(error, ConflictError))
            return
        else:
            if result is not None:
                self.queue.add_after(key, result.after_seconds)
        self.queue.forget(key)

    def _note_failure(self, key: K, error: Exception) -> None:
        if isinstance(error, ConflictError):
            _log.debug("conflict, will be retried", extra=self._about(key, error))
        elif isinstance(error, APIError):
            _log.warning("reconcile failed, will be retried", extra=self._about(key, error))
        else:
            _log.error("reconcile crashed, will be retried", exc_info=error, extra=self._about(key, error))

    def _about(self, key: K, error: Exception) -> dict[str, Any]:
        return fields(controller=self.name, key=str(key), error=str(error))
