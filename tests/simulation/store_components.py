"""Components in the process of a SQLite store that see and acknowledge writes before they are committed.

Each of them lists, watches and writes what its watch shows, until the process ends or the store is rolled back; then it
starts anew. Checked: its watch shows every revision once and in order, each write following the one before it; what it
has seen up to the committed revision is what was committed; and it is never ahead while the disk refuses writes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from dray.store.interface import (
    AsynchronousCommit,
    Entry,
    Event,
    EventType,
    KeyExistsError,
    KeyNotFoundError,
    RevisionCompactedError,
    RevisionConflictError,
    RolledBackError,
    StoreUnavailableError,
)
from tests.simulation.faults import Faults
from tests.simulation.store_history import Create, Delete, StoreHistory, Truth, Update
from tests.simulation.store_machines import Life, Machine

OPERATIONS_EACH = 40
PREFIX = "/pods/"
REFUSED = (KeyExistsError, KeyNotFoundError, RevisionConflictError)


class Component:
    """Writes through a view with asynchronous commit, and checks what it sees."""

    def __init__(
        self,
        machine: Machine,
        rng: random.Random,
        faults: Faults,
        history: StoreHistory,
        keys: Sequence[str],
        new_value: Callable[[], bytes],
    ) -> None:
        self._machine = machine
        self._rng = rng
        self._faults = faults
        self._history = history
        self._keys = keys
        self._new_value = new_value
        self._operations = OPERATIONS_EACH
        # Of the present start: the state that the watch shows, its revision, and the events that it has shown.
        self._state: dict[str, Entry] = {}
        self._revision = 0
        self._shown: list[Event] = []

    async def run(self) -> None:
        """Perform all operations."""
        while self._operations:
            life = await self._machine.current()
            store = life.store.with_asynchronous_commit()
            assert store is not None
            rolled_back: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            store.on_roll_back(partial(_resolve, rolled_back))
            await self._live(life, store, rolled_back)
            committed = rolled_back.result() if rolled_back.done() else self._machine.truth.revision
            self._faults.paths["rolled back"] += rolled_back.done()
            self._check_shown(self._machine.truth, committed)

    async def _live(self, life: Life, store: AsynchronousCommit, rolled_back: asyncio.Future[int]) -> None:
        """Work until the life of the process or of what was shown ends."""
        await _first_of(self._work(store), life.ended.wait(), _wait_for(rolled_back))

    async def _work(self, store: AsynchronousCommit) -> None:
        while self._operations:
            try:
                page = await store.list_page(PREFIX)
                self._state = {entry.key: entry for entry in page.entries}
                self._revision, self._shown = page.revision, []
                await _first_of(self._watch(store), self._write_all(store))
            except (RevisionCompactedError, StoreUnavailableError):
                await asyncio.sleep(self._rng.uniform(0.0, 0.2))
            except RolledBackError:
                return

    async def _watch(self, store: AsynchronousCommit) -> None:
        async with await store.watch(PREFIX, after_revision=self._revision) as watch:
            async for batch in watch:
                for event in batch:
                    self._show(event)

    def _show(self, event: Event) -> None:
        self._faults.steps += 1
        assert event.revision == self._revision + 1, f"revision {event.revision} is shown after {self._revision}"
        key = event.entry.key
        assert event.previous == self._state.get(key), f"{event} does not follow what was shown"
        if event.revision > self._machine.truth.revision:
            self._faults.paths["shown before the commit"] += 1
        self._revision = event.revision
        self._shown.append(event)
        if event.type is EventType.PUT:
            # Whoever wrote it may not have got an answer, and others go on from here.
            self._history.record_revision_of(event.entry.value, event.revision)
            self._state[key] = event.entry
        else:
            del self._state[key]

    async def _write_all(self, store: AsynchronousCommit) -> None:
        while self._operations:
            self._operations -= 1
            # Mostly at once, so that several writes are on their way to disk.
            await asyncio.sleep(0.0 if self._rng.random() < 0.8 else self._rng.uniform(0.0, 0.3))
            try:
                await self._write(store, self._rng.choice(self._keys))
            except REFUSED:
                # Another one was faster; the watch shows it.
                continue

    async def _write(self, store: AsynchronousCommit, key: str) -> None:
        known, value = self._state.get(key), self._new_value()
        called = self._history.tick()
        # Whether it is committed is not known when it is acknowledged.
        if known is None:
            self._history.record_unknown(key, called, Create(value))
            written = await store.create(key, value)
        elif self._rng.random() < 0.7:
            self._history.record_unknown(key, called, Update(value, known.revision))
            written = await store.update(key, value, expected_revision=known.revision)
        else:
            self._history.record_unknown(key, called, Delete(known.revision))
            await store.delete(key, expected_revision=known.revision)
            return
        found = await store.get(key)
        assert found is None or found.revision >= written.revision, "an acknowledged write is not shown"

    def _check_shown(self, truth: Truth, committed: int) -> None:
        """What was shown up to the committed revision was committed, and nothing else was."""
        expected = {event.revision: event for event in truth.events}
        for event in self._shown:
            if event.revision <= committed:
                assert expected[event.revision] == event, f"{event} was shown, {expected[event.revision]} is committed"
        self._shown = []


async def _first_of(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Return or raise as the first of them does; the others are cancelled."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if task in done:
            task.result()


async def _wait_for(future: asyncio.Future[int]) -> None:
    await asyncio.wait({future})


def _resolve(future: asyncio.Future[int], revision: int) -> None:
    if not future.done():
        future.set_result(revision)
