"""A store with concurrent clients, watchers and compactions, which crashes and loses answers at any step.

Checked: the history is linearizable, revisions are given once and in the order of time, lists are the state of their
revision, and watches keep the guarantees of etcd. Nothing that was acknowledged is lost. Components in the process of
the store see more (`store_components`), and nobody else does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from dray.store.interface import (
    Entry,
    Event,
    FutureRevisionError,
    KeyExistsError,
    KeyNotFoundError,
    RevisionCompactedError,
    RevisionConflictError,
    Store,
    StoreUnavailableError,
    Watch,
    WatchOverflowError,
)
from tests.simulation.faults import Faults
from tests.simulation.store_components import Component
from tests.simulation.store_history import (
    Create,
    Delete,
    Exists,
    Read,
    Seen,
    StoreHistory,
    Truth,
    Update,
    Written,
    seen,
)
from tests.simulation.store_machines import DECLARED, Life, Machine, etcd_machines, refreshed, sqlite_machines
from tests.simulation.watch_checks import WatchRecord

CLIENTS = 5
WATCHERS = 4
OPERATIONS_EACH = 60
KEYS = [f"/pods/{namespace}/{name}" for namespace in ("a", "b") for name in ("1", "2", "3", "4")]
PREFIXES = ["/pods/", "/pods/a/", "/pods/b/", KEYS[0]]
QUIET_SECONDS = 12.0

CLIENT_FAULTS = {
    # The client goes away while its request is carried out.
    "client_gone": 0.02,
    "compaction": 0.05,
    # A watcher ends its watch and resumes, or starts over at any revision that is kept.
    "watch_resumed": 0.05,
    "watch_rewound": 0.02,
}

_BACKENDS: dict[str, Callable[[random.Random, Faults], AbstractAsyncContextManager[list[Machine]]]] = {
    "sqlite": sqlite_machines,
    "etcd": etcd_machines,
}


class _LifeEndedError(Exception):
    """The process ended before it answered."""


class StoreSimulation:
    """One run of one kind of store."""

    def __init__(self, seed: int, backend: str, components: int = 0) -> None:
        self.rates = Faults(**DECLARED[backend], **CLIENT_FAULTS)
        self.story: list[str] = []
        self._rng = random.Random(seed)
        self._backend = backend
        # In the process of the store, with asynchronous commit.
        self._components = components
        self._history = StoreHistory()
        self._values = 0
        self._records: list[WatchRecord[Event]] = []
        self._done = False

    async def run(self) -> None:
        """Run to the end; raises `AssertionError` for a broken promise."""
        loop: Any = asyncio.get_running_loop()
        loop.rng = random.Random(self._rng.random())
        async with _BACKENDS[self._backend](self._rng, self.rates) as machines:
            async with asyncio.TaskGroup() as group:
                processes = [group.create_task(machine.run()) for machine in machines]
                watchers = [
                    group.create_task(self._watch(random.Random(self._rng.random()), machines)) for _ in range(WATCHERS)
                ]
                clients = [self._use(random.Random(self._rng.random()), machines) for _ in range(CLIENTS)]
                components = [self._component(machines[0]).run() for _ in range(self._components)]
                await asyncio.gather(*clients, *components)
                self._heal(machines)
                await self._settle(machines)
                for task in (*watchers, *processes):
                    task.cancel()
            truth = refreshed(machines[0].truth)
            for record in self._records:
                record.finish(truth.revision)
            self._history.check()

    def _component(self, machine: Machine) -> Component:
        rng = random.Random(self._rng.random())
        return Component(machine, rng, self.rates, self._history, KEYS, self._value)

    def _heal(self, machines: list[Machine]) -> None:
        self.rates.on = False
        for machine in machines:
            machine.heal()
        self._tell(f"faults end; revision {refreshed(machines[0].truth).revision}")

    async def _settle(self, machines: list[Machine]) -> None:
        """Wait until everything is back, read everything, and until every watcher has got everything."""
        await asyncio.sleep(QUIET_SECONDS)
        for machine in machines:
            for key in KEYS:
                await self._read(await machine.current(), key)
            store = (await machine.current()).store
            page = await store.list_page("/pods/")
            truth = refreshed(machine.truth)
            truth.check_page("/pods/", page)
            assert {entry.key for entry in page.entries} == set(truth.state_at(truth.revision))
        await asyncio.sleep(QUIET_SECONDS)

    # --- clients ---

    async def _use(self, rng: random.Random, machines: list[Machine]) -> None:
        known: dict[str, Entry | None] = {}
        for _ in range(OPERATIONS_EACH):
            await asyncio.sleep(rng.uniform(0.0, 0.02) if rng.random() < 0.9 else rng.uniform(0.0, 1.0))
            life = await rng.choice(machines).current()
            self.rates.steps += 1
            if rng.random() < 0.1:
                await self._list(life, rng, machines[0].truth)
            elif self.rates.happens("compaction", rng):
                await self._compact(life, rng)
            else:
                await self._write_or_read(life, rng, known)

    async def _write_or_read(self, life: Life, rng: random.Random, known: dict[str, Entry | None]) -> None:
        key = rng.choice(KEYS)
        entry = known.get(key)
        what = rng.random()
        gone = self.rates.happens("client_gone", rng)
        if what < 0.3:
            found = await self._perform(life, key, Read(), lambda store: store.get(key), gone=gone)
            if isinstance(found, Entry | None):
                known[key] = found
            return
        request: Create | Update | Delete
        value = self._value()
        if entry is None:
            request = Create(value)
            result = self._perform(life, key, request, lambda store: store.create(key, value), gone=gone)
        elif what < 0.8:
            request = Update(value, entry.revision)
            result = self._perform(
                life,
                key,
                request,
                lambda store: store.update(key, value, expected_revision=entry.revision),
                gone=gone,
            )
        else:
            request = Delete(entry.revision)
            result = self._perform(
                life, key, request, lambda store: store.delete(key, expected_revision=entry.revision), gone=gone
            )
        outcome = await result
        if isinstance(outcome, Entry):
            known[key] = None if isinstance(request, Delete) else outcome
        elif rng.random() < 0.8:
            # Usually the client reads next; sometimes it goes on with what it has.
            known[key] = await self._read(life, key) if not life.ended.is_set() else None

    async def _read(self, life: Life, key: str) -> Entry | None:
        found = await self._perform(life, key, Read(), lambda store: store.get(key))
        return found if isinstance(found, Entry) else None

    async def _perform(
        self,
        life: Life,
        key: str,
        request: Create | Update | Delete | Read,
        call: Callable[[Store], Awaitable[Entry | None]],
        *,
        gone: bool = False,
    ) -> object:
        """Make a call and record what it answered; return the entry, or what else came."""
        called = self._history.tick()
        try:
            entry = await self._answered(life, call, gone=gone)
        except KeyExistsError:
            result: object = Exists()
        except KeyNotFoundError:
            result = Seen(0)
        except RevisionConflictError as error:
            result = seen(error.current)
        except (StoreUnavailableError, _LifeEndedError) as error:
            self._history.record_unknown(key, called, request)
            self._tell(f"{key} {request} unknown: {error!r}")
            return error
        else:
            result = seen(entry) if isinstance(request, Read) else Written(entry.revision)
            self._history.record(key, called, request, result)
            self._tell(f"{key} {request} -> {result}")
            return entry
        self._history.record(key, called, request, result)
        self._tell(f"{key} {request} -> {result}")
        return result

    async def _answered(self, life: Life, call: Callable[[Store], Awaitable[Any]], *, gone: bool = False) -> Any:
        """Return the answer of a call unless the process or the client ends before."""
        answer = asyncio.ensure_future(_as_coroutine(call(life.store)))
        ended = asyncio.ensure_future(life.ended.wait())
        patience = self._rng.uniform(0.0, 0.01) if gone else None
        try:
            await asyncio.wait({answer, ended}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if answer.done() and not ended.done():
                return answer.result()
            raise _LifeEndedError
        finally:
            for task in (answer, ended):
                task.cancel()
            await asyncio.gather(answer, ended, return_exceptions=True)

    async def _list(self, life: Life, rng: random.Random, truth: Truth) -> None:
        prefix = rng.choice(PREFIXES[:3])
        called = self._history.tick()
        try:
            if rng.random() < 0.5:
                page = await self._answered(life, lambda store: store.list_page(prefix))
                self._history.record_page([key for key in KEYS if key.startswith(prefix)], called, page)
            else:
                past = rng.randint(1, max(refreshed(truth).revision, 1))
                page = await self._answered(life, lambda store: store.list_page(prefix, revision=past))
        except (RevisionCompactedError, StoreUnavailableError, FutureRevisionError, _LifeEndedError):
            return
        else:
            refreshed(truth).check_page(prefix, page)

    async def _compact(self, life: Life, rng: random.Random) -> None:
        called = self._history.tick()
        try:
            revision = await self._answered(life, lambda store: store.revision())
            self._history.record_revision(called, revision)
            compacted = await self._answered(life, lambda store: store.compacted_revision())
            target = rng.randint(min(compacted, revision), revision)
            await self._answered(life, lambda store: store.compact(target))
            self._tell(f"compacted to {target}")
        except (StoreUnavailableError, FutureRevisionError, RevisionCompactedError, _LifeEndedError):
            return

    def _value(self) -> bytes:
        self._values += 1
        # Some values fill several pages.
        return b"%d-" % self._values + b"x" * self._rng.choice((0, 0, 0, 100, 5_000))

    # --- watchers ---

    async def _watch(self, rng: random.Random, machines: list[Machine]) -> None:
        prefix = rng.choice(PREFIXES)
        start = 1
        while True:
            record = self._record(prefix, start, machines[0].truth)
            self._records.append(record)
            try:
                start = await self._follow(machines, rng, prefix, record)
            except (RevisionCompactedError, WatchOverflowError) as error:
                self._tell(f"watch of {prefix} from {record.position}: {error}")
                start = await self._relist(machines, rng, prefix)
            # What follows is another watch; this one was only checked as far as it came.
            self._records.remove(record)

    async def _follow(
        self, machines: list[Machine], rng: random.Random, prefix: str, record: WatchRecord[Event]
    ) -> int:
        """Watch, and resume the watch wherever it ends; return the revision to start over at."""
        while not self.rates.happens("watch_rewound", rng):
            life = await rng.choice(machines).current()
            try:
                await self._watch_once(life, rng, prefix, record, machines[0].truth)
            except (StoreUnavailableError, FutureRevisionError, _LifeEndedError):
                await asyncio.sleep(rng.uniform(0.0, 0.2))
        return rng.randint(1, record.position)

    async def _relist(self, machines: list[Machine], rng: random.Random, prefix: str) -> int:
        while True:
            life = await rng.choice(machines).current()
            try:
                page = await self._answered(life, lambda store: store.list_page(prefix))
            except (StoreUnavailableError, RevisionCompactedError, _LifeEndedError):
                await asyncio.sleep(0.05)
            else:
                return int(page.revision)

    async def _watch_once(
        self, life: Life, rng: random.Random, prefix: str, record: WatchRecord[Event], truth: Truth
    ) -> None:
        watch: Watch = await self._answered(life, lambda store: store.watch(prefix, after_revision=record.position))
        async with watch:
            while not self.rates.happens("watch_resumed", rng):
                batch = await self._batch(life, watch, rng)
                if batch is None:
                    return
                self.rates.steps += len(batch)
                refreshed(truth)
                record.receive([(event.revision, event) for event in batch])
                if rng.random() < 0.3:
                    record.bookmark(watch.progress)
                if rng.random() < 0.1:
                    await asyncio.sleep(rng.uniform(0.0, 0.5))

    async def _batch(self, life: Life, watch: Watch, rng: random.Random) -> tuple[Event, ...] | None:
        """Return the next batch, empty after a while without events; None at the end of the watch."""
        timer = asyncio.get_running_loop().call_later(rng.uniform(0.1, 2.0), watch.wake)
        try:
            batch: tuple[Event, ...] = await self._answered(life, lambda _: anext(aiter(watch)))
        except StopAsyncIteration:
            return None
        else:
            return batch
        finally:
            timer.cancel()

    def _record(self, prefix: str, start: int, truth: Truth) -> WatchRecord[Event]:
        def expected(after: int, until: int) -> list[tuple[int, Event]]:
            return [(event.revision, event) for event in truth.between(prefix, after, until)]

        return WatchRecord(start, expected)

    def _tell(self, text: str) -> None:
        self.story.append(f"{asyncio.get_running_loop().time():9.4f} {text}")


async def _as_coroutine(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
