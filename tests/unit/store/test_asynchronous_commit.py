"""The view with asynchronous commit: who sees a write when, and what a disk that refuses it takes back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dray.store import pending_writes, watch_hub
from dray.store.interface import (
    AsynchronousCommit,
    Event,
    KeyExistsError,
    RolledBackError,
    StoreUnavailableError,
    Watch,
)
from dray.store.sqlite import SQLiteStore
from dray.store.state import plan_create
from dray.store.writer import Write, WriterThread
from tests.disk_faults import full_disk, slow_disk

PODS = "/registry/core/pods/ns/"
WAIT_SECONDS = 20


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    opened = await SQLiteStore.open(tmp_path / "store.db")
    yield opened
    await opened.close()


@pytest.fixture
def view(store: SQLiteStore) -> AsynchronousCommit:
    return store.with_asynchronous_commit()


async def next_events(watch: Watch) -> tuple[Event, ...]:
    async with asyncio.timeout(WAIT_SECONDS):
        return await anext(aiter(watch))


async def test_a_write_is_visible_in_the_view_and_nowhere_else_until_it_is_committed(
    store: SQLiteStore, view: AsynchronousCommit
) -> None:
    inside, outside = await view.watch(PODS, after_revision=1), await store.watch(PODS, after_revision=1)
    following = asyncio.ensure_future(next_events(outside))
    with slow_disk(store):
        created = await view.create(f"{PODS}a", b"1")
        assert await view.get(f"{PODS}a") == created
        assert [event.entry for event in await next_events(inside)] == [created]
        assert view.committed(f"{PODS}a") is None
        assert await store.get(f"{PODS}a") is None
        assert (await store.list_page(PODS)).entries == ()
        assert not following.done()
    assert [event.entry for event in await following] == [created]
    assert await store.get(f"{PODS}a") == view.committed(f"{PODS}a") == created


async def test_writes_of_the_view_and_of_others_exclude_each_other(
    store: SQLiteStore, view: AsynchronousCommit
) -> None:
    with slow_disk(store):
        created = await view.create(f"{PODS}a", b"1")
        refused = asyncio.ensure_future(store.create(f"{PODS}a", b"2"))
        with pytest.raises(KeyExistsError):
            await view.create(f"{PODS}a", b"3")
        updated = await view.update(f"{PODS}a", b"4", expected_revision=created.revision)
        assert not refused.done()
    with pytest.raises(KeyExistsError):
        await refused
    assert await view.get(f"{PODS}a") == updated


async def test_lists_and_counts_of_the_view_have_its_own_writes(store: SQLiteStore, view: AsynchronousCommit) -> None:
    created = [await view.create(f"{PODS}{number}", b"") for number in range(3)]
    assert list((await view.list_page(PODS)).entries) == created
    await view.delete(created[0].key, expected_revision=created[0].revision)
    assert await view.count(PODS) == 2


async def test_a_write_that_somebody_waits_for_does_not_wait_for_a_pause(
    store: SQLiteStore, view: AsynchronousCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_writes, "QUIET_ITERATIONS", 1_000_000)
    monkeypatch.setattr(pending_writes, "DELAY_SECONDS_MAX", 3600.0)
    first = await view.create(f"{PODS}a", b"")
    assert await store.get(first.key) is None
    async with asyncio.timeout(WAIT_SECONDS):
        second = await store.create(f"{PODS}b", b"")
        assert (await store.list_page(PODS)).entries == (first, second)
        third = await view.create(f"{PODS}c", b"")
        assert (await view.list_page(PODS)).entries == (first, second, third)


async def test_while_many_writes_are_on_their_way_further_ones_are_shown_at_the_next_commit(
    store: SQLiteStore, view: AsynchronousCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_writes, "SHOWN_AT_ONCE_MAX", 1)
    inside = await view.watch(PODS, after_revision=1)
    with slow_disk(store):
        first = await view.create(f"{PODS}a", b"")
        assert [event.entry for event in await next_events(inside)] == [first]
        others = [asyncio.ensure_future(view.create(f"{PODS}{name}", b"")) for name in "bcd"]
        following = asyncio.ensure_future(next_events(inside))
        for _ in range(10 * pending_writes.QUIET_ITERATIONS):
            await asyncio.sleep(0)
        assert not any(task.done() for task in (*others, following))
    created = await asyncio.gather(*others)
    assert [event.entry for event in await following] == created
    # Whoever asks for one of them sees it, and all before it.
    with slow_disk(store):
        await view.create(f"{PODS}e", b"")
        writing = asyncio.ensure_future(view.create(f"{PODS}f", b""))
        await asyncio.sleep(0)
        found = await view.get(f"{PODS}f")
        assert found is not None
        assert await writing == found


@pytest.mark.parametrize(("iterations", "seconds"), [(1, 3600.0), (1_000_000, 0.001)])
async def test_writes_of_the_view_are_committed_after_a_pause_or_a_while(
    store: SQLiteStore, view: AsynchronousCommit, monkeypatch: pytest.MonkeyPatch, iterations: int, seconds: float
) -> None:
    monkeypatch.setattr(pending_writes, "QUIET_ITERATIONS", iterations)
    monkeypatch.setattr(pending_writes, "DELAY_SECONDS_MAX", seconds)
    outside = await store.watch(PODS, after_revision=1)
    created = await view.create(f"{PODS}a", b"")
    assert [event.entry for event in await next_events(outside)] == [created]


async def test_writes_with_short_pauses_between_them_are_committed_together(
    store: SQLiteStore, view: AsynchronousCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_writes, "QUIET_ITERATIONS", 6)
    monkeypatch.setattr(pending_writes, "DELAY_SECONDS_MAX", 3600.0)
    submitted: list[int] = []
    submit = WriterThread.submit

    def count(writer: WriterThread, writes: list[Write]) -> None:
        submitted.append(len(writes))
        submit(writer, writes)

    monkeypatch.setattr(WriterThread, "submit", count)
    for number in range(6):
        await view.create(f"{PODS}{number}", b"")
        for _ in range(4):
            await asyncio.sleep(0)
    assert submitted == []
    for _ in range(4):
        await asyncio.sleep(0)
    assert submitted == [6]


async def test_writes_that_a_full_disk_refuses_are_rolled_back_once(
    store: SQLiteStore, view: AsynchronousCommit
) -> None:
    kept = await store.create(f"{PODS}kept", b"")
    rollbacks: list[int] = []
    view.on_roll_back(rollbacks.append)
    watch = await view.watch(PODS, after_revision=kept.revision)
    with full_disk():
        lost = await view.create(f"{PODS}lost", b"x" * 100_000)
        assert [event.entry for event in await next_events(watch)] == [lost]
        with pytest.raises(RolledBackError):
            await next_events(watch)
        assert rollbacks == [kept.revision]
        assert await view.get(f"{PODS}lost") is None
        assert await view.revision() == kept.revision
        # Until a write succeeds, nothing is acknowledged or shown that may be taken back.
        again = await view.watch(PODS, after_revision=kept.revision)
        with pytest.raises(StoreUnavailableError):
            await view.create(f"{PODS}refused", b"x" * 100_000)
    assert rollbacks == [kept.revision]
    created = await view.create(f"{PODS}a", b"")
    assert [event.entry for event in await next_events(again)] == [created]
    with slow_disk(store):
        ahead = await view.create(f"{PODS}b", b"")
        assert [event.entry for event in await next_events(again)] == [ahead]
    assert (await view.list_page(PODS)).entries == (created, ahead, kept)


async def test_a_write_that_is_taken_back_before_its_caller_continues_is_refused(
    store: SQLiteStore, view: AsynchronousCommit
) -> None:
    rollbacks: list[int] = []
    view.on_roll_back(rollbacks.append)
    reported = threading.Event()
    with full_disk():
        with slow_disk(store):
            failing = asyncio.ensure_future(store.create(f"{PODS}failing", b"x" * 100_000))
            for _ in range(2):
                await asyncio.sleep(0)
            store._writer.submit_task(lambda _: reported.set())
            writing = asyncio.ensure_future(view.create(f"{PODS}a", b""))
            await asyncio.sleep(0)
        # The next iteration of the event loop shows the write, then learns of the failure; then the caller continues.
        assert reported.wait(WAIT_SECONDS)
        with pytest.raises(StoreUnavailableError):
            await writing
        with pytest.raises(StoreUnavailableError):
            await failing
    assert rollbacks == [1]


@pytest.mark.parametrize("deletes", [False, True])
async def test_a_write_that_is_committed_before_another_one_fails_is_acknowledged(
    store: SQLiteStore, view: AsynchronousCommit, deletes: bool
) -> None:
    reported = threading.Event()
    known = await store.create(f"{PODS}known", b"") if deletes else None
    # Leaves space for another small write in the log.
    await store._writer.run(lambda connection: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone())
    with full_disk():
        with slow_disk(store):
            writing = asyncio.ensure_future(
                view.create(f"{PODS}a", b"")
                if known is None
                else view.delete(known.key, expected_revision=known.revision)
            )
            await asyncio.sleep(0)
            store._writes.submit()
            # Keeps the two writes from sharing a commit.
            store._writer.submit_task(lambda _: None)
            failing = store._writes.queue(
                plan_create(f"{PODS}failing", b"x" * 100_000, None, store._writes.planned + 1)
            )
            store._writes.submit()
            store._writer.submit_task(lambda _: reported.set())
        # The next iteration of the event loop shows the write, and learns of the commit and of the failure.
        assert reported.wait(WAIT_SECONDS)
        written = await writing
        with pytest.raises(StoreUnavailableError):
            await failing
    assert await store.get(written.key) == (None if deletes else written)


async def test_the_view_shows_writes_of_others_too_and_takes_them_back(
    store: SQLiteStore, view: AsynchronousCommit
) -> None:
    rollbacks: list[int] = []
    view.on_roll_back(rollbacks.append)
    following = asyncio.ensure_future(next_events(await view.watch(PODS, after_revision=1)))
    with full_disk():
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                await store.create(f"{PODS}a", b"x" * 100_000)
    assert [event.entry.key for event in await following] == [f"{PODS}a"]
    assert rollbacks == [1]


async def test_after_a_failure_and_a_commit_gets_and_watches_show_the_same(
    store: SQLiteStore, view: AsynchronousCommit
) -> None:
    """A write that was held back when another one failed is shown to both as soon as one is committed."""
    with full_disk(), pytest.raises(StoreUnavailableError):
        await store.create(f"{PODS}failing", b"x" * 100_000)
    watch = await view.watch(PODS, after_revision=1)
    first = asyncio.ensure_future(store.create(f"{PODS}a", b""))
    for _ in range(2):
        await asyncio.sleep(0)
    with slow_disk(store):
        second = asyncio.ensure_future(store.create(f"{PODS}b", b""))
        created = await first
        found = await view.get(f"{PODS}b")
        assert found is not None
        assert not second.done()
        assert [event.entry for event in await next_events(watch)] == [created, found]
        async with await view.watch(PODS, after_revision=found.revision) as following:
            assert following.progress == found.revision
    assert await second == found


async def test_a_watch_that_waits_for_a_write_ends_if_that_is_taken_back(store: SQLiteStore) -> None:
    with full_disk():
        writing = asyncio.ensure_future(store.create(f"{PODS}a", b"x" * 100_000))
        await asyncio.sleep(0)
        watch = await store.with_asynchronous_commit().watch(PODS, after_revision=1)
        with pytest.raises(RolledBackError):
            await next_events(watch)
        with pytest.raises(StoreUnavailableError):
            await writing


async def test_a_watch_from_a_revision_that_was_taken_back_has_no_events_of_its_successor(
    store: SQLiteStore, view: AsynchronousCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_hub, "JOIN_EVENTS_MAX", 1)
    with full_disk():
        with slow_disk(store):
            for name in ("a", "b", "c"):
                await view.create(f"{PODS}{name}", b"x" * 100_000)
            # Two events behind, so that it will read them from the file.
            watch = await view.watch(PODS, after_revision=2)
        assert (await view.list_page(PODS)).entries == ()
    for name in ("d", "e", "f"):
        assert (await store.create(f"{PODS}{name}", b"")).revision <= 4
    with pytest.raises(RolledBackError):
        await next_events(watch)


async def test_a_view_that_is_opened_during_a_write_shows_it(store: SQLiteStore) -> None:
    with slow_disk(store):
        writing = asyncio.ensure_future(store.create(f"{PODS}a", b""))
        await asyncio.sleep(0)
        view = store.with_asynchronous_commit()
        watch = await view.watch(PODS, after_revision=1)
        assert await view.get(f"{PODS}a") is not None
        following = asyncio.ensure_future(next_events(watch))
    assert [event.entry for event in await following] == [await writing]


async def test_a_closed_store_refuses_the_view(store: SQLiteStore, view: AsynchronousCommit, tmp_path: Path) -> None:
    watch = await view.watch(PODS, after_revision=1)
    created = await view.create(f"{PODS}a", b"")
    await view.close()
    assert [event.entry for event in await next_events(watch)] == [created]
    with pytest.raises(StopAsyncIteration):
        await next_events(watch)
    for call in (view.get(f"{PODS}a"), view.create(f"{PODS}b", b""), view.revision()):
        with pytest.raises(StoreUnavailableError):
            await call
    reopened = await SQLiteStore.open(tmp_path / "store.db")
    assert await reopened.get(f"{PODS}a") == created
    await reopened.close()
