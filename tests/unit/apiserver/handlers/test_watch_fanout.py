"""Watches by node name: each sees its own events once, from any revision, and others' events do not wake it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Self

import orjson
import pytest

from dray.apiserver.document_cache import DocumentCache
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.handlers import watch_fanout
from dray.apiserver.handlers.watch_fanout import FieldFanout, FieldWatch
from dray.apiserver.registry import builtin
from dray.runtime.tasks import ChildTasks
from dray.store.interface import (
    Entry,
    Event,
    EventType,
    RevisionCompactedError,
    StoreUnavailableError,
    WatchOverflowError,
)
from dray.store.memory import MemoryStore

PODS = next(item for item in builtin.definitions() if (item.group, item.resource) == ("", "pods"))
ENDPOINT: Endpoint = builtin.endpoint(PODS, "v1")
NODES = ("", "n1", "n2", "n3")


def value(node: str, number: int) -> bytes:
    return orjson.dumps({"metadata": {"name": "p", "number": number}, "spec": {"nodeName": node}})


def fanout_of(store: MemoryStore) -> FieldFanout:
    return FieldFanout(store, ENDPOINT, PODS.selectable_fields["spec.nodeName"], DocumentCache(), ChildTasks("test"))


async def seen(watch: FieldWatch, until: int) -> list[int]:
    """The revisions it gets up to one."""
    found: list[int] = []
    async with asyncio.timeout(5):
        while watch.progress < until or not found or watch._pending:
            watch.wake()
            found.extend(event.revision for event in await anext(watch))
            if watch.progress >= until and not watch._pending:
                break
            await asyncio.sleep(0)
    return found


async def history(store: MemoryStore, source: random.Random, count: int) -> list[tuple[int, set[str]]]:
    """Random writes: each revision, and the nodes it is about."""
    entries: dict[str, tuple[Entry, str]] = {}
    written: list[tuple[int, set[str]]] = []
    for number in range(count):
        key = ENDPOINT.key("default", f"p{source.randrange(6)}")
        node = source.choice(NODES)
        if key not in entries:
            entry = await store.create(key, value(node, number))
            written.append((entry.revision, {node}))
            entries[key] = (entry, node)
            continue
        old, before = entries[key]
        if source.random() < 0.3:
            gone = await store.delete(key, expected_revision=old.revision)
            written.append((gone.revision, {before}))
            del entries[key]
            continue
        entry = await store.update(key, value(node, number), expected_revision=old.revision)
        written.append((entry.revision, {before, node}))
        entries[key] = (entry, node)
    return written


async def test_each_watch_gets_exactly_its_own_history_from_any_revision() -> None:
    for seed in range(10):
        source = random.Random(seed)
        store = MemoryStore()
        fanout = fanout_of(store)
        keep = await fanout.subscribe("n1", await store.revision())
        past = await history(store, source, 40)
        starts = [1, *(revision for revision, _ in source.sample(past, 5))]
        watches = [(start, node, await fanout.subscribe(node, start)) for start in starts for node in NODES]
        everything = past + await history_on_fresh_keys(store, source)
        newest = await store.revision()
        for start, node, watch in watches:
            expected = [revision for revision, nodes in everything if revision > start and node in nodes]
            assert await seen(watch, newest) == expected, (seed, start, node)
            await watch.aclose()
        await keep.aclose()
        await store.close()


async def history_on_fresh_keys(store: MemoryStore, source: random.Random) -> list[tuple[int, set[str]]]:
    written = []
    for number in range(20):
        node = source.choice(NODES)
        entry = await store.create(ENDPOINT.key("other", f"q{number}"), value(node, number))
        written.append((entry.revision, {node}))
    return written


async def test_an_event_wakes_only_those_it_is_for() -> None:
    store = MemoryStore()
    fanout = fanout_of(store)
    watches = [await fanout.subscribe(f"n{number}", await store.revision()) for number in range(50)]
    waiting = [asyncio.ensure_future(_next(watch)) for watch in watches]
    await asyncio.sleep(0)
    await store.create(ENDPOINT.key("default", "p"), value("n7", 0))
    async with asyncio.timeout(5):
        (event,) = await waiting[7]
    assert event.type is EventType.PUT
    assert [future.done() for future in waiting].count(True) == 1
    for future, watch in zip(waiting, watches, strict=True):
        future.cancel()
        await watch.aclose()
    await store.close()


async def _next(watch: FieldWatch) -> Sequence[Event]:
    return await anext(watch)


async def test_the_end_of_the_store_ends_every_watch() -> None:
    store = MemoryStore()
    watch = await fanout_of(store).subscribe("n1", await store.revision())
    await store.close()
    async with asyncio.timeout(5):
        assert [batch async for batch in watch] == []


class _LaggingWatch:
    """The watch of a store whose events come later than the revision that it reports."""

    def __init__(self, progress: Callable[[], int]) -> None:
        self._progress = progress

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[Event, ...]:
        return ()

    @property
    def progress(self) -> int:
        return self._progress()

    def wake(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


class _LaggingStore(MemoryStore):
    """Its newest revision is 9, and its watches are at `reached`."""

    reached = 1

    async def revision(self) -> int:
        return 9

    async def watch(self, prefix: str, *, after_revision: int) -> Any:
        if after_revision == 9:
            return await super().watch(prefix, after_revision=1)
        return _LaggingWatch(lambda: self.reached)


async def test_a_watch_from_the_past_lets_others_run_until_the_events_have_come() -> None:
    """Another server's writes are in etcd before this server's feed has them."""
    store = _LaggingStore()
    subscribing = asyncio.ensure_future(fanout_of(store).subscribe("n1", 1))
    await asyncio.sleep(0.02)
    assert not subscribing.done()
    store.reached = 9
    async with asyncio.timeout(5):
        await (await subscribing).aclose()
    await store.close()


async def test_a_watch_whose_events_never_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_fanout, "CATCH_UP_SECONDS_MAX", 0.02)
    store = _LaggingStore()
    fanout = fanout_of(store)
    with pytest.raises(StoreUnavailableError, match="does not reach its newest revision"):
        await fanout.subscribe("n1", 1)
    assert fanout._task is None
    await store.close()


class _BreakingStore(MemoryStore):
    """Its newest watch can be broken by hand."""

    async def watch(self, prefix: str, *, after_revision: int) -> Any:
        self.newest = await super().watch(prefix, after_revision=after_revision)
        return self.newest

    def break_newest(self) -> None:
        assert self.newest._buffer is not None
        self.newest._buffer.end(RevisionCompactedError(1, 1))


async def test_a_watch_that_failed_promises_nothing_of_what_a_later_one_sees() -> None:
    """A bookmark was due when the events between two watches of the store were compacted."""
    store = _BreakingStore()
    fanout = fanout_of(store)
    broken = await fanout.subscribe("n1", await store.revision())
    started = broken.progress
    store.break_newest()
    await store.create(ENDPOINT.key("default", "missed"), value("n1", 0))
    async with asyncio.timeout(5):
        assert fanout._task is not None
        await asyncio.wait({fanout._task})
        later = await fanout.subscribe("n1", await store.revision())
        broken.wake()
        assert later.progress > started
        with pytest.raises(RevisionCompactedError):
            await anext(broken)
    assert broken.progress == started
    await later.aclose()
    await store.close()


async def test_nothing_follows_the_gap_of_a_watch_that_is_too_far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_fanout, "BUFFER_EVENTS_MAX", 2)
    store = MemoryStore()
    watch = await fanout_of(store).subscribe("n1", await store.revision())
    started = watch.progress
    for number in range(4):
        await store.create(ENDPOINT.key("default", f"p{number}"), value("n1", number))
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        with pytest.raises(WatchOverflowError):
            await anext(watch)
    assert watch.progress == started
    await watch.aclose()
    await store.close()
