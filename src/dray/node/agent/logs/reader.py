"""Reads log files and follows them as they grow."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import BinaryIO, Final

from dray.node.agent.logs.cri_format import LogOptions, cut, last_lines, render
from dray.node.untrusted_files import open_regular

# Polling is simpler than inotify, and fast enough for a reader.
FOLLOW_SECONDS: Final = 0.1
CHUNK_BYTES: Final = 64 * 1024


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield all lines of a log, rotated files first."""
    older = sorted(part for part in path.parent.glob(f"{path.name}.*"))
    for part in (*older, path):
        file = open_log(part)
        if file is None:
            continue
        with file:
            for line in file:
                yield line.rstrip(b"\n")


def open_log(path: Path) -> BinaryIO | None:
    """Open a log; None if it is missing, or is not a regular file: a container may see the folder of logs."""
    try:
        return open_regular(path)
    except OSError:
        return None


def last_output(path: Path, lines: int, size: int) -> str:
    """Return the end of a log, limited by lines and bytes."""
    shown = b"".join(render(last_lines(read_lines(path), lines), LogOptions()))
    return shown[-size:].decode(errors="replace")


async def stream(path: Path, options: LogOptions, running: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
    """Yield the requested part of a log; with `follow`, until the container has exited and everything is read."""
    left = options.limit_bytes
    follower = Follower(path)
    raw = follower.begin() if options.follow else list(read_lines(path))
    if options.tail_lines is not None:
        raw = last_lines(raw, options.tail_lines)
    buffer = b"".join(cut(render(raw, options), left))
    for start in range(0, len(buffer), CHUNK_BYTES):
        yield buffer[start : start + CHUNK_BYTES]
    if not options.follow:
        return
    left = left - len(buffer) if left is not None else None
    async with aclosing(_follow(follower, options, left, running)) as chunks:
        async for chunk in chunks:
            yield chunk


async def _follow(
    follower: Follower, options: LogOptions, left: int | None, running: Callable[[], bool]
) -> AsyncGenerator[bytes, None]:
    try:
        while left is None or left > 0:
            # Output that was written before the exit must still be read.
            is_running = running()
            chunk = b"".join(cut(render(follower.more(), options), left))
            if chunk:
                yield chunk
                left = left - len(chunk) if left is not None else None
            elif not is_running:
                return
            else:
                await asyncio.sleep(FOLLOW_SECONDS)
    finally:
        follower.close()


class Follower:
    """Reads whole lines from a file that grows and may be rotated."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def begin(self) -> list[bytes]:
        """Return all existing lines."""
        older = sorted(part for part in self._path.parent.glob(f"{self._path.name}.*"))
        lines = []
        for file in filter(None, map(open_log, older)):
            with file:
                lines += file.read().splitlines()
        return [*lines, *self.more()]

    def more(self) -> list[bytes]:
        """Return the lines written since the last call."""
        if self._file is None:
            self._file = open_log(self._path)
            if self._file is None:
                return []
        data = self._rest + self._file.read()
        if not data and self._replaced():
            self._file.close()
            self._file = None
            return self.more()
        *lines, self._rest = data.split(b"\n")
        return lines

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _replaced(self) -> bool:
        assert self._file is not None
        try:
            now = self._path.stat()
        except OSError:
            return False
        return now.st_ino != os.fstat(self._file.fileno()).st_ino
