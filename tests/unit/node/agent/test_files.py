"""Volumes and logs on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from dray.api.types.core_v1 import HostPathVolumeSource
from dray.node.agent.logs.cri_format import LogOptions
from dray.node.agent.logs.reader import stream
from dray.node.agent.machine_info import read_machine
from dray.node.agent.pod.environment import ConfigError
from dray.node.agent.volume_content import File
from dray.node.agent.volume_files import check_host_path, volume_folder, write_files
from tests.unit.node.agent.builders import a_volume, pod


def test_files_of_a_volume_change_all_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "v"
    write_files(folder, {"a": File(b"1", 0o644), "d/b": File(b"2", 0o400)}, pod())
    before = (folder / "..data").resolve()
    assert (folder / "a").read_bytes() == b"1"
    assert (folder / "d/b").stat().st_mode & 0o777 == 0o400
    write_files(folder, {"a": File(b"1", 0o644), "d/b": File(b"2", 0o400)}, pod())
    assert (folder / "..data").resolve() == before
    write_files(folder, {"a": File(b"new", 0o644)}, pod())
    assert (folder / "a").read_bytes() == b"new"
    assert sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("..")) == ["a"]
    assert not before.exists()


def test_files_cannot_leave_their_volume(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must stay inside"):
        write_files(tmp_path / "v", {"../x": File(b"", 0o644)}, pod())


def test_folders_have_kubelets_names(tmp_path: Path) -> None:
    assert volume_folder(tmp_path, "u", a_volume(emptyDir={})) == tmp_path / "pods/u/volumes/kubernetes.io~empty-dir/v"
    with pytest.raises(ConfigError, match="not offered"):
        volume_folder(tmp_path, "u", a_volume(nfs={"server": "x", "path": "/"}))


@pytest.mark.parametrize(
    ("kind", "problem"),
    [("Directory", ""), ("File", "is not a file"), ("Socket", "is not a socket"), ("", ""), ("DirectoryOrCreate", "")],
)
def test_host_paths_are_checked(tmp_path: Path, kind: str, problem: str) -> None:
    source = msgspec.convert({"path": str(tmp_path), "type": kind}, HostPathVolumeSource)
    if not problem:
        assert check_host_path(source) == str(tmp_path)
        return
    with pytest.raises(ConfigError, match=problem):
        check_host_path(source)


def line(number: int) -> bytes:
    return b"2026-01-01T00:00:%02d.000000000Z stdout F %d\n" % (number, number)


async def collect(path: Path, options: LogOptions, running: bool = False) -> bytes:
    return b"".join([chunk async for chunk in stream(path, options, lambda: running)])


async def test_a_log_is_read_with_its_older_parts(tmp_path: Path) -> None:
    (tmp_path / "0.log.20260101-000000.1").write_bytes(line(1))
    (tmp_path / "0.log").write_bytes(line(2) + line(3))
    assert await collect(tmp_path / "0.log", LogOptions()) == b"1\n2\n3\n"
    assert await collect(tmp_path / "0.log", LogOptions(tail_lines=2)) == b"2\n3\n"
    assert await collect(tmp_path / "0.log", LogOptions(limit_bytes=3)) == b"1\n2"
    assert await collect(tmp_path / "none.log", LogOptions()) == b""


async def test_a_followed_log_is_read_to_its_end_through_rotation(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(line(1))
    running = True
    found: list[bytes] = []

    async def follow() -> None:
        async for chunk in stream(path, LogOptions(follow=True), lambda: running):
            found.append(chunk)  # noqa: PERF401 - looked at while it grows

    async def until(content: bytes) -> None:
        async with asyncio.timeout(5):
            while b"".join(found) != content:  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0.01)

    task = asyncio.create_task(follow())
    await until(b"1\n")
    with path.open("ab") as file:
        file.write(line(2))
    await until(b"1\n2\n")
    path.rename(tmp_path / "0.log.20260101-000000.1")
    path.write_bytes(line(3))
    await until(b"1\n2\n3\n")
    with path.open("ab") as file:
        file.write(line(4))
    running = False
    async with asyncio.timeout(5):
        await task
    assert b"".join(found) == b"1\n2\n3\n4\n"


def test_the_machine_is_read() -> None:
    machine = read_machine(Path("/"), hostname="n1", address="10.0.0.1")
    assert machine.cpus >= 1
    assert machine.memory_bytes > 0
    assert (machine.hostname, machine.addresses) == ("n1", ("10.0.0.1",))
