"""WebSocket connections on the node: the channels of exec and attach, and tunnels for other protocols."""

from __future__ import annotations

import base64
import binascii
from collections import deque
from typing import Final

from dray.rpc.remote_command.messages import (
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
from dray.runtime.http.websocket import INTERNAL_ERROR, PROTOCOL_ERROR, Message, Opcode
from dray.runtime.http.websocket_connection import WebSocket

V5: Final = "v5.channel.k8s.io"
# In the order of kubelet; the client's order decides. None at all means the last but one.
CHANNEL_PROTOCOLS: Final = (
    V5,
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
)
_CLOSE_SIGNAL: Final = 255
_CLOSE_BYTES: Final = 2


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
