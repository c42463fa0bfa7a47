"""No acknowledged write is lost, whenever the process dies; a damaged file is refused, never emptied."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import pytest

from dray.store.interface import StoreDamagedError, StoreLockedError
from dray.store.sqlite import SQLiteStore
from dray.store.sqlite_file import lock

KILLS = 100
# Lines read before a kill; the moment within the next write is left to chance.
LINES_BEFORE_KILL_MAX = 600
WRITER = Path(__file__).with_name("kill_writer.py")


@dataclass(frozen=True)
class Written:
    """The last write of a key that is known to be stored; no checksum once it is deleted."""

    revision: int
    checksum: int | None


NEVER = Written(0, None)


class Acknowledged:
    """What the killed processes reported as stored, and what they had begun."""

    def __init__(self) -> None:
        self.last: dict[str, Written] = {}
        # The revision on which the last write that was begun builds; 0 for a creation.
        self.tried: dict[str, int] = {}
        self.revision = 1

    def read(self, line: str) -> None:
        kind, key, revision_text, checksum = line.split(" ")
        revision = int(revision_text)
        if kind == "OPEN":
            assert revision == self.revision, "the revision changed over a restart"
        elif kind == "TRY":
            self.tried[key] = revision
        else:
            assert revision > self.last.get(key, NEVER).revision, "revisions of a key must rise"
            self.last[key] = Written(revision, int(checksum) if kind == "PUT" else None)
            self.tried.pop(key)
            self.revision = max(self.revision, revision)


class Writers:
    """Forks processes that write to a file, one at a time, and kills them."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, str(WRITER), str(path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close(self) -> None:
        self._process.communicate()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.endswith("\n"), "acknowledgements are whole lines"
        return line.rstrip("\n")

    def run_and_kill(self, seed: int, acknowledged: Acknowledged) -> None:
        chance = random.Random(seed)
        writes = chance.choice([0, 1, chance.randrange(LINES_BEFORE_KILL_MAX)])
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seed}\n")
        self._process.stdin.flush()
        kind, _, child, _ = self._read().split(" ")
        assert kind == "PID"
        lines = [self._read() for _ in range(writes + 1)]
        os.kill(int(child), signal.SIGKILL)
        while not (line := self._read()).startswith("END "):
            lines.append(line)
        assert int(line.split(" ")[2]) == -signal.SIGKILL, "the writer ended by itself"
        for line in lines:
            acknowledged.read(line)


async def check(path: Path, acknowledged: Acknowledged) -> None:
    """Every key is at its last acknowledged write, or at the one write on top of it that was under way."""
    store = await SQLiteStore.open(path)
    assert await store.revision() >= acknowledged.revision
    entries = {entry.key: entry for entry in (await store.list_page("/")).entries}
    for key in {*acknowledged.last, *acknowledged.tried, *entries}:
        entry, last = entries.get(key), acknowledged.last.get(key, NEVER)
        unchanged = entry.revision == last.revision if entry else last.checksum is None
        if unchanged:
            assert (crc32(entry.value) if entry else None) == last.checksum
        else:
            assert entry is None or entry.revision > last.revision
            assert acknowledged.tried.get(key) == (last.revision if last.checksum is not None else 0), key
        acknowledged.last[key] = Written(entry.revision, crc32(entry.value)) if entry else Written(last.revision, None)
    acknowledged.tried.clear()
    acknowledged.revision = await store.revision()
    await store.close()


def open_and_close(path: Path) -> None:
    async def run() -> None:
        await (await SQLiteStore.open(path)).close()

    asyncio.run(run())


def contents(path: Path) -> list[tuple[str, bytes]]:
    async def run() -> list[tuple[str, bytes]]:
        store = await SQLiteStore.open(path)
        page = await store.list_page("/")
        await store.close()
        return [(entry.key, entry.value) for entry in page.entries]

    return asyncio.run(run())


OBJECTS = [(f"/registry/core/pods/ns/{number:03}", b"%03d" % number * 300) for number in range(200)]


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"

    async def run() -> None:
        store = await SQLiteStore.open(path)
        await asyncio.gather(*(store.create(key, value) for key, value in OBJECTS))
        await store.close()

    asyncio.run(run())
    assert contents(path) == OBJECTS
    return path


def test_acknowledged_writes_survive_a_hundred_kills(tmp_path: Path) -> None:
    path, acknowledged = tmp_path / "store.db", Acknowledged()
    with closing(Writers(path)) as writers:
        for number in range(KILLS):
            writers.run_and_kill(number, acknowledged)
            asyncio.run(check(path, acknowledged))
    assert len(acknowledged.last) > 50
    assert acknowledged.revision > 1000


def test_two_processes_cannot_share_a_file(healthy: Path) -> None:
    with lock(healthy):
        child = subprocess.run([sys.executable, WRITER, healthy, "0"], capture_output=True, text=True, check=False)
        assert child.returncode == 1
        assert "in use by another process" in child.stderr
        with pytest.raises(StoreLockedError):
            open_and_close(healthy)
    open_and_close(healthy)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(healthy: Path, share: float) -> None:
    content = healthy.read_bytes()
    healthy.write_bytes(content[: int(len(content) * share)])
    before = healthy.read_bytes()
    with pytest.raises(StoreDamagedError, match="Restore the file from a backup"):
        open_and_close(healthy)
    assert healthy.read_bytes() == before


def test_a_flipped_byte_is_refused_or_harmless(healthy: Path) -> None:
    """Wherever a byte of the file changes, the store is refused or shows exactly what was written."""
    chance = random.Random(1)
    content = healthy.read_bytes()
    refused = 0
    for number in range(60):
        at = chance.randrange(len(content))
        copy = healthy.with_name(f"copy-{number}.db")
        copy.write_bytes(content[:at] + bytes([content[at] ^ chance.randrange(1, 256)]) + content[at + 1 :])
        try:
            assert contents(copy) == OBJECTS, f"byte {at} of {len(content)}"
        except StoreDamagedError:
            refused += 1
    assert refused > 40


@pytest.mark.parametrize("content", [b"", b"not a database, but long enough to be one " * 100, b"\0" * 8192])
def test_what_is_no_database_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(content)
    with pytest.raises(StoreDamagedError, match=str(path)):
        open_and_close(path)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE log (revision)")
    with pytest.raises(StoreDamagedError, match="not a store's database"):
        open_and_close(path)


def test_a_file_of_a_newer_version_is_refused(healthy: Path) -> None:
    with closing(sqlite3.connect(healthy)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreDamagedError, match="schema version 99"):
        open_and_close(healthy)


def test_a_lost_file_with_its_log_left_is_refused(healthy: Path) -> None:
    healthy.with_name("store.db-wal").write_bytes(b"x")
    healthy.unlink()
    with pytest.raises(StoreDamagedError, match="write-ahead log"):
        open_and_close(healthy)


def test_a_missing_row_is_refused(healthy: Path) -> None:
    """The pages are sound, but the history has a hole."""
    with closing(sqlite3.connect(healthy, isolation_level=None)) as connection:
        connection.execute("DELETE FROM log WHERE revision = 77")
    with pytest.raises(StoreDamagedError, match="revision 77 is missing"):
        open_and_close(healthy)
