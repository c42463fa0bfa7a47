"""A small server for a component's own pages; the API server has another, made for its load."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from contextlib import aclosing
from typing import Any, Final, cast

from dray.runtime.http.heads import answer_head
from dray.runtime.http.requests import BODY_BYTES_MAX, Request, RequestError, RequestReader
from dray.runtime.http.router import Handler, Reply, text

_log = logging.getLogger(__name__)

# A connection that asks nothing for this long is closed.
IDLE_SECONDS_MAX: Final = 75.0
# From the first byte of a request to its last.
REQUEST_SECONDS_MAX: Final = 30.0
HANDSHAKE_SECONDS_MAX: Final = 10.0
# A client that was refused may go on sending for this long.
LINGER_SECONDS_MAX: Final = 1.0
# What is being answered when the server stops has this long to end by itself.
STOP_SECONDS_MAX: Final = 0.5
# Requests of one connection that may wait for the one before.
PIPELINE_MAX: Final = 16
_BODILESS: Final = frozenset({204, 304})


class HttpServer:
    """Listens, and has a handler answer."""

    def __init__(self, handler: Handler, *, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self.handler = handler
        self.body_bytes_max = body_bytes_max
        self.closing = False
        self.connections: set[ServerConnection] = set()
        self._socket: asyncio.Server | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen; returns the port, which matters when 0 was asked for."""
        loop = asyncio.get_running_loop()
        handshake = HANDSHAKE_SECONDS_MAX if tls is not None else None
        self._socket = await loop.create_server(
            lambda: ServerConnection(self), host, port, ssl=tls, ssl_handshake_timeout=handshake
        )
        return int(self._socket.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Take no more connections, let what is being answered end, but not for long, and close."""
        self.closing = True
        if self._socket is not None:
            self._socket.close()
        busy = []
        for connection in tuple(self.connections):
            if connection.task is None:
                connection.transport.abort()
            else:
                busy.append(connection.task)
        if busy:
            _, left = await asyncio.wait(busy, timeout=STOP_SECONDS_MAX)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        for connection in tuple(self.connections):
            connection.transport.abort()


class ServerConnection(asyncio.Protocol):
    """One client: its requests are answered one after the other, in order."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._reader = RequestReader(server.body_bytes_max)
        self._timer: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._certificate: dict[str, Any] = {}
        # What else comes is dropped.
        self._refused = False
        self.task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)

    # --- asyncio's callbacks ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember who is calling."""
        self.transport = cast("asyncio.Transport", transport)
        self._certificate = transport.get_extra_info("peercert") or {}
        self._server.connections.add(self)
        self._wait_at_most(IDLE_SECONDS_MAX)

    def connection_lost(self, _error: Exception | None) -> None:
        """Stop working for a client that is gone."""
        self._server.connections.discard(self)
        self._stop_timer()
        self._writable.set()
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        """The client reads slower than we write."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The client caught up."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Read on, and answer what is whole."""
        if self._refused or self.transport.is_closing():
            return
        was_between = self._reader.is_between
        try:
            self._reader.feed(data)
        except RequestError as error:
            self._refuse(error)
            return
        if self._reader.expects_continue:
            self._reader.expects_continue = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if len(self._reader.ready) > PIPELINE_MAX:
            self._refuse(RequestError(429, "too many pipelined requests"))
        elif self.task is None and self._reader.ready:
            self._stop_timer()
            self.task = asyncio.create_task(self._answer_all())
        elif self.task is None and was_between:
            self._wait_at_most(REQUEST_SECONDS_MAX)

    # --- answering ---

    async def _answer_all(self) -> None:
        try:
            while self._reader.ready:
                request = self._reader.ready.popleft()
                request.certificate = self._certificate
                await self._answer(request)
                if not request.keep_alive or self._server.closing:
                    self.transport.close()
                    return
        finally:
            self.task = None
        self._wait_at_most(IDLE_SECONDS_MAX if self._reader.is_between else REQUEST_SECONDS_MAX)

    async def _answer(self, request: Request) -> None:
        try:
            reply = await self._server.handler(request)
        except Exception:  # noqa: BLE001 - the outer edge: a bug ends this request only
            _log.exception("%s %s", request.method, request.target)
            reply = text("500: Internal Server Error", 500)
        if reply.stream is None:
            self._write(request, reply)
            return
        try:
            async with aclosing(reply.stream):
                await self._write_stream(request, reply)
        except Exception:  # noqa: BLE001 - half an answer cannot be made a failure; ended early it can be seen
            _log.exception("%s %s", request.method, request.target)
            self.transport.abort()

    def _write(self, request: Request, reply: Reply) -> None:
        sizes = () if reply.status in _BODILESS else (("Content-Length", str(len(reply.body))),)
        head = self._head(request, reply, sizes)
        self.transport.write(head if request.method == "HEAD" or reply.status in _BODILESS else head + reply.body)

    async def _write_stream(self, request: Request, reply: Reply) -> None:
        chunked = request.takes_chunks
        self.transport.write(self._head(request, reply, (("Transfer-Encoding", "chunked"),) if chunked else ()))
        if request.method == "HEAD":
            return
        if reply.body:
            self._write_piece(reply.body, chunked=chunked)
        assert reply.stream is not None
        async for piece in reply.stream:
            if piece:
                self._write_piece(piece, chunked=chunked)
            await self._writable.wait()
        if chunked:
            self.transport.write(b"0\r\n\r\n")

    def _write_piece(self, piece: bytes, *, chunked: bool) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)

    def _head(self, request: Request, reply: Reply, more: tuple[tuple[str, str], ...]) -> bytes:
        ends = () if request.keep_alive and not self._server.closing else (("Connection", "close"),)
        headers = (("Content-Type", reply.content_type), *reply.headers, *more, *ends)
        return answer_head(reply.status, headers, time.time())

    def _refuse(self, error: RequestError) -> None:
        """Answer what cannot be read, unless another answer is under way."""
        self._refused = True
        if self.task is not None:
            self.transport.close()
            return
        self._write(Request(), text(str(error), error.status))
        # Closed with something unread, the client would be told of that rather than of our reason.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._wait_at_most(LINGER_SECONDS_MAX)

    # --- time ---

    def _wait_at_most(self, seconds: float) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            self._timer = asyncio.get_running_loop().call_later(seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
