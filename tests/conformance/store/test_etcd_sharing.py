"""What holds when several stores use one etcd, and when etcd goes away and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from dray.rpc.pb.etcd import rpc_pb2
from dray.store import etcd as etcd_module
from dray.store.etcd import EtcdStore
from dray.store.interface import (
    Entry,
    Event,
    GuardConflictError,
    KeyExistsError,
    RevisionCompactedError,
    RevisionConflictError,
    StoreUnavailableError,
    Watch,
)
from dray.store.state import CompactionPolicy

WAIT_SECONDS = 120
PODS = "/registry/core/pods/"


class Process(Protocol):
    endpoint: str

    def start(self) -> None: ...
    def stop(self) -> None: ...


@asynccontextmanager
async def connected(process: Process, prefix: str) -> AsyncIterator[EtcdStore]:
    store = await EtcdStore.connect([process.endpoint], prefix=prefix)
    try:
        yield store
    finally:
        await store.close()


async def take(watch: Watch, count: int) -> list[Event]:
    events: list[Event] = []
    async with asyncio.timeout(WAIT_SECONDS):
        async for batch in watch:
            events.extend(batch)
            if len(events) >= count:
                break
    return events


async def test_two_stores_see_each_others_writes(etcd: Process) -> None:
    async with connected(etcd, "/two") as one, connected(etcd, "/two") as other:
        watch = await other.watch(PODS, after_revision=await other.revision())
        created = await one.create(PODS + "a", b"1")
        assert await other.get(PODS + "a") == created
        assert [event.entry for event in await take(watch, 1)] == [created]
        with pytest.raises(KeyExistsError):
            await other.create(PODS + "a", b"2")
        updated = await other.update(PODS + "a", b"2", expected_revision=created.revision)
        with pytest.raises(RevisionConflictError):
            await one.update(PODS + "a", b"3", expected_revision=created.revision)
        assert [event.entry for event in await take(watch, 1)] == [updated]


async def test_a_list_of_one_store_can_be_watched_from_on_another(etcd: Process) -> None:
    """The other's feed may be behind the revision; it still tells exactly what came after."""
    async with connected(etcd, "/hand-over") as one, connected(etcd, "/hand-over") as other:
        for number in range(20):
            await one.create(f"{PODS}{number}", b"before")
            revision = (await one.list_page(PODS)).revision
            async with await other.watch(PODS, after_revision=revision) as watch:
                after = await one.create(f"{PODS}{number}-after", b"after")
                assert [event.entry for event in await take(watch, 1)] == [after]


async def test_prefixes_keep_stores_apart(etcd: Process) -> None:
    async with connected(etcd, "/apart") as one, connected(etcd, "/apart-too") as other:
        await one.create(PODS + "a", b"one")
        entry = await other.create(PODS + "a", b"other")
        assert (await other.list_page("/")).entries == (entry,)
        assert await one.count("/") == 1


async def test_a_late_store_replays_what_happened_before_it(etcd: Process) -> None:
    async with connected(etcd, "/late") as one:
        start = await one.revision()
        first = await one.create(PODS + "a", b"1")
        second = await one.update(PODS + "a", b"2", expected_revision=first.revision)
        third = await one.delete(PODS + "a", expected_revision=second.revision)
        async with connected(etcd, "/late") as late, await late.watch(PODS, after_revision=start) as watch:
            events = await take(watch, 3)
            assert [event.entry for event in events] == [first, second, third]
            assert [event.previous for event in events] == [None, first, second]
            # Up to here from the past, from here through the feed.
            live = await one.create(PODS + "b", b"")
            assert [event.entry for event in await take(watch, 1)] == [live]


async def test_a_replay_longer_than_the_feed_remembers(etcd: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_module, "RECENT_EVENTS_MAX", 5)
    async with connected(etcd, "/long") as store:
        start = await store.revision()
        entries = [await store.create(f"{PODS}{number:03}", b"") for number in range(50)]
        async with await store.watch(PODS, after_revision=start) as watch:
            assert [event.entry for event in await take(watch, 50)] == entries


async def test_long_lists_come_in_parts_of_one_revision(etcd: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_module, "LIST_KEYS_MAX", 7)
    async with connected(etcd, "/parts") as store:
        entries = [await store.create(f"{PODS}{number:03}", b"") for number in range(30)]
        whole = await store.list_page(PODS)
        assert (list(whole.entries), whole.remaining) == (entries, 0)
        page = await store.list_page(PODS, limit=17, start_after=entries[3].key)
        assert (list(page.entries), page.remaining) == (entries[4:21], 9)


async def test_another_server_compacting_is_noticed(etcd: Process) -> None:
    async with connected(etcd, "/compacting") as one:
        start = await one.revision()
        entry = await one.create(PODS + "a", b"")
        async with connected(etcd, "/compacting") as other:
            await one.compact(entry.revision)
            assert await other.compacted_revision() == entry.revision
            with pytest.raises(RevisionCompactedError):
                await other.list_page(PODS, revision=start)
            with pytest.raises(RevisionCompactedError):
                await other.watch(PODS, after_revision=start)


async def update_until_done(store: EtcdStore, entry: Entry, value: bytes) -> Entry:
    """Retry as a client has to: a write without an answer may have been done, and must not be repeated blindly."""
    while True:
        try:
            return await store.update(entry.key, value, expected_revision=entry.revision)
        except StoreUnavailableError:
            await asyncio.sleep(0.05)
        except RevisionConflictError as error:
            if error.current.value != value:
                raise
            return error.current


@pytest.fixture
def own_etcd(etcd: Process, tmp_path: Path) -> Process:
    return type(etcd)(tmp_path / "data")  # type: ignore[call-arg]


async def test_etcd_going_away_and_coming_back(own_etcd: Process) -> None:
    own_etcd.start()
    try:
        async with connected(own_etcd, "/back") as store:
            first = await store.create(PODS + "a", b"1")
            async with await store.watch(PODS, after_revision=first.revision) as watch:
                own_etcd.stop()
                with pytest.raises(StoreUnavailableError):
                    await store.get(PODS + "a")
                with pytest.raises(StoreUnavailableError):
                    await store.update(PODS + "a", b"2", expected_revision=first.revision)
                own_etcd.start()
                async with asyncio.timeout(WAIT_SECONDS):
                    second = await update_until_done(store, first, b"3")
                assert [event.entry for event in await take(watch, 1)] == [second]
    finally:
        own_etcd.stop()


async def test_no_etcd_is_unavailable() -> None:
    with pytest.raises(StoreUnavailableError):
        await EtcdStore.connect(["127.0.0.1:1"], prefix="/none")


async def test_a_member_that_is_down_is_passed_over(etcd: Process) -> None:
    store = await EtcdStore.connect(["127.0.0.1:1", etcd.endpoint], prefix="/members")
    entry = await store.create(PODS + "a", b"")
    assert await store.get(PODS + "a") == entry
    await store.close()


async def test_a_feed_outrun_by_a_compaction_ends_its_watches_and_starts_over(etcd: Process) -> None:
    """Events that it had not received are gone: watchers must list again, and then miss nothing."""
    async with connected(etcd, "/outrun") as behind, connected(etcd, "/outrun") as ahead:
        watch = await behind.watch(PODS, after_revision=await behind.revision())
        await behind._tasks.aclose()
        first = await ahead.create(PODS + "a", b"1")
        second = await ahead.update(PODS + "a", b"2", expected_revision=first.revision)
        last = await ahead.delete(PODS + "a", expected_revision=second.revision)
        await ahead.compact(last.revision)
        behind._tasks.spawn(behind._feed(), "etcd watch")
        with pytest.raises(RevisionCompactedError):
            await take(watch, 1)
        page = await behind.list_page(PODS)
        assert page.entries == ()
        async with await behind.watch(PODS, after_revision=page.revision) as again:
            later = await ahead.create(PODS + "b", b"")
            assert [event.entry for event in await take(again, 1)] == [later]


async def count_guards(store: EtcdStore, prefix: str) -> int:
    start, end = f"{prefix}!guards/".encode(), f"{prefix}!guards0".encode()
    return int((await store._call("Range", rpc_pb2.RangeRequest(key=start, range_end=end, count_only=True))).count)


async def guarded_writes(store: EtcdStore, count: int) -> int:
    """Write guards of that many devices; return the revision of the last write."""
    entry = await store.create("/claim", b"0")
    for number in range(count):
        entry = await store.update(
            "/claim", b"%d" % number, expected_revision=entry.revision, guards={f"device-{number}": entry.revision}
        )
    return entry.revision


async def test_guards_of_the_compacted_time_are_deleted(etcd: Process) -> None:
    """There are as many as devices that were allocated lately, not as many as there ever were."""
    async with connected(etcd, "/collected") as store:
        last = await guarded_writes(store, 250)
        assert await store._guards.collect(store._call, last - 1) == 249
        assert await count_guards(store, "/collected") == 1
        assert await store._guards.collect(store._call, last) == 1
        assert await store._guards.collect(store._call, last) == 0
        assert await count_guards(store, "/collected") == 0


async def test_a_writer_that_is_behind_the_deleted_guards_is_refused(etcd: Process) -> None:
    async with connected(etcd, "/behind") as one, connected(etcd, "/behind") as other:
        last = await guarded_writes(one, 3)
        await one._guards.collect(one._call, last)
        made = await other.create("/other", b"1")
        with pytest.raises(GuardConflictError) as refused:
            await other.update("/other", b"2", expected_revision=made.revision, guards={"device-0": last - 1})
        assert refused.value.revisions == {"device-0": last}, "it has to catch up to the newest of the deleted guards"
        await other.update("/other", b"2", expected_revision=made.revision, guards={"device-0": last})


async def test_the_floor_is_never_lowered(etcd: Process) -> None:
    async with connected(etcd, "/floor") as one, connected(etcd, "/floor") as other:
        last = await guarded_writes(one, 3)
        made = await other.create("/other", b"1")
        written = await other.update("/other", b"2", expected_revision=made.revision, guards={"late": made.revision})
        await one._guards.collect(one._call, written.revision)
        third = await one.create("/third", b"1")
        await one.update("/third", b"2", expected_revision=third.revision, guards={"x": third.revision})
        await other._guards.collect(other._call, third.revision + 10)
        with pytest.raises(GuardConflictError):
            await one.update("/claim", b"x", expected_revision=last, guards={"late": written.revision - 1})
    async with connected(etcd, "/floor") as again:
        with pytest.raises(GuardConflictError):
            await again.update("/claim", b"x", expected_revision=last, guards={"late": written.revision - 1})


async def test_compaction_deletes_guards(etcd: Process) -> None:
    store = await EtcdStore.connect([etcd.endpoint], prefix="/kept", policy=CompactionPolicy(age_seconds=10))
    try:
        await guarded_writes(store, 5)
        for seconds in range(0, 60, 5):
            await store.maintain(float(seconds))
        assert await count_guards(store, "/kept") == 0
    finally:
        await store.close()
