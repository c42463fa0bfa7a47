"""Writes of claims against a store that fails, waits and is shared as the test says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from dray.api.document import Document
from dray.api.errors import ConflictError, DeviceInUseError
from dray.apiserver import allocation_writer
from dray.apiserver.allocation_writer import AllocationWriter
from dray.apiserver.device_ledger import IN_DOUBT_SECONDS, DeviceLedger, uses_of
from dray.lib.clock import VirtualClock
from dray.store.interface import (
    NO_GUARDS,
    Entry,
    GuardConflictError,
    RevisionConflictError,
    StoreFullError,
    StoreUnavailableError,
)
from dray.store.sqlite import SQLiteStore
from tests.disk_faults import full_disk, slow_disk

WAIT_SECONDS = 20


class ScriptedStore:
    """Answers each update with the next of its outcomes: a revision, or an error."""

    def __init__(self, *outcomes: int | BaseException, shared: bool = False) -> None:
        self.shared = shared
        self.outcomes = list(outcomes)
        self.guards: list[Mapping[str, int]] = []
        self.entries: dict[str, Entry] = {}

    async def update(
        self, key: str, value: bytes, *, expected_revision: int, guards: Mapping[str, int] = NO_GUARDS
    ) -> Entry:
        self.guards.append(guards)
        await asyncio.sleep(0)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return Entry(key, value, outcome, 1)

    async def delete(self, key: str, *, expected_revision: int) -> Entry:
        return await self.update(key, b"", expected_revision=expected_revision)

    async def get(self, key: str) -> Entry | None:
        return self.entries.get(key)


def claim(name: str, *devices: str) -> Document:
    results = [{"request": "r", "driver": "d", "pool": "p", "device": device} for device in devices]
    status = {"allocation": {"devices": {"results": results}}} if devices else {}
    return {"metadata": {"name": name, "namespace": "ns"}, "status": status}


class Cluster:
    def __init__(self, *outcomes: int | BaseException, shared: bool = False) -> None:
        self.store = ScriptedStore(*outcomes, shared=shared)
        self.ledger = DeviceLedger()
        self.clock = VirtualClock(lambda: asyncio.get_running_loop().create_future())
        self.writer = AllocationWriter(self.store, self.ledger, self.clock)  # type: ignore[arg-type]

    async def give(self, name: str, *devices: str, old: tuple[str, ...] = (), base: int = 1) -> Entry:
        entry = Entry(f"/registry/resource.k8s.io/resourceclaims/ns/{name}", b"", base, 1)
        new = claim(name, *devices)
        return await self.writer.update(entry, claim(name, *old), new, orjson.dumps(new))

    def is_held(self, device: str) -> bool:
        return self.ledger.check("ns/nobody", (), uses_of(claim("nobody", device))) is not None


async def test_the_refusal_names_device_and_holder_and_nothing_is_written() -> None:
    cluster = Cluster(5)
    await cluster.give("a", "gpu")
    with pytest.raises(DeviceInUseError, match=r"device d/p/gpu is allocated to claim ns/a") as refused:
        await cluster.give("b", "gpu")
    assert refused.value.code == 409
    assert refused.value.status()["details"]["name"] == "b"
    assert cluster.store.outcomes == []
    assert len(cluster.store.guards) == 1


async def test_of_two_writes_at_once_one_is_refused() -> None:
    cluster = Cluster(5, 6)
    outcomes = await asyncio.gather(cluster.give("a", "gpu"), cluster.give("b", "gpu"), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["DeviceInUseError", "Entry"]


async def test_a_write_that_changes_no_allocation_is_not_checked() -> None:
    cluster = Cluster(5, 6)
    cluster.ledger.observe("ns/other", uses_of(claim("other", "gpu")), 1)
    await cluster.give("a", "gpu", old=("gpu",))
    assert cluster.store.outcomes == [6]


async def test_a_refused_write_frees_its_device() -> None:
    cluster = Cluster(RevisionConflictError(Entry("k", b"", 9, 1)), 6)
    with pytest.raises(RevisionConflictError):
        await cluster.give("a", "gpu")
    await cluster.give("b", "gpu")


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("failure", [StoreUnavailableError("gone"), asyncio.CancelledError()])
async def test_a_write_without_an_answer_holds_its_device_for_a_time(failure: Any, shared: bool) -> None:
    cluster = Cluster(failure, 6, shared=shared)
    with pytest.raises(type(failure)):
        await cluster.give("a", "gpu")
    with pytest.raises(DeviceInUseError):
        await cluster.give("b", "gpu")
    cluster.clock.advance(IN_DOUBT_SECONDS)
    await cluster.give("b", "gpu")


@pytest.mark.parametrize("shared", [True, False])
async def test_a_write_that_a_full_store_refused_frees_its_device(shared: bool) -> None:
    cluster = Cluster(StoreFullError("no space is left"), 6, shared=shared)
    with pytest.raises(StoreFullError):
        await cluster.give("a", "gpu")
    await cluster.give("b", "gpu")


async def test_a_deleted_claim_frees_its_device_before_the_event() -> None:
    cluster = Cluster(5, 6)
    written = await cluster.give("a", "gpu")
    await cluster.writer.delete(written, claim("a", "gpu"))
    assert not cluster.is_held("gpu")
    cluster.ledger.observe("ns/a", uses_of(claim("a", "gpu")), 5)
    assert not cluster.is_held("gpu"), "an event that was on its way is older"


async def test_only_a_shared_store_is_given_guards() -> None:
    alone, shared = Cluster(5), Cluster(5, shared=True)
    shared.ledger.progressed(3)
    for cluster in (alone, shared):
        await cluster.give("a", "gpu", "nic", old=("nic",))
    assert alone.store.guards == [NO_GUARDS]
    assert shared.store.guards == [{"d/p/gpu": 3}], "none for what the claim had"


async def test_a_guard_has_the_revision_of_the_last_write_here_until_later_ones_are_observed() -> None:
    cluster = Cluster(5, 6, 9, shared=True)
    cluster.ledger.progressed(3)
    await cluster.give("a", "gpu")
    await cluster.give("a", old=("gpu",), base=5)
    cluster.ledger.progressed(4)
    await cluster.give("b", "gpu")
    assert cluster.store.guards == [{"d/p/gpu": 3}, {}, {"d/p/gpu": 5}]
    assert not cluster.is_held("nic")
    cluster.ledger.progressed(20)
    cluster.store.outcomes.append(21)
    await cluster.give("c", "nic")
    assert cluster.store.guards[-1] == {"d/p/nic": 20}


async def test_a_guard_of_another_server_is_awaited_and_its_device_refused() -> None:
    cluster = Cluster(GuardConflictError({"d/p/gpu": 7}), 8, shared=True)
    writing = asyncio.ensure_future(cluster.give("a", "gpu"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not writing.done(), "the write of revision 7 is not observed yet"
    holder = claim("other", "gpu")
    cluster.store.entries["/registry/resource.k8s.io/resourceclaims/ns/other"] = Entry("k", orjson.dumps(holder), 7, 1)
    cluster.ledger.observe("ns/other", uses_of(holder), 7)
    cluster.ledger.progressed(7)
    with pytest.raises(DeviceInUseError, match="ns/other"):
        await writing
    assert cluster.store.outcomes == [8]


async def test_a_holder_that_has_let_go_through_another_server_is_read_again() -> None:
    cluster = Cluster(8, shared=True)
    cluster.ledger.observe("ns/other", uses_of(claim("other", "gpu")), 3)
    entry = Entry("k", orjson.dumps(claim("other")), 6, 1)
    cluster.store.entries["/registry/resource.k8s.io/resourceclaims/ns/other"] = entry
    await cluster.give("a", "gpu")
    assert cluster.store.outcomes == []


async def test_events_that_do_not_come_make_the_server_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation_writer, "CATCH_UP_SECONDS", 0.01)
    cluster = Cluster(GuardConflictError({"d/p/gpu": 7}), shared=True)
    with pytest.raises(StoreUnavailableError, match="not observed in time"):
        await cluster.give("a", "gpu")


async def test_the_server_gives_up_after_many_rounds() -> None:
    conflict = GuardConflictError({"d/p/gpu": 0})
    cluster = Cluster(*(conflict for _ in range(allocation_writer._ATTEMPTS_MAX)), shared=True)
    with pytest.raises(ConflictError):
        await cluster.give("a", "gpu")
    assert not cluster.is_held("gpu")


async def test_a_rollback_returns_to_the_durable_allocations() -> None:
    cluster = Cluster(5, 6, 7, 8, 9)
    kept = await cluster.give("kept", "gpu-0")
    await cluster.give("lost", "gpu-1", base=4)
    # It has moved to another device, which could not be stored either.
    await cluster.give("kept", "gpu-2", old=("gpu-0",), base=5)
    deleted = Entry("/registry/resource.k8s.io/resourceclaims/ns/deleted", b"", 4, 1)
    await cluster.writer.delete(deleted, claim("deleted", "gpu-3"))
    durable = {
        kept.key: kept,
        "/registry/resource.k8s.io/resourceclaims/ns/lost": Entry("", orjson.dumps(claim("lost")), 4, 1),
    }
    cluster.writer.roll_back(5, durable.get)
    assert [device for device in ("gpu-0", "gpu-1", "gpu-2", "gpu-3") if cluster.is_held(device)] == ["gpu-0"]
    # Their revisions are given again.
    await cluster.give("new", "gpu-1", base=5)
    assert cluster.is_held("gpu-1")


async def test_an_allocation_that_is_rolled_back_before_its_writer_continues_is_not_recorded(tmp_path: Path) -> None:
    """Its revision is assigned again; a record of it would hide the next allocation of the claim."""
    store = await SQLiteStore.open(tmp_path / "store.db")
    view = store.with_asynchronous_commit()
    ledger = DeviceLedger()
    writer = AllocationWriter(view, ledger, VirtualClock(lambda: asyncio.get_running_loop().create_future()))
    view.on_roll_back(lambda revision: writer.roll_back(revision, view.committed))
    prefix = "/registry/resource.k8s.io/resourceclaims/ns/"
    first, second = [await store.create(f"{prefix}{name}", orjson.dumps(claim(name))) for name in ("a", "b")]

    def allocate(name: str, entry: Entry, device: str) -> Coroutine[Any, Any, Entry]:
        new = claim(name, device)
        return writer.update(entry, claim(name), new, orjson.dumps(new))

    reported = threading.Event()
    with full_disk():
        with slow_disk(store):
            failing = asyncio.ensure_future(store.create("/registry/core/pods/ns/failing", b"x" * 100_000))
            for _ in range(2):
                await asyncio.sleep(0)
            store._writer.submit_task(lambda _: reported.set())
            writing = asyncio.ensure_future(allocate("a", first, "gpu-0"))
            await asyncio.sleep(0)
        # The next iteration of the event loop shows the write, then learns of the failure; then the writer continues.
        assert reported.wait(WAIT_SECONDS)
        for write in (writing, failing):
            with pytest.raises(StoreUnavailableError):
                await write
    await allocate("a", first, "gpu-1")
    with pytest.raises(DeviceInUseError):
        await allocate("b", second, "gpu-1")
    await store.close()
