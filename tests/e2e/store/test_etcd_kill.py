"""The history of a real etcd that is killed again and again is linearizable, and watches miss nothing of it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from dray.store.etcd import EtcdStore
from dray.store.interface import (
    Entry,
    Event,
    EventType,
    KeyExistsError,
    KeyNotFoundError,
    RevisionConflictError,
    StoreUnavailableError,
)
from tests.conformance.store.conftest import EtcdProcess
from tests.simulation.store_history import Create, Delete, Exists, Read, Seen, StoreHistory, Update, Written, seen

KILLS = 3
CLIENTS = 4
OPERATIONS_BETWEEN_KILLS = 60
KEYS = [f"/pods/{number}" for number in range(4)]
WAIT_SECONDS = 120


class _Clients:
    """Clients that write, read and go on after every failure."""

    def __init__(self, stores: list[EtcdStore]) -> None:
        self.history = StoreHistory()
        self.done = 0
        self._stores = stores
        self._values = 0

    async def use(self, rng: random.Random) -> None:
        known: dict[str, Entry | None] = {}
        while True:
            key, store = rng.choice(KEYS), rng.choice(self._stores)
            entry = known.get(key)
            called = self.history.tick()
            self._values += 1
            value = b"%d" % self._values
            request: Create | Update | Delete | Read = Read()
            try:
                if rng.random() < 0.3:
                    found = known[key] = await store.get(key)
                    result: object = seen(found)
                elif entry is None:
                    request = Create(value)
                    written = known[key] = await store.create(key, value)
                    result = Written(written.revision)
                elif rng.random() < 0.8:
                    request = Update(value, entry.revision)
                    written = known[key] = await store.update(key, value, expected_revision=entry.revision)
                    result = Written(written.revision)
                else:
                    request = Delete(entry.revision)
                    result = Written((await store.delete(key, expected_revision=entry.revision)).revision)
                    known[key] = None
            except StoreUnavailableError:
                self.history.record_unknown(key, called, request)
                await asyncio.sleep(0.02)
                continue
            except KeyExistsError:
                result = Exists()
            except KeyNotFoundError:
                result, known[key] = Seen(0), None
            except RevisionConflictError as error:
                result, known[key] = seen(error.current), error.current
            self.history.record(key, called, request, result)
            self.done += 1

    async def wait_for(self, operations: int) -> None:
        target = self.done + operations
        async with asyncio.timeout(WAIT_SECONDS):
            while self.done < target:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.01)


async def _watch(store: EtcdStore, after: int, events: list[Event]) -> None:
    async with await store.watch("/pods/", after_revision=after) as watch:
        async for batch in watch:
            events.extend(batch)


async def test_a_history_with_kills_is_linearizable(tmp_path: Path) -> None:
    etcd = EtcdProcess(tmp_path / "etcd")
    etcd.start()
    try:
        stores = [await EtcdStore.connect([etcd.endpoint], prefix="/killed") for _ in range(2)]
        start = await stores[0].revision()
        events: list[Event] = []
        clients = _Clients(stores)
        tasks = [asyncio.ensure_future(_watch(stores[0], start, events))]
        tasks += [asyncio.ensure_future(clients.use(random.Random(number))) for number in range(CLIENTS)]
        for _ in range(KILLS):
            await clients.wait_for(OPERATIONS_BETWEEN_KILLS)
            etcd.stop()
            await asyncio.sleep(0.1)
            await asyncio.to_thread(etcd.start)
        await clients.wait_for(OPERATIONS_BETWEEN_KILLS)
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks[1:], return_exceptions=True)
        # The last event of the watch tells that it has everything before.
        last = await _written(stores[1])
        async with asyncio.timeout(WAIT_SECONDS):
            while not events or events[-1].revision < last.revision:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        tasks[0].cancel()
        clients.history.check()
        page = await stores[1].list_page("/pods/")
        assert _replayed(events) == {entry.key: entry for entry in page.entries}
        for store in stores:
            await store.close()
    finally:
        etcd.stop()


async def _written(store: EtcdStore) -> Entry:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                return await store.create("/pods/last", b"")
            except StoreUnavailableError:
                await asyncio.sleep(0.05)


def _replayed(events: list[Event]) -> dict[str, Entry]:
    """Return the state after the events, each of which continues the one before it of its key."""
    state: dict[str, Entry] = {}
    revisions = [event.revision for event in events]
    assert revisions == sorted(set(revisions))
    for event in events:
        assert event.previous == state.get(event.entry.key)
        if event.type is EventType.PUT:
            state[event.entry.key] = event.entry
        else:
            del state[event.entry.key]
    return state
