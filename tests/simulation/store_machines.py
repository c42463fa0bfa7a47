"""Machines that run a store, with its crashes: a SQLite file on a simulated disk, and stores on a simulated etcd."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from dray.rpc.pb.etcd import mvcc_pb2
from dray.store import etcd as etcd_module
from dray.store import sqlite as sqlite_module
from dray.store import sqlite_file as sqlite_file_module
from dray.store.etcd import EtcdStore
from dray.store.interface import Entry, Event, EventType, Store, StoreDamagedError, StoreError, StoreUnavailableError
from dray.store.sqlite import SQLiteStore
from dray.store.sqlite_rows import COLUMNS
from tests.simulation.disk import Disk, simulated_disks
from tests.simulation.fake_etcd import FAULTS as ETCD_FAULTS
from tests.simulation.fake_etcd import MEMBERS, FakeEtcd
from tests.simulation.faults import Faults
from tests.simulation.store_history import Truth
from tests.simulation.threadless import threadless_writer

# Few, so that the past is often read from the file or from etcd, and the log is checkpointed often.
RECENT_EVENTS = 20
CHECKPOINT_PAGES = 12
LIST_KEYS = 3
PREFIX = "/simulated"
_DOWN_SECONDS_MAX = 0.5

SQLITE_FAULTS = {
    # Per change of the files.
    "process_killed": 0.004,
    "power_cut": 0.004,
    "disk_full": 0.002,
    "disk_error": 0.002,
}
STORE_FAULTS = {
    # Of etcd's client.
    "store_killed": 0.004,
}


@dataclass(eq=False)
class Life:
    """One life of a process with a store."""

    store: Store
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Machine(ABC):
    """A store process that is started again after each crash."""

    def __init__(self, rng: random.Random, faults: Faults, truth: Truth) -> None:
        self.truth = truth
        self.lives = 0
        self._rng = rng
        self._faults = faults
        self._life: Life | None = None
        self._up = asyncio.Condition()

    async def current(self) -> Life:
        """Return the present life; wait for it if the process is down."""
        async with self._up:
            await self._up.wait_for(lambda: self._life is not None)
        assert self._life is not None
        return self._life

    async def run(self) -> None:
        """Live and crash, until cancelled."""
        while True:
            store = await self._start()
            self.lives += 1
            life = Life(store)
            async with self._up:
                self._life = life
                self._up.notify_all()
            try:
                await self._crashed()
            finally:
                self._life = None
                life.ended.set()
                await store.close()
            await asyncio.sleep(self._rng.uniform(0.0, _DOWN_SECONDS_MAX))

    @abstractmethod
    async def _start(self) -> Store:
        """Return a store that works."""

    @abstractmethod
    async def _crashed(self) -> None:
        """Return when the process has crashed."""

    @abstractmethod
    def heal(self) -> None:
        """End what is wrong for now; the faults are off."""


class SQLiteMachine(Machine):
    """A SQLite file; each life finds the files as the crash of the last one left them."""

    def __init__(self, rng: random.Random, faults: Faults, directory: Path, disks: dict[Path, Disk]) -> None:
        super().__init__(rng, faults, Truth())
        # SQLite resolves the names of its files.
        self._root = directory.resolve()
        self._disks = disks
        self._crash = asyncio.Event()
        self._power_cut = False
        self._disk = self._next_disk()
        self.images = 0

    def heal(self) -> None:
        """Nothing lasts."""

    async def _start(self) -> Store:
        while True:
            if self._disk.dead:
                self._replace_disk()
            try:
                store = await SQLiteStore.open(self._disk.directory / "store.db")
            except StoreUnavailableError:
                # Crashed again, or the disk was full, while it was opened.
                await asyncio.sleep(0.1)
            except StoreDamagedError:
                # A crash while it was opened may look like anything; what is on the disk must be sound.
                if not self._disk.dead:
                    raise
            else:
                self._observe(store)
                return store

    async def _crashed(self) -> None:
        await self._crash.wait()

    def _observe(self, store: SQLiteStore) -> None:
        """Take over what was committed and not reported, and every later commit."""
        self._harvest(store._connection)
        report = store._writer._committed

        def committed(writes: list[Any]) -> None:
            self._harvest(store._connection)
            report(writes)

        store._writer._committed = committed
        assert store._state.revision == self.truth.revision, (
            f"opened at revision {store._state.revision}, but {self.truth.revision} was committed"
        )
        assert dict(self._contents(store)) == self.truth.state_at(self.truth.revision)

    def _contents(self, store: SQLiteStore) -> Iterator[tuple[str, Entry]]:
        page = store._state.page("/", limit=0, start_after="")
        return ((entry.key, entry) for entry in page.entries)

    def _harvest(self, connection: sqlite3.Connection) -> None:
        state = self.truth.state_at(self.truth.revision)
        statement = f"SELECT {COLUMNS} FROM log WHERE revision > ? ORDER BY revision"
        for revision, put, key, created, previous, _, value in connection.execute(statement, (self.truth.revision,)):
            before = state.get(key)
            assert previous == (before.revision if before is not None else 0)
            entry = Entry(key, value if put else before.value, revision, created)  # type: ignore[union-attr]
            self.truth.append(Event(EventType.PUT if put else EventType.DELETE, entry, before))
            if put:
                state[key] = entry
            else:
                del state[key]

    def _next_disk(self) -> Disk:
        directory = self._root / f"life-{len(self._disks)}"
        directory.mkdir()
        disk = self._disks[directory] = Disk(directory, self._before_change)
        return disk

    def _replace_disk(self) -> None:
        old = self._disk
        self._disk = self._next_disk()
        old.after_crash(self._disk.directory, self._rng, power_cut=self._power_cut)
        self._crash.clear()

    def _before_change(self, _what: str, _path: str) -> str:
        self._faults.steps += 1
        fault = self._faults.choose(SQLITE_FAULTS, self._rng)
        if fault in ("process_killed", "power_cut"):
            self._power_cut = fault == "power_cut"
            self._crash.set()
            return "crash"
        return {"disk_full": "full", "disk_error": "error"}.get(fault, "")


class EtcdMachine(Machine):
    """A store on an etcd that others use as well."""

    def __init__(self, rng: random.Random, faults: Faults, etcd: FakeEtcd, truth: Truth) -> None:
        super().__init__(rng, faults, truth)
        self._etcd = etcd

    def heal(self) -> None:
        self._etcd.heal()

    async def _start(self) -> Store:
        while True:
            members = self._rng.sample(MEMBERS, len(MEMBERS))
            try:
                return await EtcdStore.connect(members, prefix=PREFIX)
            except StoreError:
                await asyncio.sleep(0.2)

    async def _crashed(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            if self._faults.happens("store_killed", self._rng):
                return


class EtcdTruth(Truth):
    """The committed events as the simulated etcd has them."""

    def __init__(self, etcd: FakeEtcd) -> None:
        super().__init__()
        self._etcd = etcd
        self._read = 0
        self._state: dict[str, Entry] = {}

    def refresh(self) -> None:
        """Read the commits since the last time."""
        root = f"{PREFIX}/".encode()
        for revision in self._etcd.data.log[self._read :]:
            for name, pair in revision.changes:
                if name.startswith(root):
                    self._add(revision.number, name[len(PREFIX) :].decode(), pair)
        self._read = len(self._etcd.data.log)
        self.compacted = max(self.compacted, self._etcd.data.compacted)

    def _add(self, revision: int, key: str, pair: mvcc_pb2.KeyValue | None) -> None:
        before = self._state.get(key)
        if pair is None:
            assert before is not None
            del self._state[key]
            gone = Entry(key, before.value, revision, before.create_revision)
            self.append(Event(EventType.DELETE, gone, before))
        else:
            entry = self._state[key] = Entry(key, pair.value, revision, pair.create_revision)
            self.append(Event(EventType.PUT, entry, before))


def refreshed(truth: Truth) -> Truth:
    """Return the truth with all commits."""
    if isinstance(truth, EtcdTruth):
        truth.refresh()
    return truth


@asynccontextmanager
async def sqlite_machines(rng: random.Random, faults: Faults) -> AsyncIterator[list[Machine]]:
    """One machine with a file."""
    with (
        TemporaryDirectory(prefix="dray-simulation-") as directory,
        _short_memory(),
        threadless_writer(),
        simulated_disks() as disks,
    ):
        yield [SQLiteMachine(rng, faults, Path(directory), disks)]


@asynccontextmanager
async def etcd_machines(rng: random.Random, faults: Faults, *, count: int = 2) -> AsyncIterator[list[Machine]]:
    """Machines that share an etcd."""
    etcd = FakeEtcd(rng, faults)
    truth = EtcdTruth(etcd)
    with _short_memory(), etcd.reachable():
        yield [EtcdMachine(rng, faults, etcd, truth) for _ in range(count)]
        await etcd.settle()


@contextmanager
def _short_memory() -> Iterator[None]:
    with (
        mock.patch.object(sqlite_module, "RECENT_EVENTS_MAX", RECENT_EVENTS),
        mock.patch.object(sqlite_file_module, "CHECKPOINT_PAGES", CHECKPOINT_PAGES),
        mock.patch.object(etcd_module, "RECENT_EVENTS_MAX", RECENT_EVENTS),
        mock.patch.object(etcd_module, "LIST_KEYS_MAX", LIST_KEYS),
    ):
        yield


DECLARED = {"sqlite": SQLITE_FAULTS, "etcd": {**ETCD_FAULTS, **STORE_FAULTS}}
