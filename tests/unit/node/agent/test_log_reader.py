"""Reading and following logs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dray.node.agent.logs.cri_format import LogOptions
from dray.node.agent.logs.reader import stream


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
