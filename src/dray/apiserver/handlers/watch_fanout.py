"""Fan-out of watches by the value of one field: thousands of node agents watch Pods, and an event wakes only one.

One watch of the store feeds a fan-out, which indexes its subscribers by the value they select. A subscriber that starts
in the past first catches up through a watch of its own, so that no event is missed or repeated.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, Self

from dray.api.document import Document
from dray.apiserver.document_cache import DocumentCache
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.malformed import each_shown
from dray.runtime.tasks import ChildTasks
from dray.store.interface import (
    Entry,
    Event,
    EventType,
    Store,
    StoreError,
    StoreUnavailableError,
    Watch,
    WatchOverflowError,
)

# As much as the store buffers for a watch of its own.
BUFFER_EVENTS_MAX: Final = 10_000
BUFFER_BYTES_MAX: Final = 64 * 1024 * 1024
# The events of a store that others write to may come later than the revision that it reports.
CATCH_UP_PAUSE_SECONDS: Final = 0.005
CATCH_UP_SECONDS_MAX: Final = 10.0

Getter = Callable[[Document], str]


class FieldWatch:
    """One subscriber; implements the `Watch` of the store."""

    def __init__(self, fanout: FieldFanout, value: str, after_revision: int) -> None:
        self._fanout = fanout
        self.value = value
        self.after_revision = after_revision
        self._pending: deque[Event] = deque()
        self._bytes = 0
        self._failed = False
        self._error: StoreError | None = None
        self._closed = False
        self._woken = False
        self._waiter: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[tuple[Event, ...]]:
        return self

    async def __anext__(self) -> tuple[Event, ...]:
        while not self._closed:
            if self._error is not None and not self._pending:
                self._closed = True
                raise self._error
            if self._pending or self._woken:
                self._woken = False
                return self._take()
            await self._wait()
        raise StopAsyncIteration

    @property
    def progress(self) -> int:
        """The revision up to which all matching events have been delivered."""
        if self._pending:
            return self._pending[0].revision - 1
        # The fan-out goes on with another watch of the store, which knows nothing of what this one has missed.
        return self.after_revision if self._failed else max(self.after_revision, self._fanout.revision)

    def wake(self) -> None:
        """Make the iteration yield now, if need be an empty batch."""
        self._woken = True
        self._notify()

    async def aclose(self) -> None:
        """End the watch."""
        self._closed = True
        self._fanout.leave(self)
        self._notify()

    def offer(self, event: Event) -> None:
        """Queue an event; what follows a failure is dropped."""
        if self._failed or event.revision <= self.after_revision:
            return
        if len(self._pending) >= BUFFER_EVENTS_MAX:
            self.fail(WatchOverflowError(f"watch of {self.value} is more than {BUFFER_EVENTS_MAX} events behind"))
            return
        self._bytes += event.size
        if self._pending and self._bytes > BUFFER_BYTES_MAX:
            self.fail(WatchOverflowError(f"watch of {self.value} is more than {BUFFER_BYTES_MAX} bytes behind"))
            return
        self._pending.append(event)
        self._notify()

    def prepend(self, missed: Iterable[Event]) -> None:
        """Queue events that precede all others."""
        self._pending.extendleft(reversed(list(missed)))

    def fail(self, error: StoreError | None) -> None:
        """End with an error, or cleanly if None; pending events are dropped, since a gap follows them."""
        self.after_revision = self.progress
        self._failed = True
        self._pending.clear()
        self._error, self._closed = error, error is None
        self._notify()

    def _take(self) -> tuple[Event, ...]:
        batch = tuple(self._pending)
        self._pending.clear()
        self._bytes = 0
        if batch:
            self.after_revision = batch[-1].revision
        return batch

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class FieldFanout:
    """All watches of one resource by one field. Its work runs in `tasks`."""

    def __init__(
        self, store: Store, endpoint: Endpoint, getter: Getter, documents: DocumentCache, tasks: ChildTasks
    ) -> None:
        self._store = store
        self._endpoint = endpoint
        self._getter = getter
        self._documents = documents
        self._tasks = tasks
        self._subscribers: dict[str, dict[FieldWatch, None]] = {}
        self._stream: Watch | None = None
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        # Events up to this revision have been passed on.
        self._passed = 0

    @property
    def revision(self) -> int:
        """The revision up to which all events have been passed on."""
        return self._passed if self._stream is None else max(self._passed, self._stream.progress)

    async def subscribe(self, value: str, after_revision: int) -> FieldWatch:
        """Watch the objects whose field has, or had, the value."""
        async with self._starting:
            await self._ensure_running()
        watch = FieldWatch(self, value, after_revision)
        joined = self._passed
        self._subscribers.setdefault(value, {})[watch] = None
        if after_revision < joined:
            try:
                await self._catch_up(watch, joined)
            except BaseException:
                self.leave(watch)
                raise
        return watch

    def leave(self, watch: FieldWatch) -> None:
        """Remove a subscriber; after the last one the watch of the store ends."""
        others = self._subscribers.get(watch.value, {})
        others.pop(watch, None)
        if not others:
            self._subscribers.pop(watch.value, None)
        if not self._subscribers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _ensure_running(self) -> None:
        if self._task is not None and not self._task.done():
            return
        revision = await self._store.revision()
        self._stream = await self._store.watch(self._endpoint.prefix, after_revision=revision)
        self._passed = revision
        self._task = self._tasks.spawn(self._run(self._stream), f"fan-out {self._endpoint.prefix}")

    async def _run(self, stream: Watch) -> None:
        error: StoreError | None = None
        try:
            async for batch in stream:
                for event in batch:
                    self._pass_on(event)
        except StoreError as failure:
            error = failure
        finally:
            await stream.aclose()
        for watch in [watch for others in self._subscribers.values() for watch in others]:
            watch.fail(error)
        self._subscribers.clear()

    def _pass_on(self, event: Event) -> None:
        for value in self._values(event):
            for watch in self._subscribers.get(value, ()):
                watch.offer(event)
        self._passed = event.revision

    def _values(self, event: Event) -> set[str]:
        """Return the values whose subscribers get the event: the old and the new one."""
        # The entry of a deletion is the last one before it.
        entries = [event.entry] if event.type is EventType.DELETE else [event.previous, event.entry]
        return set(each_shown(self._value, [entry for entry in entries if entry is not None]))

    def _value(self, entry: Entry) -> str:
        return self._getter(self._documents.document(entry))

    async def _catch_up(self, watch: FieldWatch, joined: int) -> None:
        """Deliver the events up to the revision at which the watch joined."""
        missed: list[Event] = []
        async with await self._store.watch(self._endpoint.prefix, after_revision=watch.after_revision) as past:
            batches = past.__aiter__()
            deadline = asyncio.get_running_loop().time() + CATCH_UP_SECONDS_MAX
            while past.progress < joined:
                past.wake()
                batch = await anext(batches)
                missed.extend(
                    event for event in batch if event.revision <= joined and watch.value in self._values(event)
                )
                if not batch:
                    await _pause_until(deadline)
        watch.prepend(missed)


async def _pause_until(deadline: float) -> None:
    if asyncio.get_running_loop().time() >= deadline:
        raise StoreUnavailableError("the store's watch does not reach its newest revision")
    await asyncio.sleep(CATCH_UP_PAUSE_SECONDS)
