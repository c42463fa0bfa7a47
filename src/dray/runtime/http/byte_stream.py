"""The bytes of a connection after an upgrade, with back-pressure in both directions."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Final, Protocol

from dray.runtime.tasks import first_completed

# Reading from the network pauses when this much was received and not read.
RECEIVED_BYTES_MAX: Final = 256 * 1024
# How long the other side may take to read the rest of a closed connection.
CLOSE_SECONDS_MAX: Final = 10.0
# A dead peer is detected after about 90 seconds.
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


def detect_dead_peers(opened: socket.socket) -> None:
    """Close a TCP connection whose peer has vanished; what is accepted on a listening socket inherits that."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        if hasattr(socket, option):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def close_transport(transport: asyncio.WriteTransport) -> None:
    """Send what was written and close; a peer that does not read it is disconnected."""
    if not transport.is_closing():
        transport.close()
        asyncio.get_running_loop().call_later(CLOSE_SECONDS_MAX, transport.abort)


class Duplex(Protocol):
    """A two-way stream of bytes."""

    async def read(self) -> bytes:
        """Return the next bytes, none at the end."""

    async def write(self, data: bytes) -> None:
        """Send bytes; return when more may be sent. Raises `ConnectionError` if the other side is gone."""

    def close(self) -> None:
        """Send what was written and close; idempotent."""


class ByteStream:
    """Implements `Duplex` on a transport, whose protocol calls the methods at the end."""

    def __init__(self, transport: asyncio.Transport, received: bytes = b"") -> None:
        self._transport = transport
        self._received: deque[bytes] = deque([received] if received else [])
        self._received_bytes = len(received)
        self._is_reading = True
        self._ended = False
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        if received:
            self._readable.set()

    async def read(self) -> bytes:
        """Return the bytes received so far, or wait for some; none at the end."""
        while not self._received:
            if self._ended:
                return b""
            self._readable.clear()
            await self._readable.wait()
        data = self._received[0] if len(self._received) == 1 else b"".join(self._received)
        self._received.clear()
        self._received_bytes = 0
        if not self._is_reading and not self._transport.is_closing():
            self._is_reading = True
            self._transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes; return when the other side has read enough of them."""
        if self._ended or self._transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        self._transport.write(data)
        if not self._writable.is_set():
            await self._writable.wait()

    def close(self) -> None:
        """Send what was written and close; a peer that does not read it is disconnected."""
        close_transport(self._transport)

    # --- Called by the protocol. ---

    def feed(self, data: bytes) -> None:
        """Take received bytes."""
        self._received.append(data)
        self._received_bytes += len(data)
        self._readable.set()
        if self._received_bytes > RECEIVED_BYTES_MAX and self._is_reading and not self._transport.is_closing():
            self._is_reading = False
            self._transport.pause_reading()

    def feed_end(self) -> None:
        """Note that the connection has ended; what was received can still be read."""
        self._ended = True
        self._readable.set()
        self._writable.set()

    def pause_writing(self) -> None:
        """Let writers wait."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let writers continue."""
        self._writable.set()


async def pump(one: Duplex, other: Duplex) -> None:
    """Copy bytes in both directions until one side ends, then close both."""
    try:
        await first_completed(_copy(one, other), _copy(other, one))
    finally:
        one.close()
        other.close()


async def _copy(source: Duplex, target: Duplex) -> None:
    try:
        while data := await source.read():
            await target.write(data)
    except ConnectionError:
        return
