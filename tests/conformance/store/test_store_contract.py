"""What every store promises, by `dray.store.interface`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dray.store.interface import (
    Entry,
    Event,
    EventType,
    FutureRevisionError,
    GuardConflictError,
    KeyExistsError,
    KeyNotFoundError,
    RevisionCompactedError,
    RevisionConflictError,
    Store,
    StoreUnavailableError,
    Watch,
    WatchOverflowError,
)
from dray.store.watch_hub import WATCH_BUFFER_EVENTS_MAX

PODS = "/registry/core/pods/"
WAIT_SECONDS = 120


def pod(name: str, namespace: str = "default") -> str:
    return f"{PODS}{namespace}/{name}"


async def take(watch: Watch, count: int) -> list[Event]:
    """The next so many events, waiting for them."""
    events: list[Event] = []
    async with asyncio.timeout(WAIT_SECONDS):
        async for batch in watch:
            events.extend(batch)
            if len(events) >= count:
                break
    return events


async def make_history(store: Store) -> dict[int, dict[str, bytes]]:
    """Some of every kind of write; the result is the state after each revision."""
    states: dict[int, dict[str, bytes]] = {}
    state: dict[str, bytes] = {}

    def record(entry: Entry, value: bytes | None) -> None:
        if value is None:
            del state[entry.key]
        else:
            state[entry.key] = value
        states[entry.revision] = dict(state)

    a, b, c = [await store.create(pod(name), name.encode()) for name in "abc"]
    for entry in (a, b, c):
        record(entry, entry.value)
    b = await store.update(b.key, b"b2", expected_revision=b.revision)
    record(b, b"b2")
    record(await store.delete(a.key, expected_revision=a.revision), None)
    again = await store.create(a.key, b"a again")
    record(again, b"a again")
    other = await store.create(pod("d", "other"), b"d")
    record(other, b"d")
    record(await store.delete(c.key, expected_revision=c.revision), None)
    return states


async def test_an_empty_store_has_a_revision_and_no_keys(store: Store) -> None:
    assert await store.revision() >= 1
    # An etcd that served other tests has compacted some already.
    assert await store.compacted_revision() < await store.revision()
    assert await store.get(pod("a")) is None
    page = await store.list_page(PODS)
    assert (page.entries, page.remaining) == ((), 0)
    assert page.revision == await store.revision()
    assert await store.count(PODS) == 0


async def test_each_write_takes_a_greater_revision(store: Store) -> None:
    before = await store.revision()
    created = await store.create(pod("a"), b"1")
    updated = await store.update(pod("a"), b"2", expected_revision=created.revision)
    deleted = await store.delete(pod("a"), expected_revision=updated.revision)
    assert before < created.revision < updated.revision < deleted.revision == await store.revision()
    assert created == Entry(pod("a"), b"1", created.revision, created.revision)
    assert updated == Entry(pod("a"), b"2", updated.revision, created.revision)
    assert deleted == Entry(pod("a"), b"2", deleted.revision, created.revision)


async def test_a_write_is_read_back(store: Store) -> None:
    created = await store.create(pod("a"), b"\x00\xff value")
    assert await store.get(pod("a")) == created
    await store.delete(pod("a"), expected_revision=created.revision)
    assert await store.get(pod("a")) is None


async def test_a_taken_key_is_not_created(store: Store) -> None:
    created = await store.create(pod("a"), b"1")
    with pytest.raises(KeyExistsError):
        await store.create(pod("a"), b"2")
    assert await store.get(pod("a")) == created
    assert await store.revision() == created.revision


GuardedWrite = Callable[[Store, str, int], Awaitable[Entry]]


async def guarded_update(store: Store, key: str, revision: int) -> Entry:
    return await store.update(key, b"new", expected_revision=revision)


async def guarded_delete(store: Store, key: str, revision: int) -> Entry:
    return await store.delete(key, expected_revision=revision)


@pytest.mark.parametrize("write", [guarded_update, guarded_delete])
async def test_a_guarded_write_needs_the_key(store: Store, write: GuardedWrite) -> None:
    with pytest.raises(KeyNotFoundError):
        await write(store, pod("a"), 1)


@pytest.mark.parametrize("write", [guarded_update, guarded_delete])
async def test_a_guarded_write_needs_the_expected_revision(store: Store, write: GuardedWrite) -> None:
    first = await store.create(pod("a"), b"1")
    second = await store.update(pod("a"), b"2", expected_revision=first.revision)
    with pytest.raises(RevisionConflictError) as conflict:
        await write(store, pod("a"), first.revision)
    assert conflict.value.current == second
    assert await store.get(pod("a")) == second


async def test_of_concurrent_creations_one_wins(store: Store) -> None:
    outcomes = await asyncio.gather(*(store.create(pod("a"), b"%d" % n) for n in range(20)), return_exceptions=True)
    winners = [outcome for outcome in outcomes if isinstance(outcome, Entry)]
    assert len(winners) == 1
    assert sum(isinstance(outcome, KeyExistsError) for outcome in outcomes) == 19
    assert await store.get(pod("a")) == winners[0]


async def test_of_concurrent_updates_one_wins(store: Store) -> None:
    first = await store.create(pod("a"), b"0")
    outcomes = await asyncio.gather(
        *(store.update(pod("a"), b"%d" % n, expected_revision=first.revision) for n in range(20)),
        return_exceptions=True,
    )
    winners = [outcome for outcome in outcomes if isinstance(outcome, Entry)]
    conflicts = [outcome for outcome in outcomes if isinstance(outcome, RevisionConflictError)]
    assert (len(winners), len(conflicts)) == (1, 19)
    assert {conflict.current for conflict in conflicts} == {winners[0]}


async def test_a_chain_of_concurrent_increments_loses_none(store: Store) -> None:
    await store.create(pod("counter"), b"0")

    async def increment() -> None:
        while True:
            entry = await store.get(pod("counter"))
            assert entry is not None
            value = b"%d" % (int(entry.value) + 1)
            try:
                await store.update(entry.key, value, expected_revision=entry.revision)
            except RevisionConflictError:
                continue
            return

    await asyncio.gather(*(increment() for _ in range(10)))
    entry = await store.get(pod("counter"))
    assert entry is not None
    assert entry.value == b"10"


async def test_lists_are_in_key_order_and_within_the_prefix(store: Store) -> None:
    keys = [
        pod("b"),
        pod("a"),
        pod("a-1"),
        pod("a", "zoo"),
        "/registry/core/podtemplates/default/x",
        pod("é"),
        pod("B"),
    ]
    for key in keys:
        await store.create(key, key.encode())
    page = await store.list_page(PODS)
    assert [entry.key for entry in page.entries] == sorted(key for key in keys if key.startswith(PODS))
    assert [entry.value for entry in page.entries] == [entry.key.encode() for entry in page.entries]
    assert [entry.key for entry in (await store.list_page(PODS + "zoo/")).entries] == [pod("a", "zoo")]
    assert await store.count(PODS) == 6
    assert await store.count("/registry/") == 7


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
async def test_pages_join_into_the_whole(store: Store, limit: int) -> None:
    keys = [pod(f"p{n}") for n in range(7)]
    for key in keys:
        await store.create(key, b"v")
    seen: list[str] = []
    revision, start_after = 0, ""
    while True:
        page = await store.list_page(PODS, limit=limit, start_after=start_after, revision=revision)
        seen += [entry.key for entry in page.entries]
        assert page.remaining == len(keys) - len(seen)
        assert len(page.entries) <= limit
        if not page.remaining:
            break
        revision, start_after = page.revision, page.entries[-1].key
    assert seen == keys


async def test_pages_of_a_revision_ignore_later_writes(store: Store) -> None:
    entries = [await store.create(pod(name), b"old") for name in "abcdef"]
    first = await store.list_page(PODS, limit=2)
    await store.delete(pod("c"), expected_revision=entries[2].revision)
    await store.update(pod("d"), b"new", expected_revision=entries[3].revision)
    await store.create(pod("bb"), b"new")
    await store.create(pod("g"), b"new")
    rest = await store.list_page(PODS, limit=3, start_after=first.entries[-1].key, revision=first.revision)
    assert [(entry.key, entry.value) for entry in rest.entries] == [(pod(name), b"old") for name in "cde"]
    assert (rest.revision, rest.remaining) == (first.revision, 1)
    assert rest.entries == tuple(entries[2:5])


async def test_every_past_state_can_be_listed(store: Store) -> None:
    start = await store.revision()
    states = await make_history(store)
    assert (await store.list_page(PODS, revision=start)).entries == ()
    for revision, state in states.items():
        page = await store.list_page(PODS, revision=revision)
        assert {entry.key: entry.value for entry in page.entries} == state
        assert (page.revision, page.remaining) == (revision, 0)
        assert [entry.key for entry in page.entries] == sorted(state)


async def test_a_future_revision_is_refused(store: Store) -> None:
    revision = await store.revision() + 1000
    with pytest.raises(FutureRevisionError):
        await store.list_page(PODS, revision=revision)
    with pytest.raises(FutureRevisionError):
        await store.watch(PODS, after_revision=revision)
    with pytest.raises(FutureRevisionError):
        await store.compact(revision)


async def test_a_watch_shows_each_event_with_what_was_before(store: Store) -> None:
    async with await store.watch(PODS, after_revision=await store.revision()) as watch:
        created = await store.create(pod("a"), b"1")
        updated = await store.update(pod("a"), b"2", expected_revision=created.revision)
        deleted = await store.delete(pod("a"), expected_revision=updated.revision)
        assert await take(watch, 3) == [
            Event(EventType.PUT, created, None),
            Event(EventType.PUT, updated, created),
            Event(EventType.DELETE, deleted, updated),
        ]


async def test_a_watch_from_any_revision_tells_the_rest_of_history(store: Store) -> None:
    start = await store.revision()
    async with await store.watch("/registry/", after_revision=start) as watch:
        states = await make_history(store)
        history = await take(watch, len(states))
    assert [event.revision for event in history] == list(states)
    for revision in [start, *states]:
        expected = [event for event in history if event.revision > revision]
        async with await store.watch("/registry/", after_revision=revision) as again:
            assert await take(again, len(expected)) == expected if expected else True


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("/", ["core", "pod", "other", "name", "longer"]),
        (PODS, ["pod", "other", "name", "longer"]),
        (PODS + "default/", ["pod", "name", "longer"]),
        (PODS + "default/name", ["name"]),
        (PODS + "default/nam", []),
        ("/registry/apps/", []),
    ],
)
async def test_a_watch_hears_only_of_its_prefix(store: Store, prefix: str, expected: list[str]) -> None:
    start = await store.revision()
    keys = {
        "/registry/core/nodes/n": b"core",
        pod("pod"): b"pod",
        pod("x", "other"): b"other",
        pod("name"): b"name",
        pod("name-longer"): b"longer",
    }
    async with await store.watch(prefix, after_revision=start) as live:
        for key, value in keys.items():
            await store.create(key, value)
        async with await store.watch(prefix, after_revision=start) as replayed:
            for watch in (live, replayed):
                if expected:
                    assert [event.entry.value.decode() for event in await take(watch, len(expected))] == expected
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(aiter(watch)), 0.05)


async def test_a_list_and_a_watch_from_its_revision_miss_nothing(store: Store) -> None:
    """Writers run throughout; a client that lists and then watches ends up with the state of the store."""

    async def write(number: int) -> None:
        entry = await store.create(pod(f"p{number}"), b"0")
        for value in range(1, 6):
            entry = await store.update(entry.key, b"%d" % value, expected_revision=entry.revision)
        if number % 2:
            await store.delete(entry.key, expected_revision=entry.revision)

    async def follow() -> dict[str, bytes]:
        page = await store.list_page(PODS)
        state = {entry.key: entry.value for entry in page.entries}
        async with await store.watch(PODS, after_revision=page.revision) as watch:
            async for batch in watch:
                for event in batch:
                    if event.entry.key == pod("end"):
                        return state
                    if event.type is EventType.PUT:
                        state[event.entry.key] = event.entry.value
                    else:
                        del state[event.entry.key]
        raise AssertionError("the watch ended")

    async def write_all() -> None:
        await asyncio.gather(*(write(number) for number in range(10)))
        await store.create(pod("end"), b"")

    async with asyncio.timeout(WAIT_SECONDS):
        *states, _ = await asyncio.gather(*(follow() for _ in range(5)), write_all())
    expected = {pod(f"p{number}"): b"5" for number in range(0, 10, 2)}
    assert states == [expected] * 5


async def test_a_written_event_is_there_for_a_watch_from_before_it(store: Store) -> None:
    for number in range(20):
        before = await store.revision()
        entry = await store.create(pod(f"p{number}"), b"v")
        async with await store.watch(pod(f"p{number}"), after_revision=before) as watch:
            assert [event.entry for event in await take(watch, 1)] == [entry]


async def test_progress_covers_what_was_delivered_and_what_is_not_for_the_watch(store: Store) -> None:
    start = await store.revision()
    async with await store.watch(PODS, after_revision=start) as watch:
        assert watch.progress >= start
        mine = await store.create(pod("a"), b"1")
        assert watch.progress < mine.revision
        await take(watch, 1)
        assert watch.progress >= mine.revision
        async with await store.watch("/registry/core/nodes/", after_revision=start) as other:
            node = await store.create("/registry/core/nodes/n", b"1")
            await take(other, 1)
        assert watch.progress >= node.revision


async def test_a_watch_starts_with_the_progress_it_was_given(store: Store) -> None:
    await store.create(pod("a"), b"1")
    revision = (await store.list_page(PODS)).revision
    async with await store.watch(PODS, after_revision=revision) as watch:
        assert watch.progress >= revision


async def test_closing_a_watch_ends_its_iteration(store: Store) -> None:
    watch = await store.watch(PODS, after_revision=await store.revision())
    waiting = asyncio.create_task(take(watch, 1))
    await asyncio.sleep(0)
    await watch.aclose()
    assert await asyncio.wait_for(waiting, WAIT_SECONDS) == []
    await watch.aclose()
    assert await take(watch, 1) == []


async def test_waking_a_watch_yields_what_there_is_or_nothing(store: Store) -> None:
    async with await store.watch(PODS, after_revision=await store.revision()) as watch:
        waiting = asyncio.ensure_future(anext(aiter(watch)))
        await asyncio.sleep(0)
        watch.wake()
        assert await asyncio.wait_for(waiting, WAIT_SECONDS) == ()
        entry = await store.create(pod("a"), b"")
        assert [event.entry for event in await take(watch, 1)] == [entry]


async def test_a_slow_watcher_gets_an_error(store: Store, backend: str) -> None:
    if backend != "memory":
        pytest.skip("the buffer is the same for all; filling it takes long elsewhere")
    async with await store.watch(PODS, after_revision=await store.revision()) as slow:
        entry = await store.create(pod("a"), b"")
        for _ in range(WATCH_BUFFER_EVENTS_MAX):
            entry = await store.update(entry.key, b"", expected_revision=entry.revision)
        with pytest.raises(WatchOverflowError):
            await take(slow, 1)
        assert await take(slow, 1) == []
    async with await store.watch(PODS, after_revision=entry.revision - WATCH_BUFFER_EVENTS_MAX) as fresh:
        assert len(await take(fresh, WATCH_BUFFER_EVENTS_MAX)) == WATCH_BUFFER_EVENTS_MAX


async def test_compacting_forgets_the_past_but_no_current_value(store: Store) -> None:
    states = await make_history(store)
    revisions = list(states)
    middle, last = revisions[4], revisions[-1]
    async with await store.watch(PODS, after_revision=revisions[0]) as running:
        await store.compact(middle)
        assert await store.compacted_revision() == middle
        assert [event.revision for event in await take(running, len(revisions) - 1)] == revisions[1:]
    for revision in revisions:
        if revision < middle:
            with pytest.raises(RevisionCompactedError) as refused:
                await store.list_page(PODS, revision=revision)
            assert refused.value.compacted == middle
            with pytest.raises(RevisionCompactedError):
                await store.watch(PODS, after_revision=revision)
        else:
            page = await store.list_page(PODS, revision=revision)
            assert {entry.key: entry.value for entry in page.entries} == states[revision]
            async with await store.watch(PODS, after_revision=revision) as watch:
                expected = [each for each in revisions if each > revision]
                if expected:
                    assert [event.revision for event in await take(watch, len(expected))] == expected
    assert await store.revision() == last


async def test_compacting_to_the_newest_revision_leaves_it_usable(store: Store) -> None:
    states = await make_history(store)
    last = list(states)[-1]
    await store.compact(last)
    await store.compact(last)
    await store.compact(last - 3)
    assert await store.compacted_revision() == last
    page = await store.list_page(PODS, revision=last)
    assert {entry.key: entry.value for entry in page.entries} == states[last]
    async with await store.watch(PODS, after_revision=page.revision) as watch:
        later = await store.create(pod("later"), b"")
        assert [event.entry for event in await take(watch, 1)] == [later]


async def test_maintenance_compacts_by_age(store: Store) -> None:
    before = await store.compacted_revision()
    states = await make_history(store)
    last = list(states)[-1]
    await store.maintain(1000.0)
    await store.maintain(1299.0)
    assert await store.compacted_revision() == before
    later = await store.create(pod("later"), b"")
    await store.maintain(1300.0)
    assert await store.compacted_revision() == last
    assert await store.revision() == later.revision


async def test_closing_ends_watches_and_refuses_calls(store: Store) -> None:
    watch = await store.watch(PODS, after_revision=await store.revision())
    waiting = asyncio.create_task(take(watch, 1))
    await asyncio.sleep(0)
    await store.close()
    assert await asyncio.wait_for(waiting, WAIT_SECONDS) == []
    await store.close()
    for call in (store.revision(), store.get(pod("a")), store.list_page(PODS), store.create(pod("a"), b"")):
        with pytest.raises(StoreUnavailableError):
            await call


async def test_closing_waits_for_writes_under_way(store: Store, backend: str) -> None:
    if backend == "etcd":
        pytest.skip("calls to etcd under way are cut off, as documented")
    writes = [asyncio.create_task(store.create(pod(f"p{n}"), b"")) for n in range(50)]
    await asyncio.sleep(0)
    await store.close()
    entries = await asyncio.gather(*writes)
    assert len({entry.revision for entry in entries}) == 50


# --- Guards. ---


async def test_an_update_with_guards_is_an_update(store: Store) -> None:
    made = await store.create("/a", b"1")
    written = await store.update("/a", b"2", expected_revision=made.revision, guards={"x/y": made.revision})
    assert (written.value, written.create_revision) == (b"2", made.revision)
    assert [entry.key for entry in (await store.list_page("/")).entries] == ["/a"]
    with pytest.raises(RevisionConflictError):
        await store.update("/a", b"3", expected_revision=made.revision, guards={"x/y": written.revision})
    with pytest.raises(KeyNotFoundError):
        await store.update("/b", b"3", expected_revision=made.revision, guards={"x/y": written.revision})


async def test_a_guard_that_another_writer_has_written_since_refuses_the_write(store: Store) -> None:
    if not store.shared:
        # The only writer needs no guards.
        return
    first, second = await store.create("/a", b"1"), await store.create("/b", b"1")
    observed = second.revision
    guards = {"device": observed, "pool": observed}
    written = await store.update("/a", b"2", expected_revision=first.revision, guards=guards)
    with pytest.raises(GuardConflictError) as refused:
        await store.update(
            "/b", b"2", expected_revision=second.revision, guards={"device": observed, "other": observed}
        )
    assert refused.value.revisions == {"device": written.revision}
    assert (await store.get("/b")) == second
    # The refused write has written no guard either.
    third = await store.create("/c", b"1")
    await store.update("/c", b"2", expected_revision=third.revision, guards={"other": observed})
    await store.update("/b", b"2", expected_revision=second.revision, guards={"device": written.revision})


async def test_watches_do_not_see_guards(store: Store) -> None:
    made = await store.create("/a", b"1")
    async with await store.watch("/", after_revision=made.revision) as watch:
        written = await store.update("/a", b"2", expected_revision=made.revision, guards={"device": made.revision})
        deleted = await store.delete("/a", expected_revision=written.revision)
        seen: list[Event] = []
        async for batch in watch:
            seen += batch
            if seen[-1].revision == deleted.revision:
                break
    assert [event.revision for event in seen] == [written.revision, deleted.revision]
