"""Events expire a fixed time after their last write, whatever happens to the store; in virtual time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import orjson
import pytest

from dray.api.timestamps import format_time
from dray.apiserver.event_expiry import DELETE_BATCH, EVENTS_PREFIX, LIST_PAGE, EventExpiry
from dray.runtime.tasks import TaskGroup
from dray.sim.replica.virtual_time import START, LoopClock, run_virtually
from dray.store.buffered_watch import BufferedWatch
from dray.store.interface import Entry, EventType, StoreUnavailableError, WatchOverflowError
from dray.store.memory import MemoryStore

TTL = 3600.0
# Expired Events are looked for every ten seconds.
CHECK = 11.0


def event(age_seconds: float = 0.0) -> bytes:
    time = format_time(START - timedelta(seconds=age_seconds))
    return orjson.dumps({"kind": "Event", "metadata": {"creationTimestamp": time}})


def key(name: str) -> str:
    return f"{EVENTS_PREFIX}default/{name}"


class FaultyStore(MemoryStore):
    """A store whose deletions or watches fail on demand, and that counts deletions."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False
        self.deletions = 0
        self.broken_watches = 0

    async def delete(self, key: str, *, expected_revision: int) -> Entry:
        self.deletions += 1
        if self.is_full:
            raise StoreUnavailableError("no space is left")
        return await super().delete(key, expected_revision=expected_revision)

    async def watch(self, prefix: str, *, after_revision: int) -> BufferedWatch:
        if self.broken_watches:
            self.broken_watches -= 1
            raise WatchOverflowError("too slow")
        return await super().watch(prefix, after_revision=after_revision)

    async def names(self) -> list[str]:
        page = await self.list_page("/")
        return [entry.key.rpartition("/")[2] for entry in page.entries]


class SharedStore(FaultyStore):
    shared = True


@asynccontextmanager
async def expiring(store: MemoryStore, *seeds: int) -> AsyncIterator[None]:
    async with TaskGroup("test") as group:
        for seed in seeds or (1,):
            group.spawn(EventExpiry(store, LoopClock(), random.Random(seed), TTL).run(), "expiry")
        await asyncio.sleep(0.1)
        yield
        await group.cancel()


def test_an_event_is_deleted_an_hour_after_its_last_write_and_watchers_see_it() -> None:
    async def body() -> None:
        store = FaultyStore()
        async with expiring(store):
            first = await store.create(key("updated"), event())
            await store.create(key("once"), event())
            await store.create("/registry/core/pods/default/p", b"{}")
            async with await store.watch(EVENTS_PREFIX, after_revision=await store.revision()) as watch:
                await asyncio.sleep(TTL / 2)
                await store.update(key("updated"), event(), expected_revision=first.revision)
                await asyncio.sleep(TTL / 2 + CHECK)
                assert await store.names() == ["updated", "p"]
                await asyncio.sleep(TTL / 2 + CHECK)
                assert await store.names() == ["p"]
                seen = [(change.type, change.entry.key) for change in await anext(aiter(watch))]
            assert seen[1:] == [(EventType.DELETE, key("once")), (EventType.DELETE, key("updated"))]

    run_virtually(body())


def test_events_from_before_a_restart_expire_by_their_times() -> None:
    async def body() -> None:
        store = FaultyStore()
        for number in range(2 * LIST_PAGE):
            await store.create(key(f"old-{number}"), event(age_seconds=2 * TTL))
        await store.create(key("older"), event(age_seconds=TTL / 2))
        await store.create(key("malformed"), b"not JSON")
        async with expiring(store):
            await asyncio.sleep(CHECK + 1)
            assert await store.names() == ["malformed", "older"]
            await asyncio.sleep(TTL / 2)
            assert await store.names() == ["malformed"]
            await asyncio.sleep(TTL / 2)
            assert await store.names() == []

    run_virtually(body())


def test_a_store_that_fails_is_tried_again_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        store = FaultyStore()
        async with expiring(store):
            for number in range(3 * DELETE_BATCH):
                await store.create(key(str(number)), event())
            store.is_full = True
            await asyncio.sleep(TTL + CHECK)
            # One batch at each check, not all of them again and again.
            assert store.deletions <= 2 * DELETE_BATCH
            assert len(await store.names()) == 3 * DELETE_BATCH
            store.is_full = False
            await asyncio.sleep(CHECK)
            assert await store.names() == []

    with caplog.at_level(logging.WARNING):
        run_virtually(body())
    assert [record.getMessage() for record in caplog.records] == ["cannot expire events, retrying: no space is left"]


def test_a_watch_that_overflows_is_started_again_without_losing_times() -> None:
    async def body() -> None:
        store = FaultyStore()
        store.broken_watches = 3
        await store.create(key("a"), event(age_seconds=TTL / 2))
        async with expiring(store):
            await asyncio.sleep(TTL / 2 + CHECK)
            assert await store.names() == []

    run_virtually(body())


def test_several_servers_on_one_store_do_not_delete_twice() -> None:
    async def body() -> None:
        store = SharedStore()
        async with expiring(store, 1, 2, 3):
            for number in range(50):
                await store.create(key(str(number)), event())
            await asyncio.sleep(1.1 * TTL)
            assert await store.names() == []
            assert store.deletions == 50

    run_virtually(body())


def test_a_closed_store_ends_the_expiry() -> None:
    async def body() -> None:
        store = FaultyStore()
        async with TaskGroup("test") as group:
            group.spawn(EventExpiry(store, LoopClock(), random.Random(1), TTL).run(), "expiry")
            await asyncio.sleep(0.1)
            await store.close()
            await group.wait()

    run_virtually(body())
