"""A random history of writes, read back through lists and watches of any kept revision, is that history."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dray.store import sqlite as sqlite_module
from dray.store.index import EntryIndex, OrderedKeys
from dray.store.interface import Entry, Event, EventType, Page, RevisionCompactedError, Store
from dray.store.memory import MemoryStore
from dray.store.sqlite import SQLiteStore
from dray.store.watch_hub import covers

KEYS = [
    f"/registry/{kind}/{namespace}/{name}" for kind in ("a", "ab") for namespace in "xy" for name in ("1", "2", "10")
]
PREFIXES = ["/", "/registry/", "/registry/a/", "/registry/a/x/", "/registry/ab/y/", KEYS[0], "/registry/none/"]
WAIT_SECONDS = 10
# At most this many events are remembered, so that the past comes from the file too.
RECENT_EVENTS = 4


@dataclass(frozen=True)
class Step:
    """A write of a key: what it does depends on whether the key is there."""

    key: str
    delete: bool
    value: bytes


steps = st.lists(st.builds(Step, st.sampled_from(KEYS), st.booleans(), st.binary(max_size=3)), min_size=1, max_size=40)


class Model:
    """The plain slow store: a copy of everything after each write."""

    def __init__(self, revision: int) -> None:
        self.events: list[Event] = []
        self.states: dict[int, dict[str, Entry]] = {revision: {}}
        self.revision = revision

    def record(self, event: Event) -> None:
        state = dict(self.states[self.revision])
        if event.type is EventType.PUT:
            state[event.entry.key] = event.entry
        else:
            del state[event.entry.key]
        self.events.append(event)
        self.revision = event.revision
        self.states[event.revision] = state

    def page(self, prefix: str, *, limit: int, start_after: str, revision: int) -> Page:
        state = self.states[revision]
        keys = sorted(key for key in state if key.startswith(prefix) and key > start_after)
        cut = keys[:limit] if limit else keys
        return Page(tuple(state[key] for key in cut), revision, len(keys) - len(cut))


async def perform(store: Store, model: Model, step: Step) -> None:
    current = model.states[model.revision].get(step.key)
    if current is None:
        entry = await store.create(step.key, step.value)
        model.record(Event(EventType.PUT, entry, None))
    elif step.delete:
        entry = await store.delete(step.key, expected_revision=current.revision)
        model.record(Event(EventType.DELETE, entry, current))
    else:
        entry = await store.update(step.key, step.value, expected_revision=current.revision)
        model.record(Event(EventType.PUT, entry, current))


async def check_list(store: Store, model: Model, *, prefix: str, limit: int, start_after: str, revision: int) -> None:
    expected = model.page(prefix, limit=limit, start_after=start_after, revision=revision)
    assert await store.list_page(prefix, limit=limit, start_after=start_after, revision=revision) == expected


async def check_watch(store: Store, model: Model, *, prefix: str, revision: int) -> None:
    expected = [event for event in model.events if event.revision > revision and covers(prefix, event.entry.key)]
    seen: list[Event] = []
    async with asyncio.timeout(WAIT_SECONDS), await store.watch(prefix, after_revision=revision) as watch:
        while len(seen) < len(expected):
            seen.extend(await anext(aiter(watch)))
    assert seen == expected


async def open_store(backend: str, path: Path) -> Store:
    if backend == "memory":
        return MemoryStore()
    store = await SQLiteStore.open(path)
    return store.with_asynchronous_commit() if backend == "asynchronous" else store


@asynccontextmanager
async def opened(backend: str, directory: str) -> AsyncIterator[Store]:
    store = await open_store(backend, Path(directory) / "store.db")
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture(autouse=True)
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_module, "RECENT_EVENTS_MAX", RECENT_EVENTS)
    monkeypatch.setattr(sqlite_module, "REPLAY_ROWS_MAX", 3)
    monkeypatch.setattr(sqlite_module, "SWEEP_REVISIONS_MAX", 5)


few = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("backend", ["memory", "sqlite", "asynchronous"])
@few
@given(steps=steps, data=st.data())
def test_any_past_reads_back(backend: str, steps: Sequence[Step], data: st.DataObject) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory:
            await check_in(directory)

    async def check_in(directory: str) -> None:
        async with opened(backend, directory) as store:
            model = Model(await store.revision())
            for step in steps:
                await perform(store, model, step)
            compacted = data.draw(st.sampled_from([0, *model.states]))
            if compacted:
                await store.compact(compacted)
            await check_reads(store, model, data, compacted)

    asyncio.run(run())


async def check_reads(store: Store, model: Model, data: st.DataObject, compacted: int) -> None:
    for _ in range(5):
        prefix = data.draw(st.sampled_from(PREFIXES))
        revision = data.draw(st.sampled_from(list(model.states)))
        limit = data.draw(st.integers(0, 4))
        start_after = data.draw(st.sampled_from(["", *KEYS]))
        if revision < compacted:
            with pytest.raises(RevisionCompactedError):
                await check_list(store, model, prefix=prefix, limit=0, start_after="", revision=revision)
            with pytest.raises(RevisionCompactedError):
                await check_watch(store, model, prefix=prefix, revision=revision)
        else:
            await check_list(store, model, prefix=prefix, limit=limit, start_after=start_after, revision=revision)
            await check_watch(store, model, prefix=prefix, revision=revision)


@few
@given(steps=steps, data=st.data())
def test_a_reopened_file_is_the_same_store(steps: Sequence[Step], data: st.DataObject) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with opened("sqlite", directory) as store:
                model = Model(await store.revision())
                for step in steps:
                    await perform(store, model, step)
                compacted = data.draw(st.sampled_from([0, *model.states]))
                await store.compact(compacted)
            async with opened("sqlite", directory) as again:
                assert await again.revision() == model.revision
                assert await again.compacted_revision() == compacted
                await check_reads(again, model, data, compacted)
                await perform(again, model, steps[0])

    asyncio.run(run())


@given(
    changes=st.lists(st.tuples(st.text("ab/", max_size=4), st.booleans()), max_size=60),
    prefix=st.text("ab/", max_size=3),
)
def test_ordered_keys_are_a_sorted_set(changes: list[tuple[str, bool]], prefix: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dray.store.index.CHUNK_KEYS_MAX", 4)
        index, plain = EntryIndex(), dict[str, Entry]()
        for key, add in changes:
            if add:
                index.put(Entry(key, b"", 1, 1))
                plain[key] = Entry(key, b"", 1, 1)
            elif key in plain:
                index.remove(key)
                del plain[key]
        expected = [plain[key] for key in sorted(plain) if key.startswith(prefix)]
        assert index.page(prefix, limit=0, start_after="") == (expected, 0)
        assert index.count(prefix) == len(expected)
        rebuilt = OrderedKeys(plain)
        assert [key for keys in rebuilt.between((0, 0), rebuilt.end()) for key in keys] == sorted(plain)
