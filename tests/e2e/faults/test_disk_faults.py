"""A full disk, a read-only one and a folder of another user: each is named, and what was stored stays.

The faults are real: a small tmpfs, a read-only mount, and a process without privileges. They need root.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dray.api.errors import APIError, InsufficientStorageError
from dray.client.in_process import in_process_client
from dray.client.interface import Client
from dray.client.resources import NODES, PODS
from dray.cmd import apiserver
from dray.cmd.settings import APIServerSettings, UpSettings
from dray.cmd.up import running_control_plane
from dray.store.interface import StoreUnavailableError
from dray.store.sqlite import SQLiteStore
from tests.local_server import Local

NOBODY = 65534
RECOVER_SECONDS_MAX = 120.0

# The interpreter is started as root, since its own files may be root's.
OPEN_AS_NOBODY = f"""
import asyncio, os, sys
from dray.store.sqlite import SQLiteStore

os.setgroups([])
os.setegid({NOBODY})
os.seteuid({NOBODY})
asyncio.run(SQLiteStore.open(sys.argv[1]))
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=False)
    if mounted.returncode:
        pytest.skip("mounting is not permitted")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk: Path) -> Path:
    """Take all the space that is left."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    return ballast


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Local]:
    async with apiserver.running(APIServerSettings(data_dir=str(folder), port=0)) as running:
        yield Local(running)


def config_map(name: str, size: int) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": "x" * size}}


def plain_pod(name: str) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


async def create_until_full(local: Local) -> APIError:
    for number in range(1000):
        try:
            await local.request("create", "core/v1/configmaps@default", config_map(f"fill-{number}", 50_000))
        except APIError as error:
            return error
    raise AssertionError("the disk is not full")


async def test_a_full_disk_refuses_writes_only_until_there_is_space(disk: Path) -> None:
    async with serving(disk) as local:
        health = local.running.server.health
        ballast = fill(disk)
        error = await create_until_full(local)
        assert isinstance(error, InsufficientStorageError)
        assert error.status() == {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "the store is full: the write could not be stored: no space is left on the disk",
            "reason": "InsufficientStorage",
            "code": 507,
        }
        stored = (await local.request("list", "core/v1/configmaps@default"))["items"]
        assert await local.request("get", "core/v1/namespaces/default")
        ready = await health.report("readyz", {"verbose": ""})
        assert (ready.status, b"[-]etcd-readiness failed" in ready.body) == (500, True)
        assert (await health.report("livez", {})).status == 200

        ballast.unlink()
        deadline = time.monotonic() + RECOVER_SECONDS_MAX
        while (await health.report("readyz", {})).status != 200:
            assert time.monotonic() < deadline
        await local.request("create", "core/v1/configmaps@default", config_map("after", 10))
        assert len((await local.request("list", "core/v1/configmaps@default"))["items"]) == len(stored) + 1


async def placed_on(client: Client, name: str) -> str:
    """Return the node of a Pod as soon as it has one."""
    async with asyncio.timeout(RECOVER_SECONDS_MAX):
        while True:
            pod = await client.get(PODS, name, "default")
            if pod.spec.node_name:
                return pod.spec.node_name
            await asyncio.sleep(0.02)


async def test_controllers_and_scheduler_start_anew_after_a_full_disk(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They have seen writes that the disk refused, and must not act on them."""
    settings = UpSettings(data_dir=str(disk), port=0, usage_interval=0)
    async with running_control_plane(settings) as plane:
        local = Local(plane.server)
        client = in_process_client(plane.server.local, user="admin", groups=("system:masters",))
        await client.create(
            NODES.unstructured, {"metadata": {"name": "node"}, "status": {"allocatable": {"pods": "9"}}}
        )
        await client.create(PODS.unstructured, plain_pod("before"))
        assert await placed_on(client, "before") == "node"
        ballast = fill(disk)
        assert isinstance(await create_until_full(local), InsufficientStorageError)
        with pytest.raises(InsufficientStorageError):
            await client.create(PODS.unstructured, plain_pod("refused"))
        ballast.unlink()
        await client.create(PODS.unstructured, plain_pod("after"))
        assert await placed_on(client, "after") == "node"
        names = {pod.metadata.name for pod in (await client.list(PODS, "default")).items}
        assert names == {"before", "after"}
        await plane.group.cancel()
    starts = [record for record in caplog.records if "start anew with what is stored" in record.message]
    assert len(starts) == 1


async def test_a_full_disk_at_start_is_named_and_the_store_stays(disk: Path) -> None:
    path = disk / "state.db"
    store = await SQLiteStore.open(path)
    entry = await store.create("/registry/core/pods/ns/a", b"1")
    await store.close()
    before = path.read_bytes()
    ballast = fill(disk)
    with pytest.raises(StoreUnavailableError, match="no space is left on the disk of") as refused:
        await SQLiteStore.open(path)
    assert "move" not in str(refused.value)
    assert "backup" not in str(refused.value)
    assert path.read_bytes() == before
    ballast.unlink()
    store = await SQLiteStore.open(path)
    assert (await store.list_page("/")).entries == (entry,)
    await store.close()


async def test_a_new_store_on_a_full_disk_is_refused_for_that(disk: Path) -> None:
    fill(disk)
    with pytest.raises(StoreUnavailableError, match="no space is left on the disk of"):
        await SQLiteStore.open(disk / "state.db")


async def test_a_server_on_a_full_disk_says_so(disk: Path) -> None:
    fill(disk)
    with pytest.raises(Exception, match="cannot be accessed: no space is left on the disk of"):
        async with serving(disk):
            pass


async def test_a_read_only_file_system_is_named(disk: Path) -> None:
    store = await SQLiteStore.open(disk / "state.db")
    await store.close()
    await asyncio.to_thread(subprocess.check_call, ["mount", "-o", "remount,ro", str(disk)])
    with pytest.raises(StoreUnavailableError, match=f"{disk} is on a file system that is mounted read-only"):
        await SQLiteStore.open(disk / "state.db")


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_folder_of_another_user_is_named(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(mode)
    for parent in folder.parents:
        if not parent.stat().st_mode & 0o001:
            parent.chmod(0o755)
    outcome = subprocess.run(
        [sys.executable, "-c", OPEN_AS_NOBODY, folder / "state.db"], capture_output=True, text=True, check=False
    )
    assert f"{folder} belongs to user 0, and this process runs as user {NOBODY}" in outcome.stderr
    assert "chown" in outcome.stderr
    assert not list(folder.iterdir())


async def test_files_that_are_deleted_or_replaced_under_a_running_server_fail_readyz(tmp_path: Path) -> None:
    store = await SQLiteStore.open(tmp_path / "state.db")
    await store.create("/registry/core/pods/ns/a", b"1")
    await store.check_ready(1.0)
    log = tmp_path / "state.db-wal"
    hidden = log.rename(tmp_path / "hidden")
    with pytest.raises(StoreUnavailableError, match=r"state\.db-wal was deleted while the server runs"):
        await store.check_ready(1.0)
    log.write_bytes(b"")
    with pytest.raises(StoreUnavailableError, match=r"state\.db-wal was replaced while the server runs"):
        await store.check_ready(1.0)
    hidden.rename(log)
    await store.check_ready(1.0)
    await store.close()
