"""The environment of a container contains Secrets: other users of the node cannot read it."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dray.node.cdi.cache import CdiCache
from dray.node.runtimes.process.runtime import ProcessRuntime
from dray.node.runtimes.runtime import ContainerSpec, Sandbox, Security
from dray.runtime.system import SystemClock
from dray.runtime.tasks import ChildTasks

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become other users")


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    tasks = ChildTasks("test")
    subject = ProcessRuntime(tmp_path, SystemClock(), CdiCache([]))
    await subject.start(lambda _record: None, tasks)
    yield subject
    await subject.stop()
    await tasks.aclose()


async def start(runtime: ProcessRuntime, folder: Path, security: Security) -> str:
    spec = ContainerSpec(
        Sandbox("u", "ns", "p", "p", str(folder / "logs")),
        "a",
        0,
        "",
        command=("sleep", "60"),
        env=(("PASSWORD", "secret"),),
        security=security,
    )
    started = await runtime.run(spec)
    assert started.record.exit is None, started.record.exit
    return started.record.id


async def end(runtime: ProcessRuntime, container_id: str) -> None:
    await runtime.stop_container(container_id, 0.0)
    await runtime.remove_container(container_id)


def modes(top: Path) -> dict[str, set[int]]:
    """The modes of folders and files."""
    found: dict[str, set[int]] = {"folders": {stat.S_IMODE(top.stat().st_mode)}, "files": set()}
    for path in top.rglob("*"):
        found["folders" if path.is_dir() else "files"].add(stat.S_IMODE(path.stat().st_mode))
    return found


async def test_the_files_of_a_container_are_private(runtime: ProcessRuntime, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        container_id = await start(runtime, tmp_path, Security())
        assert modes(tmp_path / "process") == {"folders": {0o700}, "files": {0o600}}
        assert b"secret" in (tmp_path / "process" / container_id / "job.json").read_bytes()
    finally:
        os.umask(before)
    await end(runtime, container_id)
    assert os.listdir(tmp_path / "process") == os.listdir(tmp_path / "process-work") == []


@needs_root
@pytest.mark.parametrize(
    ("security", "expected"),
    [
        (Security(user=1234, group=1235, supplemental_groups=(1236,)), "1234 1235 1235 1236"),
        (Security(user=1234), "1234 0 0"),
        (Security(group=1235), "0 1235 1235"),
        (Security(supplemental_groups=(1236,)), "0 0 0 1236"),
        (Security(), "0 0 0"),
    ],
)
async def test_commands_in_a_container_run_as_its_user(
    runtime: ProcessRuntime, tmp_path: Path, security: Security, expected: str
) -> None:
    container_id = await start(runtime, tmp_path, security)
    script = "echo $(id -u) $(id -g) $(id -G); echo $PASSWORD; touch here && ls"
    result = await runtime.execute(container_id, ["sh", "-c", script], 10.0)
    assert result.output == f"{expected}\nsecret\nhere\n"
    if security.user:
        job = tmp_path / "process" / container_id / "job.json"
        refused = await runtime.execute(container_id, ["cat", str(job)], 10.0)
        assert refused.code != 0
        assert "Permission denied" in refused.output
    await end(runtime, container_id)
