"""The contract of the store reflector: the cache equals the store, or the reflector says that it does not."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import orjson

from dray.apiserver.document_cache import DocumentCache
from dray.apiserver.object_cache import ObjectCache
from dray.apiserver.reflector import BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_MIN, StoreReflector
from dray.runtime.tasks import TaskGroup
from dray.sim.replica.virtual_time import run_virtually
from dray.store.buffered_watch import BufferedWatch
from dray.store.interface import (
    Page,
    RevisionCompactedError,
    StoreError,
    StoreUnavailableError,
    WatchOverflowError,
)
from dray.store.memory import MemoryStore

NAMESPACES = "/registry/core/namespaces/"
ETCD_DOWN = StoreUnavailableError("etcd does not answer")


def namespace(name: str, **labels: str) -> bytes:
    return orjson.dumps({"kind": "Namespace", "metadata": {"name": name, "uid": name, "labels": labels}})


class FailingStore(MemoryStore):
    """A store whose lists and watches of namespaces fail on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.error: StoreError | None = None
        self.list_times: list[float] = []
        self.streams: list[InterruptibleWatch] = []

    async def list_page(self, prefix: str, **options: Any) -> Page:
        if prefix == NAMESPACES:
            self.list_times.append(asyncio.get_running_loop().time())
            if self.error is not None:
                raise self.error
        return await super().list_page(prefix, **options)

    async def watch(self, prefix: str, *, after_revision: int) -> BufferedWatch:
        stream = await super().watch(prefix, after_revision=after_revision)
        if prefix != NAMESPACES:
            return stream
        self.streams.append(InterruptibleWatch(stream))
        return cast("BufferedWatch", self.streams[-1])


class InterruptibleWatch:
    """A watch that can be ended with an error."""

    def __init__(self, inner: BufferedWatch) -> None:
        self._inner = inner
        self._error: StoreError | None = None

    def interrupt(self, error: StoreError) -> None:
        self._error = error
        self._inner.wake()

    async def __aenter__(self) -> InterruptibleWatch:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._inner.__aexit__(*exc_info)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for batch in self._inner:
            if self._error is not None:
                raise self._error
            yield batch


class Reflected:
    """A reflector that runs, on a store that can fail."""

    def __init__(self) -> None:
        self.store = FailingStore()
        self.cache = ObjectCache()
        self.reflector = StoreReflector(self.store, self.cache, DocumentCache())

    async def put(self, name: str, **labels: str) -> None:
        entry = await self.store.get(NAMESPACES + name)
        if entry is None:
            await self.store.create(NAMESPACES + name, namespace(name, **labels))
        else:
            await self.store.update(NAMESPACES + name, namespace(name, **labels), expected_revision=entry.revision)

    async def remove(self, name: str) -> None:
        entry = await self.store.get(NAMESPACES + name)
        assert entry is not None
        await self.store.delete(NAMESPACES + name, expected_revision=entry.revision)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10 * BACKOFF_SECONDS_MAX):
            while not condition():  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.01)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.reflector.sync()
        async with TaskGroup("test") as group:
            group.spawn(self.reflector.run(), "reflector")
            await self.until(lambda: bool(self.store.streams))
            yield
            await group.cancel()


def test_the_first_list_fills_the_cache() -> None:
    async def body() -> None:
        reflected = Reflected()
        await reflected.put("a")
        await reflected.put("b")
        await reflected.reflector.sync()
        assert sorted(reflected.cache.namespaces) == ["a", "b"]
        assert reflected.reflector.out_of_sync() is None

    run_virtually(body())


def test_events_are_applied_in_their_order() -> None:
    async def body() -> None:
        reflected = Reflected()
        async with reflected.running():
            await reflected.put("a", step="1")
            await reflected.put("a", step="2")
            await reflected.put("b")
            await reflected.remove("b")
            await reflected.put("last")
            await reflected.until(lambda: "last" in reflected.cache.namespaces)
            assert reflected.cache.namespaces["a"]["metadata"]["labels"] == {"step": "2"}
            assert "b" not in reflected.cache.namespaces

    run_virtually(body())


def relist_removes_vanished_objects(error: StoreError) -> None:
    async def body() -> None:
        reflected = Reflected()
        await reflected.put("stays")
        await reflected.put("vanishes")
        async with reflected.running():
            stream = reflected.store.streams[0]
            # The deletion and the interruption come in one step, so that its event is never applied.
            stream.interrupt(error)
            await reflected.remove("vanishes")
            await reflected.put("new")
            await reflected.until(lambda: "new" in reflected.cache.namespaces)
            assert sorted(reflected.cache.namespaces) == ["new", "stays"]
            assert reflected.reflector.out_of_sync() is None
            # Later events arrive by the new watch.
            await reflected.put("later")
            await reflected.until(lambda: "later" in reflected.cache.namespaces)

    run_virtually(body())


def test_a_relist_after_an_overflow_removes_vanished_objects() -> None:
    relist_removes_vanished_objects(WatchOverflowError("too slow"))


def test_a_relist_after_a_compaction_removes_vanished_objects() -> None:
    relist_removes_vanished_objects(RevisionCompactedError(7, 9))


def test_an_unavailable_store_is_retried_with_bounded_backoff_and_reported() -> None:
    async def body() -> None:
        reflected = Reflected()
        await reflected.put("a")
        async with reflected.running():
            reflected.store.error = ETCD_DOWN
            reflected.store.streams[0].interrupt(ETCD_DOWN)
            await reflected.until(lambda: reflected.reflector.out_of_sync() is not None)
            assert reflected.reflector.out_of_sync() == "namespaces: etcd does not answer"
            await reflected.until(lambda: len(reflected.store.list_times) > 10)
            assert reflected.reflector.out_of_sync() == "namespaces: etcd does not answer"

            await reflected.put("b")
            reflected.store.error = None
            await reflected.until(lambda: "b" in reflected.cache.namespaces)
            assert reflected.reflector.out_of_sync() is None

            times = reflected.store.list_times[1:]
            pauses = [after - before for before, after in itertools.pairwise(times)]
            assert abs(pauses[0] - 2 * BACKOFF_SECONDS_MIN) < 0.1
            assert all(
                after > before or after > BACKOFF_SECONDS_MAX - 0.1 for before, after in itertools.pairwise(pauses)
            )
            assert max(pauses) < BACKOFF_SECONDS_MAX + 0.1

            # The next failure starts with the shortest pause.
            before = asyncio.get_running_loop().time()
            reflected.store.streams[-1].interrupt(ETCD_DOWN)
            await reflected.until(lambda: reflected.reflector.out_of_sync() is not None)
            await reflected.until(lambda: reflected.reflector.out_of_sync() is None)
            assert asyncio.get_running_loop().time() - before < 2 * BACKOFF_SECONDS_MIN

    run_virtually(body())


def test_one_malformed_object_does_not_stop_the_others() -> None:
    async def body() -> None:
        reflected = Reflected()
        await reflected.store.create(NAMESPACES + "odd", orjson.dumps({"kind": "Namespace", "metadata": "text"}))
        await reflected.put("sound")
        await reflected.reflector.sync()
        assert sorted(reflected.cache.namespaces) == ["sound"]

    run_virtually(body())


def test_a_closed_store_ends_the_reflector() -> None:
    async def body() -> None:
        reflected = Reflected()
        async with TaskGroup("test") as group:
            await reflected.reflector.sync()
            group.spawn(reflected.reflector.run(), "reflector")
            await reflected.until(lambda: bool(reflected.store.streams))
            await reflected.store.close()
            await group.wait()

    run_virtually(body())
