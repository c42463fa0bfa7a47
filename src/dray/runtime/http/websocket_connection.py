"""The server's side of a WebSocket connection: messages, pings and the closing handshake."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from dray.runtime.http.byte_stream import Duplex
from dray.runtime.http.websocket import (
    NORMAL,
    Message,
    MessageReader,
    Opcode,
    WebSocketError,
    accept_key,
    encode,
    encode_close,
    offered_protocols,
)
from dray.runtime.tasks import first_completed

# kubelet's: a connection on which nothing happens is closed.
IDLE_SECONDS_MAX: Final = 4 * 3600.0
# How long a client may take to close a connection after the end.
LINGER_SECONDS: Final = 5.0
# The subprotocols of a stream of bytes that only the server sends; the last is meant if the client names none.
BASE64_STREAM: Final = "base64.binary.k8s.io"
STREAM_PROTOCOLS: Final = (BASE64_STREAM, "binary.k8s.io")


class UnknownProtocolError(Exception):
    """The client offers only subprotocols that the server does not have."""


def agree(headers: Mapping[str, str], known: Sequence[str]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the first offered subprotocol that is known, and the headers that accept the upgrade.

    It is empty if the client offers none; if it knows only others, `UnknownProtocolError` is raised.
    """
    offered = offered_protocols(headers.get("sec-websocket-protocol", ""))
    protocol = next((name for name in offered if name in known), "")
    if offered and not protocol:
        raise UnknownProtocolError(f"the server supports only the protocols {', '.join(known)}")
    answer = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", accept_key(headers["sec-websocket-key"])),
    ]
    if protocol:
        answer.append(("Sec-WebSocket-Protocol", protocol))
    return protocol, tuple(answer)


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


async def send_stream(stream: Duplex, protocol: str, chunks: AsyncGenerator[bytes, None]) -> None:
    """Send each chunk as a message until the end or until the client leaves, and close the generator."""
    socket = WebSocket(stream)

    async def send() -> None:
        async for chunk in chunks:
            if chunk and protocol == BASE64_STREAM:
                await socket.send(base64.b64encode(chunk), Opcode.TEXT)
            elif chunk:
                await socket.send(chunk)
        await socket.close()

    async def receive() -> None:
        # What the client sends is ignored.
        while await socket.receive() is not None:
            pass

    async with aclosing(chunks):
        with contextlib.suppress(ConnectionError):
            position, _ = await first_completed(send(), receive())
            if position == 0:
                await socket.linger()
