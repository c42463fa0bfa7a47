"""WebSocket connections on the node: the channels of exec and attach, and tunnels for other protocols."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections import deque
from typing import Final

from dray.node.runtimes.streams import STDERR, STDOUT, StreamEnd, StreamOptions
from dray.node.streams.messages import (
    ERROR,
    RESIZE,
    STDIN,
    Input,
    ResizeReader,
    StdinData,
    StdinEnd,
    StreamProtocolError,
    end_message,
)
from dray.runtime.http.byte_stream import Duplex
from dray.runtime.http.websocket import (
    INTERNAL_ERROR,
    NORMAL,
    PROTOCOL_ERROR,
    Message,
    MessageReader,
    Opcode,
    WebSocketError,
    encode,
    encode_close,
)

V5: Final = "v5.channel.k8s.io"
# In the order of kubelet; the client's order decides. None at all means the last but one.
CHANNEL_PROTOCOLS: Final = (
    V5,
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
)
# kubelet's: a connection on which nothing happens is closed.
IDLE_SECONDS_MAX: Final = 4 * 3600.0
# How long a client may take to close a connection after the end.
LINGER_SECONDS: Final = 5.0
_CLOSE_SIGNAL: Final = 255
_CLOSE_BYTES: Final = 2


class WebSocket:
    """Messages over a connection: answers pings, and closes when the client does."""

    def __init__(self, stream: Duplex, *, idle_seconds: float = IDLE_SECONDS_MAX) -> None:
        self._stream = stream
        self._reader = MessageReader()
        self._ready: deque[Message] = deque()
        self._idle_seconds = idle_seconds
        self._last_sent = asyncio.get_running_loop().time()
        self._closed = False

    async def receive(self) -> Message | None:
        """Return the next message with data; None at the end."""
        while True:
            while self._ready:
                message = self._ready.popleft()
                if message.opcode is Opcode.CLOSE:
                    await self.close()
                    return None
                if message.opcode is Opcode.PING:
                    await self._stream.write(encode(Opcode.PONG, message.data))
                elif message.opcode is not Opcode.PONG:
                    return message
            data = await self._read()
            if not data:
                return None
            try:
                self._ready.extend(self._reader.feed(data))
            except WebSocketError as error:
                await self.close(error.code, str(error))
                return None

    async def _read(self) -> bytes:
        """Return received bytes, none at the end or when nothing was sent and received for too long."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            left = max(started, self._last_sent) + self._idle_seconds - loop.time()
            if left <= 0:
                return b""
            try:
                async with asyncio.timeout(left):
                    return await self._stream.read()
            except TimeoutError:
                continue

    async def send(self, data: bytes, opcode: Opcode = Opcode.BINARY) -> None:
        """Send a message; raises `ConnectionError`."""
        self._last_sent = asyncio.get_running_loop().time()
        await self._stream.write(encode(opcode, data))

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Send a close frame, once."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(ConnectionError):
                await self._stream.write(encode_close(code, reason))

    async def linger(self) -> None:
        """Wait a moment for the client to close: unread bytes would reset the connection before it has read all."""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(LINGER_SECONDS):
                while await self._stream.read():
                    pass


class ChannelSession:
    """The channels of exec or attach in one WebSocket connection; implements `Session`."""

    def __init__(self, stream: Duplex, protocol: str, options: StreamOptions) -> None:
        self._socket = WebSocket(stream)
        self._protocol = protocol or CHANNEL_PROTOCOLS[3]
        self._is_text = "base64" in self._protocol
        self._options = options
        self._sizes = ResizeReader()
        self._inputs: deque[Input] = deque()

    async def start(self) -> None:
        """Send an empty message to say that the channels are open."""
        options = self._options
        await self.send(STDOUT if options.stdout else STDERR if options.stderr else ERROR, b"")

    async def receive(self) -> Input | None:
        """Return the next input; None at the end."""
        while not self._inputs:
            message = await self._socket.receive()
            if message is None:
                return None
            try:
                self._take(message)
            except StreamProtocolError as error:
                await self._socket.close(PROTOCOL_ERROR, str(error))
                return None
        return self._inputs.popleft()

    def _take(self, message: Message) -> None:
        channel, data = self._decode(message.data)
        if channel == STDIN and self._options.stdin:
            if data:
                self._inputs.append(StdinData(data))
        elif channel == RESIZE and self._options.tty:
            self._inputs.extend(self._sizes.feed(data))
        elif channel == _CLOSE_SIGNAL and self._protocol == V5:
            if len(data) != _CLOSE_BYTES - 1:
                raise StreamProtocolError("a close signal has two bytes")
            if data[0] == STDIN:
                self._inputs.append(StdinEnd())

    def _decode(self, data: bytes) -> tuple[int, bytes]:
        if not data:
            return -1, b""
        if not self._is_text:
            return data[0], data[1:]
        try:
            return int(data[:1]), base64.b64decode(data[1:], validate=True)
        except (ValueError, binascii.Error) as error:
            raise StreamProtocolError("a message is not in base64") from error

    async def send(self, channel: int, data: bytes) -> None:
        """Send output; raises `ConnectionError`."""
        if self._is_text:
            await self._socket.send(b"%d" % channel + base64.b64encode(data), Opcode.TEXT)
        else:
            await self._socket.send(bytes((channel,)) + data)

    async def finish(self, end: StreamEnd, failure_prefix: str) -> None:
        """Tell the client how it ended, and close."""
        message = end_message(self._protocol, end, failure_prefix)
        if message:
            await self.send(ERROR, message)
        await self._socket.close()
        await self._socket.linger()

    async def fail(self) -> None:
        """Close after a bug."""
        await self._socket.close(INTERNAL_ERROR)


class Tunnel:
    """Another protocol's bytes in the messages of a WebSocket connection; implements `Duplex`."""

    def __init__(self, stream: Duplex) -> None:
        self._stream = stream
        self._socket = WebSocket(stream)

    async def read(self) -> bytes:
        """Return the bytes of the next message."""
        while (message := await self._socket.receive()) is not None:
            if message.data:
                return message.data
        return b""

    async def write(self, data: bytes) -> None:
        """Send bytes."""
        await self._socket.send(data)

    async def finish(self) -> None:
        """Close the WebSocket."""
        await self._socket.close()
        await self._socket.linger()

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
