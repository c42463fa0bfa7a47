"""A client's connection to the shim of a container: its output from now on, and its standard input."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from pathlib import Path
from typing import Final

from dray.node.runtimes.runtime import RuntimeFailure
from dray.node.runtimes.shim import program
from dray.rpc.remote_command.messages import STDERR, STDOUT, StreamEnd, StreamOptions
from dray.runtime.http.byte_stream import close_transport

CONNECT_SECONDS_MAX: Final = 10.0
_HEAD_BYTES: Final = 5
_OUTPUTS: Final = {program.ATTACH_STDOUT: STDOUT, program.ATTACH_STDERR: STDERR}


class Attachment:
    """Implements `ContainerStreams` with the frames of `program.Attachments`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, options: StreamOptions) -> None:
        self._reader = reader
        self._writer = writer
        self._wanted = {STDOUT: options.stdout, STDERR: options.stderr}
        # Whether the shim has said that the container has ended.
        self._ended = False

    async def read(self) -> tuple[int, bytes] | None:
        """Return the next output."""
        while True:
            try:
                head = await self._reader.readexactly(_HEAD_BYTES)
                kind, size = head[0], struct.unpack(">I", head[1:])[0]
                data = await self._reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
            if kind == program.ATTACH_ENDED:
                self._ended = True
                return None
            channel = _OUTPUTS.get(kind)
            if channel is not None and self._wanted[channel]:
                return channel, data

    async def write(self, data: bytes) -> None:
        """Write to the container's standard input."""
        await self._send(program.ATTACH_STDIN, data)

    async def end_input(self) -> None:
        """Close the standard input, if the container's is to be closed then."""
        await self._send(program.ATTACH_STDIN_END)

    async def resize(self, columns: int, rows: int) -> None:
        """Set the size of the container's terminal."""
        await self._send(program.ATTACH_RESIZE, struct.pack(">HH", columns, rows))

    async def wait(self) -> StreamEnd:
        """Return success if the container has ended."""
        if self._ended:
            return StreamEnd(0)
        return StreamEnd(None, "the connection was closed, because the output was not read fast enough")

    def close(self) -> None:
        """Detach, also from a container that does not read its input."""
        close_transport(self._writer.transport)

    async def _send(self, kind: int, data: bytes = b"") -> None:
        # The container may have ended.
        with contextlib.suppress(ConnectionError):
            self._writer.write(_frame(kind, data))
            await self._writer.drain()


async def connect(folder: Path, options: StreamOptions) -> Attachment:
    """Attach to the container of a shim's folder; raises `RuntimeFailure`."""
    # The path of a socket must be short, and that of a folder need not be.
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{descriptor}/attach")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise RuntimeFailure(f"the container's shim does not answer: {error}") from error
    writer.write(_frame(program.ATTACH_START, bytes((options.stdin,))))
    return Attachment(reader, writer, options)


def _frame(kind: int, data: bytes = b"") -> bytes:
    return struct.pack(">BI", kind, len(data)) + data
