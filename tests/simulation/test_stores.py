"""Stores that crash at any write and lose answers keep what they have acknowledged, in one order.

The last tests break a store on purpose: the simulation must notice.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dray.store import etcd as etcd_module
from dray.store import sqlite as sqlite_module
from dray.store import sqlite_file as sqlite_file_module
from dray.store.etcd import Endpoints, EtcdStore
from dray.store.interface import Entry
from dray.store.pending_writes import UncommittedView
from dray.store.sqlite import SQLiteStore
from dray.store.writer import WriterThread
from tests.simulation.disk import Disk, simulated_disks
from tests.simulation.fake_etcd import MEMBERS, FakeEtcd
from tests.simulation.faults import Faults
from tests.simulation.runs import declared_faults, faults_of, missing_faults, outcome_of, run, seeds
from tests.simulation.threadless import run_without_threads

SEEDS = seeds(range(1, 5))
# Within these a broken store is found.
SEEDS_UNTIL_FOUND = range(1, 13)


@pytest.mark.parametrize("variant", ["sqlite_store", "asynchronous_commit", "etcd_store"])
@pytest.mark.parametrize("seed", SEEDS)
def test_histories_are_linearizable_and_watches_complete(variant: str, seed: int) -> None:
    faults_of(variant, seed)


@pytest.mark.parametrize("variant", ["sqlite_store", "asynchronous_commit", "etcd_store"])
def test_every_fault_happens(variant: str) -> None:
    assert not missing_faults(variant, SEEDS)


@pytest.mark.parametrize("variant", ["sqlite_store", "asynchronous_commit", "etcd_store"])
def test_a_seed_replays_exactly(variant: str) -> None:
    assert run(variant, 3) == run(variant, 3)


def test_components_see_writes_before_their_commit_and_rollbacks() -> None:
    paths = [outcome_of("asynchronous_commit", seed).paths for seed in SEEDS]
    assert sum(path["shown before the commit"] for path in paths)
    assert sum(path["rolled back"] for path in paths)


def _write_rows(directory: Path, disk: Disk, *, synchronous: str) -> None:
    with closing(sqlite3.connect(directory / "a.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("CREATE TABLE rows (number INTEGER)")
        for number in range(20):
            connection.execute("INSERT INTO rows VALUES (?)", (number,))
        disk.dead = True


@pytest.mark.parametrize(("synchronous", "kept"), [("FULL", True), ("OFF", False)])
def test_a_power_cut_keeps_what_was_synced(tmp_path: Path, synchronous: str, *, kept: bool) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    with simulated_disks() as disks:
        disk = disks[before] = Disk(before, lambda _what, _path: "")
        _write_rows(before, disk, synchronous=synchronous)
        disk.after_crash(after, random.Random(1), power_cut=True)
    with closing(sqlite3.connect(after / "a.db")) as connection:
        try:
            (rows,) = connection.execute("SELECT count(*) FROM rows").fetchone()
        except sqlite3.DatabaseError:
            rows = 0
    assert (rows == 20) is kept


def test_a_watch_leaves_a_member_that_has_lost_the_others() -> None:
    """Its connection is up and it has no events: without a required leader the watch would wait for good."""

    async def check() -> None:
        etcd = FakeEtcd(random.Random(1), Faults(**dict.fromkeys(declared_faults("etcd_store"), 0.0)))
        with etcd.reachable():
            store = await EtcdStore.connect(MEMBERS, prefix="/apart")
            watch = await store.watch("/pods/", after_revision=await store.revision())
            apart = etcd.member(MEMBERS[0])
            apart.apart_until = 10_000.0
            other = await EtcdStore.connect(MEMBERS[1:], prefix="/apart")
            created = await other.create("/pods/a", b"")
            async with asyncio.timeout(30):
                batch = await anext(aiter(watch))
            assert [event.entry for event in batch] == [created]
            await store.close()
            await other.close()

    run_without_threads(check())


# --- broken stores are found ---


def found(variant: str) -> str:
    return next((outcome.violation for seed in SEEDS_UNTIL_FOUND if (outcome := run(variant, seed)).violation), "")


def test_a_store_that_does_not_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite_file_module.connect

    def careless(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
        connection = connect(path, read_only=read_only)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    monkeypatch.setattr(sqlite_file_module, "connect", careless)
    assert found("sqlite_store")


def test_a_store_that_answers_before_it_commits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    insert = WriterThread._insert

    def early(self: WriterThread, writes: list[Any]) -> None:
        for write in writes:
            if not write.done.done():
                write.done.set_result(write.event.entry)
        insert(self, writes)

    monkeypatch.setattr(WriterThread, "_insert", early)
    assert found("sqlite_store")


def test_a_store_that_shows_uncommitted_writes_to_everyone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def get(self: SQLiteStore, key: str) -> Entry | None:
        return self._writes.current(key)

    monkeypatch.setattr(SQLiteStore, "get", get)
    assert found("asynchronous_commit")


def test_a_view_that_keeps_what_could_not_be_stored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UncommittedView, "roll_back", lambda _self: None)
    assert found("asynchronous_commit")


def test_a_client_that_repeats_writes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repeated write is refused because of the first one, though that was done."""

    async def call(self: Endpoints, method: str, request: object) -> Any:
        return await self._answered(self._kv, method, request, attempts=3)

    monkeypatch.setattr(Endpoints, "call", call)
    assert "is not linearizable" in found("etcd_store")


@pytest.mark.parametrize(
    ("variant", "target", "name", "broken"),
    [
        # The feed resumes one revision too late.
        (
            "etcd_store",
            EtcdStore,
            "_watch_all",
            lambda self, after, original=EtcdStore._watch_all: original(self, after + 2),
        ),
        # Older rows are read from one revision too late.
        (
            "sqlite_store",
            sqlite_module,
            "_events_after",
            lambda revision, original=sqlite_module._events_after: original(revision + 1),
        ),
    ],
    ids=["etcd", "sqlite"],
)
def test_a_watch_that_skips_an_event_is_found(
    monkeypatch: pytest.MonkeyPatch, variant: str, target: object, name: str, broken: Callable[..., Any]
) -> None:
    monkeypatch.setattr(target, name, broken)
    assert found(variant)


def test_a_feed_that_trusts_the_header_of_a_watch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The header is ahead of the events while a watch catches up, so that bookmarks would be."""

    async def feed_from(self: EtcdStore, revision: int) -> None:
        async for response in self._endpoints.watch(self._watch_all(revision)):
            self._hub.publish(self._events(response, revision), response.header.revision)
            self._fed.set()

    monkeypatch.setattr(etcd_module.EtcdStore, "_feed_from", feed_from)
    assert "a watch is not" in found("etcd_store")
