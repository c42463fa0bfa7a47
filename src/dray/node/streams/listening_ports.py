"""Connects to the ports that the processes of a Pod listen on, while Pods share the network of their node.

Without the check a port-forward would be a way into everything that listens on the node's loopback interface.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from dray.rpc.remote_command.messages import CHUNK_BYTES
from dray.runtime.http.byte_stream import close_transport

CONNECT_SECONDS_MAX: Final = 10.0
_LISTENING: Final = "0A"
# Fields of a line in /proc/net/tcp.
_ADDRESS, _STATE, _INODE = 1, 3, 9


class SocketPort:
    """Implements `ForwardedPort` with a TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        """Return received bytes."""
        return await self._reader.read(CHUNK_BYTES)

    async def write(self, data: bytes) -> None:
        """Send bytes."""
        self._writer.write(data)
        await self._writer.drain()

    async def end(self) -> None:
        """Send no more."""
        if self._writer.can_write_eof() and not self._writer.is_closing():
            self._writer.write_eof()

    def close(self) -> None:
        """Close the connection, also to a program that does not read."""
        close_transport(self._writer.transport)


async def connect_to_pod(port: int, processes: Collection[int]) -> SocketPort:
    """Connect to a port on which one of the processes listens; raises OSError as if it were closed."""
    if not await asyncio.to_thread(listens, port, processes):
        raise ConnectionRefusedError(f"failed to connect to localhost:{port} inside namespace: connection refused")
    failure: OSError = ConnectionRefusedError("connection refused")
    for host in ("127.0.0.1", "::1"):
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                return SocketPort(*await asyncio.open_connection(host, port))
        except OSError as error:
            failure = error if host == "127.0.0.1" else failure
    raise failure


def listens(port: int, processes: Collection[int], proc: Path = Path("/proc")) -> bool:
    """Whether one of the processes listens on a TCP port."""
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port, proc)}
    return bool(wanted) and any(link in wanted for pid in processes for link in _open_files(pid, proc))


def _listening_inodes(port: int, proc: Path) -> Iterator[str]:
    suffix = f":{port:04X}"
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in (line.split() for line in lines):
            if fields[_STATE] == _LISTENING and fields[_ADDRESS].endswith(suffix):
                yield fields[_INODE]


def _open_files(pid: int, proc: Path) -> Iterator[str]:
    folder = proc / str(pid) / "fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(folder / name)
        except OSError:
            continue


def descendants(pids: Iterable[int], proc: Path = Path("/proc")) -> set[int]:
    """Return the processes and all processes below them."""
    found: set[int] = set()
    left = list(pids)
    while left:
        pid = left.pop()
        if pid in found:
            continue
        found.add(pid)
        try:
            tasks = os.listdir(proc / str(pid) / "task")
        except OSError:
            continue
        for task in tasks:
            try:
                left += map(int, (proc / str(pid) / "task" / task / "children").read_text(encoding="ascii").split())
            except OSError:
                continue
    return found
