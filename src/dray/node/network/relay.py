"""Passes connections of Pods on to an API server that only listens on the node's loopback."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from dray.node.network.service_ports import Target
from dray.runtime.tasks import ChildTasks

# More than the Pods of a node need; further ones wait in the queue of the kernel until others end.
CONNECTIONS_MAX: Final = 512
_CHUNK_BYTES: Final = 64 * 1024
_CONNECT_SECONDS_MAX: Final = 10.0


class Relay:
    """Listens on an address of the node, and copies bytes; what they mean is between the two ends."""

    def __init__(self, target: Target, tasks: ChildTasks) -> None:
        self._target = target
        self._tasks = tasks
        self._free = asyncio.Semaphore(CONNECTIONS_MAX)
        self._server: asyncio.Server | None = None

    async def start(self, host: str) -> Target:
        """Listen on a free port of the address, and return where; raises OSError."""
        self._server = await asyncio.start_server(self._accept, host, 0)
        return Target(host, self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.spawn(self._serve(reader, writer), "connection to the API server")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._free:
            try:
                async with asyncio.timeout(_CONNECT_SECONDS_MAX):
                    far_reader, far_writer = await asyncio.open_connection(self._target.address, self._target.port)
            except OSError:
                writer.close()
                return
            try:
                await asyncio.gather(
                    _copy(reader, far_writer.write, far_writer), _copy(far_reader, writer.write, writer)
                )
            finally:
                for end in (writer, far_writer):
                    end.close()


async def _copy(reader: asyncio.StreamReader, write: Callable[[bytes], None], writer: asyncio.StreamWriter) -> None:
    """Copy until the end of the input, and pass the end on; a broken connection ends both directions."""
    drain: Callable[[], Awaitable[None]] = writer.drain
    try:
        while data := await reader.read(_CHUNK_BYTES):
            write(data)
            await drain()
        # The other direction may have broken meanwhile.
        if writer.can_write_eof() and not writer.is_closing():
            writer.write_eof()
    except OSError:
        with contextlib.suppress(OSError):
            writer.transport.abort()
