"""A write-ahead log that is gone or damaged: the next start refuses, and lost revisions are never used again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from dray.cmd import apiserver, recover
from dray.cmd.settings import APIServerSettings
from dray.store.interface import RevisionCompactedError, WritesLostError
from dray.store.revision_mark import read_mark
from dray.store.sqlite import SQLiteStore
from dray.store.sqlite_file import accept_lost_writes, lost_revisions
from tests.e2e.apiserver.calls import calling
from tests.local_server import Local
from tests.servers import READY_SECONDS_MAX, running_server

KEY = "/registry/core/configmaps/default/{}"
WRITES = 300
# Writes one commit after the other, and ends without closing the store, as by a kill.
WRITER = f"""
import asyncio, os, sys
from dray.store.sqlite import SQLiteStore

async def main():
    store = await SQLiteStore.open(sys.argv[1])
    for number in range({WRITES}):
        await store.create({KEY!r}.format(number), b"x" * 500)
    os._exit(0)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("crashed") / "state.db"
    subprocess.run([sys.executable, "-c", WRITER, path], check=True, timeout=60)
    assert read_mark(path) == WRITES + 1
    return path


@pytest.fixture
def path(crashed: Path, tmp_path: Path) -> Path:
    """The files of the crashed process."""
    for file in crashed.parent.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path / crashed.name


def open_and_count(path: Path) -> int:
    async def run() -> int:
        store = await SQLiteStore.open(path)
        try:
            return await store.count("/")
        finally:
            await store.close()

    return asyncio.run(run())


def contents(path: Path) -> dict[str, bytes]:
    names = (path.name, f"{path.name}-wal", f"{path.name}-revision")
    return {name: path.with_name(name).read_bytes() for name in names if path.with_name(name).exists()}


def remove(log: Path) -> None:
    log.unlink()


def truncate(log: Path) -> None:
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])


def flip_in_the_middle(log: Path) -> None:
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)


def flip_in_the_last_frame(log: Path) -> None:
    content = bytearray(log.read_bytes())
    content[-1000] ^= 1
    log.write_bytes(content)


def flip_in_the_header(log: Path) -> None:
    content = bytearray(log.read_bytes())
    content[5] ^= 1
    log.write_bytes(content)


def test_an_intact_log_after_a_crash_is_read(path: Path) -> None:
    assert open_and_count(path) == WRITES


@pytest.mark.parametrize(
    "damage",
    [remove, truncate, flip_in_the_middle, flip_in_the_last_frame, flip_in_the_header],
    ids=lambda f: f.__name__,
)
def test_a_lost_or_damaged_log_is_refused_and_nothing_is_changed(path: Path, damage: object) -> None:
    assert callable(damage)
    log = path.with_name("state.db-wal")
    damage(log)
    before = contents(path)
    fault = "is missing" if damage is remove else "is damaged"
    for _ in range(2):
        with pytest.raises(WritesLostError, match=rf"to {WRITES + 1} are lost.*state.db-wal {fault}"):
            open_and_count(path)
        # SQLite may create an empty log, but takes nothing from a damaged one.
        assert contents(path) == before | ({"state.db-wal": b""} if damage is remove else {})


def test_an_older_database_in_the_place_of_a_newer_one_is_refused(path: Path) -> None:
    assert open_and_count(path) == WRITES
    older = path.read_bytes()

    async def write() -> None:
        store = await SQLiteStore.open(path)
        await store.create(KEY.format("newer"), b"")
        await store.close()

    asyncio.run(write())
    path.write_bytes(older)
    with pytest.raises(WritesLostError, match=f"revisions {WRITES + 2} to {WRITES + 2} are lost"):
        open_and_count(path)


def test_revisions_of_lost_writes_are_never_used_again(path: Path) -> None:
    flip_in_the_middle(path.with_name("state.db-wal"))
    lost = lost_revisions(path)
    assert lost[-1] == WRITES + 1
    resumed = accept_lost_writes(path, lost)

    async def run() -> None:
        store = await SQLiteStore.open(path)
        assert await store.count("/") == lost[0] - 2
        assert (await store.create(KEY.format("new"), b"")).revision == resumed + 1 > lost[-1] + 1
        for revision in (lost[0] - 1, lost[-1]):
            with pytest.raises(RevisionCompactedError):
                await store.watch("/", after_revision=revision)
        await store.maintain(0.0)
        await store.close()

    asyncio.run(run())
    assert not lost_revisions(path)
    assert open_and_count(path) == lost[0] - 1


async def test_a_server_refuses_to_start_until_the_loss_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "server"
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "lost"}}
    with running_server(folder, command="apiserver") as server, calling(server) as admin:
        created = admin.call("POST", "/api/v1/namespaces/default/configmaps", body).json()
        server.kill()
    (folder / "state.db-wal").unlink()

    command = [sys.executable, "-m", "dray", "apiserver", f"--data-dir={folder}", "--port=0"]
    refused = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=READY_SECONDS_MAX, check=False
    )
    assert refused.returncode == 1
    revision = int(created["metadata"]["resourceVersion"])
    assert f"to {revision} are lost" in refused.stderr
    assert f'"dray recover --data-dir={folder} --accept-loss"' in refused.stderr
    assert recover.main([f"--data-dir={folder}"]) == 1
    assert "Nothing was changed" in capsys.readouterr().out
    assert recover.main([f"--data-dir={folder}", "--accept-loss"]) == 0
    assert recover.main([f"--data-dir={folder}"]) == 0
    assert f"{folder}/state.db is complete" in capsys.readouterr().out

    async with apiserver.running(APIServerSettings(data_dir=str(folder), port=0)) as running:
        local = Local(running)
        again = await local.request("create", "core/v1/configmaps@default", body)
        assert int(again["metadata"]["resourceVersion"]) > revision + 1_000_000
        events = await local.watch("core/v1/configmaps", resourceVersion=str(revision))
        kind, status = await anext(events)
        assert (kind, status["code"]) == ("ERROR", 410)
