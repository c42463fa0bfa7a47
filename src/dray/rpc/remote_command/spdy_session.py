"""SPDY connections on the node: the streams of exec and attach of older clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Final

from dray.rpc.remote_command.messages import (
    CHUNK_BYTES,
    ERROR,
    RESIZE,
    STDERR,
    STDIN,
    STDOUT,
    Input,
    ResizeReader,
    StdinData,
    StdinEnd,
    StreamEnd,
    StreamOptions,
    StreamProtocolError,
    end_message,
)
from dray.runtime.http.byte_stream import Duplex
from dray.runtime.http.spdy import (
    Data,
    Frame,
    Ping,
    RstStream,
    SpdyConnection,
    SpdyError,
    SynStream,
    data_frame,
    ping_frame,
    reset_frame,
)
from dray.runtime.http.websocket_connection import IDLE_SECONDS_MAX, LINGER_SECONDS

# The client's order decides.
COMMAND_PROTOCOLS: Final = ("v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io")
_WITHOUT_RESIZE: Final = ("v2.channel.k8s.io", "channel.k8s.io")
# kubelet's: all streams must have been opened by then.
STREAMS_SECONDS_MAX: Final = 30.0
_CHANNELS: Final = {"stdin": STDIN, "stdout": STDOUT, "stderr": STDERR, "error": ERROR, "resize": RESIZE}


class SpdySession:
    """The streams of exec or attach in one SPDY connection; implements `Session`."""

    def __init__(self, stream: Duplex, protocol: str, options: StreamOptions) -> None:
        self._stream = stream
        self._protocol = protocol
        self._spdy = SpdyConnection()
        self._expected = _expected_channels(protocol, options)
        # Stream IDs by channel.
        self._ids: dict[int, int] = {}
        self._sizes = ResizeReader()
        self._inputs: deque[Input] = deque()

    async def start(self) -> None:
        """Wait for the streams; raises `ConnectionError` or `StreamProtocolError`."""
        try:
            async with asyncio.timeout(STREAMS_SECONDS_MAX):
                while self._expected - self._ids.keys():
                    if not await self._read():
                        raise ConnectionResetError("the client is gone")
        except TimeoutError as error:
            raise StreamProtocolError("the client has not opened all streams") from error

    async def receive(self) -> Input | None:
        """Return the next input; None at the end."""
        while not self._inputs:
            try:
                if not await self._read():
                    return None
            except StreamProtocolError:
                return None
        return self._inputs.popleft()

    async def _read(self) -> bool:
        """Handle received frames; return whether the connection is open."""
        try:
            async with asyncio.timeout(IDLE_SECONDS_MAX):
                data = await self._stream.read()
        except TimeoutError:
            return False
        try:
            for frame in self._spdy.feed(data):
                await self._take(frame)
        except SpdyError as error:
            raise StreamProtocolError(str(error)) from error
        return bool(data)

    async def _take(self, frame: Frame) -> None:
        if isinstance(frame, SynStream):
            await self._open(frame)
        elif isinstance(frame, Data):
            if frame.stream_id == self._ids.get(STDIN):
                if frame.data:
                    self._inputs.append(StdinData(frame.data))
                if frame.fin:
                    self._inputs.append(StdinEnd())
            elif frame.stream_id == self._ids.get(RESIZE):
                self._inputs.extend(self._sizes.feed(frame.data))
        elif isinstance(frame, RstStream):
            if frame.stream_id == self._ids.get(STDIN):
                self._inputs.append(StdinEnd())
        elif isinstance(frame, Ping):
            await self._stream.write(ping_frame(frame.number))

    async def _open(self, frame: SynStream) -> None:
        channel = _CHANNELS.get(frame.headers.get("streamtype", ""))
        if channel is None or channel in self._ids:
            await self._stream.write(reset_frame(frame.stream_id))
            return
        self._ids[channel] = frame.stream_id
        await self._stream.write(self._spdy.reply(frame.stream_id))

    async def send(self, channel: int, data: bytes) -> None:
        """Send output; raises `ConnectionError`."""
        stream_id = self._ids.get(channel)
        if stream_id is not None:
            for start in range(0, len(data), CHUNK_BYTES):
                await self._stream.write(data_frame(stream_id, data[start : start + CHUNK_BYTES]))

    async def finish(self, end: StreamEnd, failure_prefix: str) -> None:
        """End the outputs, tell the client how it ended, and wait a moment for it to close."""
        frames = b"".join(
            data_frame(self._ids[channel], b"", fin=True) for channel in (STDOUT, STDERR) if channel in self._ids
        )
        if ERROR in self._ids:
            frames += data_frame(self._ids[ERROR], end_message(self._protocol, end, failure_prefix), fin=True)
        await self._stream.write(frames)
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(LINGER_SECONDS):
                while await self._stream.read():
                    pass

    async def fail(self) -> None:
        """Do nothing: the connection is closed after a bug."""


def _expected_channels(protocol: str, options: StreamOptions) -> set[int]:
    found = {ERROR}
    for channel, wanted in ((STDIN, options.stdin), (STDOUT, options.stdout), (STDERR, options.stderr)):
        if wanted:
            found.add(channel)
    if options.tty and protocol not in _WITHOUT_RESIZE:
        found.add(RESIZE)
    return found
